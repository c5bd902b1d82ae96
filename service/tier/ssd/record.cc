// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/record.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "codecs/checksum/checksum.h"
#include "codecs/format/recipe_fields.h"
#include "codecs/types/bytes.h"
#include "proto/frame.h"

namespace cairn {
namespace {

using codecs::Load;
using codecs::Store;

constexpr size_t kCrcBytes = sizeof(uint32_t);

// Of an extent, from the value's first byte.
constexpr size_t kFlags = 1;           // u8, of those below
constexpr size_t kGroup = 2;           // u16
constexpr size_t kSpace = 4;           // u32
constexpr size_t kKey = 8;             // 32 bytes
constexpr size_t kParent = 40;         // 32 bytes
constexpr size_t kFirstPosition = 72;  // u64
constexpr size_t kSourceBytes = 80;    // u64
constexpr size_t kImageBytes = 88;     // u64
constexpr size_t kCreated = 96;        // i64
constexpr size_t kDirectoryCrc = 104;  // u32
constexpr size_t kTokens = 108;        // u16
constexpr size_t kSlice = 110;         // 4 u16
constexpr size_t kRecipe = 118;        // 16 bytes
constexpr size_t kSideObject = 134;    // 32 bytes, where kHasSideObject
constexpr size_t kExtentBytes = kSideObject + kCrcBytes;
constexpr size_t kRecipeBytes = kSideObject - kRecipe;
constexpr uint8_t kHasSideObject = 1;

static_assert(kExtentBytes + sizeof(codecs::Digest) + sizeof(uint32_t) == kExtentRecordBytesMax);
static_assert(kRecipeBytes >= codecs::kRecipeFieldsUsed);

// Of a segment.
constexpr size_t kState = 1;  // u8
constexpr size_t kSeq = 2;    // u64
constexpr size_t kSegmentValueBytes = kSeq + sizeof(uint64_t) + kCrcBytes;

// "e" with a seq and a page; "s" and "p" with a number.
constexpr size_t kExtentKeyBytes = 1 + sizeof(uint64_t) + sizeof(uint32_t);
constexpr size_t kNumberKeyBytes = 1 + sizeof(uint32_t);

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// A big-endian number, from and to the machine's.
template <typename Integer>
Integer Swapped(Integer value) {
  static_assert(std::endian::native == std::endian::little);
  if constexpr (sizeof(Integer) == 8) {
    return __builtin_bswap64(value);
  } else {
    return __builtin_bswap32(value);
  }
}

template <typename Integer>
void AppendBigEndian(Integer value, std::string* key) {
  const Integer swapped = Swapped(value);
  key->append(reinterpret_cast<const char*>(&swapped), sizeof(swapped));
}

std::string NumberKey(RecordKind kind, uint32_t number) {
  std::string key(1, static_cast<char>(kind));
  AppendBigEndian(number, &key);
  return key;
}

uint32_t CrcOf(std::string_view key, std::string_view value) {
  return codecs::ExtendCrc32c(codecs::Crc32c(Bytes(key)), Bytes(value));
}

absl::Status Damaged(absl::string_view why) {
  return absl::DataLossError(absl::StrCat("record: ", why));
}

bool FitsNumbers(const codecs::Slice& slice) {
  constexpr uint32_t kEndMax = std::numeric_limits<uint16_t>::max();
  return uint32_t{slice.layer_first} + slice.layer_count <= kEndMax &&
         uint32_t{slice.head_first} + slice.head_count <= kEndMax;
}

bool IsImageSize(uint64_t bytes) { return bytes >= 1 && bytes <= codecs::kImageBytesMax; }

// Those fields whose range is not the recipe's.
bool AreNumbersInRange(const ExtentRecord& record) {
  return record.first_position <= proto::kPositionMax && record.tokens >= 1 &&
         record.tokens <= codecs::kTokensPerBlockMax && record.group < proto::kGroupsMax &&
         !record.slice.IsEmpty() && FitsNumbers(record.slice) && IsImageSize(record.source_bytes) &&
         IsImageSize(record.image_bytes) && record.created_unix_s >= 0;
}

void StoreExtent(const ExtentRecord& record, std::byte* base) {
  Store(base + kGroup, record.group);
  Store(base + kSpace, record.space);
  Store(base + kKey, record.key);
  Store(base + kParent, record.parent);
  Store(base + kFirstPosition, record.first_position);
  Store(base + kSourceBytes, record.source_bytes);
  Store(base + kImageBytes, record.image_bytes);
  Store(base + kCreated, record.created_unix_s);
  Store(base + kDirectoryCrc, record.directory_crc);
  Store(base + kTokens, record.tokens);
  Store(base + kSlice, record.slice);
  std::array<std::byte, codecs::kRecipeFieldsBytes> recipe;
  codecs::StoreRecipe(record.recipe, recipe);
  std::copy_n(recipe.begin(), kRecipeBytes, base + kRecipe);
}

ExtentRecord LoadExtent(const std::byte* base) {
  return {.space = Load<uint32_t>(base + kSpace),
          .key = Load<proto::BlockKey>(base + kKey),
          .parent = Load<proto::BlockKey>(base + kParent),
          .first_position = Load<uint64_t>(base + kFirstPosition),
          .tokens = Load<uint16_t>(base + kTokens),
          .group = Load<uint16_t>(base + kGroup),
          .slice = Load<codecs::Slice>(base + kSlice),
          .source_bytes = Load<uint64_t>(base + kSourceBytes),
          .recipe = {},
          .image_bytes = Load<uint64_t>(base + kImageBytes),
          .directory_crc = Load<uint32_t>(base + kDirectoryCrc),
          .side_object = {},
          .created_unix_s = Load<int64_t>(base + kCreated),
          .expires_unix_s = 0};
}

}  // namespace

std::string ExtentKey(ExtentPlace place) {
  std::string key(1, static_cast<char>(RecordKind::kExtent));
  key.reserve(kExtentKeyBytes);
  AppendBigEndian(place.seq, &key);
  AppendBigEndian(place.page, &key);
  return key;
}

std::string SegmentKey(uint32_t slot) { return NumberKey(RecordKind::kSegment, slot); }

std::string SpaceKey(uint32_t number) { return NumberKey(RecordKind::kSpace, number); }

std::string MetaKey(std::string_view name) {
  return absl::StrCat(std::string(1, static_cast<char>(RecordKind::kMeta)), ToAbsl(name));
}

absl::StatusOr<ExtentPlace> ParseExtentKey(std::string_view key) {
  if (key.size() != kExtentKeyBytes || key[0] != static_cast<char>(RecordKind::kExtent)) {
    return Damaged("not the key of an extent");
  }
  return ExtentPlace{.seq = Swapped(Load<uint64_t>(key.data() + 1)),
                     .page = Swapped(Load<uint32_t>(key.data() + 1 + sizeof(uint64_t)))};
}

absl::StatusOr<uint32_t> ParseNumberKey(RecordKind kind, std::string_view key) {
  if (key.size() != kNumberKeyBytes || key[0] != static_cast<char>(kind)) {
    return Damaged("not a key of its kind");
  }
  return Swapped(Load<uint32_t>(key.data() + 1));
}

void SealRecord(std::string_view key, std::string* value) {
  const uint32_t crc = CrcOf(key, *value);
  value->append(reinterpret_cast<const char*>(&crc), sizeof(crc));
}

absl::StatusOr<std::string_view> OpenRecord(std::string_view key, std::string_view value,
                                            uint8_t version) {
  if (value.size() < 1 + kCrcBytes) {
    return Damaged("cut short");
  }
  const std::string_view content = value.substr(0, value.size() - kCrcBytes);
  if (Load<uint32_t>(value.data() + content.size()) != CrcOf(key, content)) {
    return Damaged("checksum does not match");
  }
  if (const auto found = Load<uint8_t>(value.data()); found != version) {
    return absl::UnimplementedError(absl::StrCat("record of kind ", ToAbsl(key.substr(0, 1)),
                                                 ": version ", int{found}, "; this program knows ",
                                                 int{version}));
  }
  return content.substr(1);
}

bool IsInRange(const ExtentRecord& record) {
  return AreNumbersInRange(record) && codecs::IsKnown(record.recipe);
}

std::string EncodeExtent(std::string_view key, const ExtentRecord& record) {
  CAIRN_CHECK(IsInRange(record));
  const bool has_side_object = record.side_object != codecs::Digest{};
  std::string value(kSideObject + (has_side_object ? sizeof(codecs::Digest) : 0), '\0');
  value.reserve(kExtentRecordBytesMax);
  auto* base = reinterpret_cast<std::byte*>(value.data());
  Store(base, record.expires_unix_s == 0 ? kExtentVersion : kExtentVersionExpiring);
  StoreExtent(record, base);
  if (has_side_object) {
    Store(base + kFlags, kHasSideObject);
    Store(base + kSideObject, record.side_object);
  }
  if (record.expires_unix_s != 0) {
    value.append(reinterpret_cast<const char*>(&record.expires_unix_s),
                 sizeof(record.expires_unix_s));
  }
  SealRecord(key, &value);
  return value;
}

absl::StatusOr<ExtentRecord> ParseExtent(std::string_view key, std::string_view value) {
  const bool is_expiring =
      !value.empty() && static_cast<uint8_t>(value[0]) == kExtentVersionExpiring;
  CAIRN_RETURN_IF_ERROR(
      OpenRecord(key, value, is_expiring ? kExtentVersionExpiring : kExtentVersion).status());
  const auto* base = reinterpret_cast<const std::byte*>(value.data());
  const auto flags = Load<uint8_t>(base + kFlags);
  const bool has_side_object = flags == kHasSideObject;
  if (flags > kHasSideObject || value.size() != kExtentBytes +
                                                    (has_side_object ? sizeof(codecs::Digest) : 0) +
                                                    (is_expiring ? sizeof(uint32_t) : 0)) {
    return Damaged("an extent of another length");
  }
  ExtentRecord record = LoadExtent(base);
  if (has_side_object) {
    record.side_object = Load<codecs::Digest>(base + kSideObject);
  }
  if (is_expiring) {
    record.expires_unix_s = Load<uint32_t>(base + value.size() - kCrcBytes - sizeof(uint32_t));
  }
  if (!AreNumbersInRange(record) || is_expiring != (record.expires_unix_s != 0) ||
      has_side_object != (record.side_object != codecs::Digest{})) {
    return Damaged("an extent with a field out of range");
  }
  std::array<std::byte, codecs::kRecipeFieldsBytes> recipe{};
  std::copy_n(base + kRecipe, kRecipeBytes, recipe.begin());
  if (codecs::LoadRecipe(recipe, &record.recipe) != codecs::Error::kOk) {
    return absl::UnimplementedError(
        "record of an extent: a recipe that this program does not know");
  }
  return record;
}

std::string EncodeSegment(std::string_view key, const SegmentRecord& record) {
  CAIRN_CHECK(record.seq != 0);
  std::string value(kSeq + sizeof(uint64_t), '\0');
  Store(value.data(), kSegmentRecordVersion);
  Store(value.data() + kState, record.state);
  Store(value.data() + kSeq, record.seq);
  SealRecord(key, &value);
  return value;
}

absl::StatusOr<SegmentRecord> ParseSegment(std::string_view key, std::string_view value) {
  CAIRN_RETURN_IF_ERROR(OpenRecord(key, value, kSegmentRecordVersion).status());
  if (value.size() != kSegmentValueBytes) {
    return Damaged("a segment of another length");
  }
  const SegmentRecord record{.seq = Load<uint64_t>(value.data() + kSeq),
                             .state = Load<SegmentRecord::State>(value.data() + kState)};
  if (record.seq == 0 || (record.state != SegmentRecord::State::kOpen &&
                          record.state != SegmentRecord::State::kSealed)) {
    return Damaged("a segment with a field out of range");
  }
  return record;
}

std::string EncodeMeta(std::string_view key, std::string_view bytes) {
  std::string value(1, static_cast<char>(kMetaVersion));
  value.append(bytes);
  SealRecord(key, &value);
  return value;
}

absl::StatusOr<std::string> ParseMeta(std::string_view key, std::string_view value) {
  CAIRN_ASSIGN_OR_RETURN(const std::string_view content, OpenRecord(key, value, kMetaVersion));
  return std::string(content);
}

}  // namespace cairn
