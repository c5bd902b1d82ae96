// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/record.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <span>
#include <tuple>
#include <type_traits>

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

// Offsets in the value of an extent:
constexpr size_t kFlags = 1;           // u8, with the flags below
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
constexpr size_t kSideObject = 134;    // 32 bytes, if kHasSideObject is set
constexpr size_t kExtentBytes = kSideObject + kCrcBytes;
constexpr size_t kRecipeBytes = kSideObject - kRecipe;
constexpr uint8_t kHasSideObject = 1;

static_assert(kExtentBytes + sizeof(codecs::Digest) + sizeof(uint32_t) == kExtentRecordBytesMax);
static_assert(kRecipeBytes >= codecs::kRecipeFieldsUsed);

// Offsets in the value of a segment:
constexpr size_t kState = 1;  // u8
constexpr size_t kSeq = 2;    // u64
constexpr size_t kSegmentValueBytes = kSeq + sizeof(uint64_t) + kCrcBytes;

// "e" is followed by a seq and a page, "s" and "p" by a number.
constexpr size_t kExtentKeyBytes = 1 + sizeof(uint64_t) + sizeof(uint32_t);
constexpr size_t kNumberKeyBytes = 1 + sizeof(uint32_t);

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Converts a big-endian number to and from the CPU's byte order.
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

std::string PlaceKey(RecordKind kind, ExtentPlace place) {
  std::string key(1, static_cast<char>(kind));
  key.reserve(kExtentKeyBytes);
  AppendBigEndian(place.seq, &key);
  AppendBigEndian(place.page, &key);
  return key;
}

uint32_t CrcOf(std::string_view key, std::string_view value) {
  return codecs::ExtendCrc32c(codecs::Crc32c(Bytes(key)), Bytes(value));
}

absl::Status Damaged(absl::string_view why) {
  return absl::DataLossError(absl::StrCat("record: ", why));
}

absl::StatusOr<ExtentPlace> ParsePlaceKey(RecordKind kind, std::string_view key) {
  if (key.size() != kExtentKeyBytes || key[0] != static_cast<char>(kind)) {
    return Damaged("not a key of its kind");
  }
  return ExtentPlace{.seq = Swapped(Load<uint64_t>(key.data() + 1)),
                     .page = Swapped(Load<uint32_t>(key.data() + 1 + sizeof(uint64_t)))};
}

bool FitsNumbers(const codecs::Slice& slice) {
  constexpr uint32_t kEndMax = std::numeric_limits<uint16_t>::max();
  return uint32_t{slice.layer_first} + slice.layer_count <= kEndMax &&
         uint32_t{slice.head_first} + slice.head_count <= kEndMax;
}

bool IsImageSize(uint64_t bytes) { return bytes >= 1 && bytes <= codecs::kImageBytesMax; }

// Checks the fields whose range does not depend on the recipe.
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
          .expires_unix_s = 0,
          .names = {}};
}

}  // namespace

std::string ExtentKey(ExtentPlace place) { return PlaceKey(RecordKind::kExtent, place); }

std::string FieldsKey(ExtentPlace place) { return PlaceKey(RecordKind::kFields, place); }

std::string SegmentKey(uint32_t slot) { return NumberKey(RecordKind::kSegment, slot); }

std::string SpaceKey(uint32_t number) { return NumberKey(RecordKind::kSpace, number); }

std::string MetaKey(std::string_view name) {
  return absl::StrCat(std::string(1, static_cast<char>(RecordKind::kMeta)), ToAbsl(name));
}

absl::StatusOr<ExtentPlace> ParseExtentKey(std::string_view key) {
  return ParsePlaceKey(RecordKind::kExtent, key);
}

absl::StatusOr<ExtentPlace> ParseFieldsKey(std::string_view key) {
  return ParsePlaceKey(RecordKind::kFields, key);
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

// --- Fields --------------------------------------------------------------------------------------

namespace {

// A number is never reused for another field.
enum class FieldId : uint16_t { kEngineHash = 1, kEngineParent = 2, kTokens = 3 };
constexpr size_t kFieldHeadBytes = 2 * sizeof(uint16_t);

void PutField(FieldId id, std::span<const std::byte> bytes, std::string* value) {
  CAIRN_CHECK(bytes.size() <= std::numeric_limits<uint16_t>::max());
  if (bytes.empty()) {
    return;
  }
  const auto count = static_cast<uint16_t>(bytes.size());
  value->append(reinterpret_cast<const char*>(&id), sizeof(id));
  value->append(reinterpret_cast<const char*>(&count), sizeof(count));
  value->append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

absl::Status TakeField(FieldId id, std::span<const std::byte> bytes, proto::EngineNames* names) {
  switch (id) {
    case FieldId::kEngineHash:
    case FieldId::kEngineParent: {
      const auto hash = proto::EngineHash::From(bytes, "hash");
      if (!hash.ok()) {
        return Damaged("a hash of another length");
      }
      (id == FieldId::kEngineHash ? names->hash : names->parent) = *hash;
      return absl::OkStatus();
    }
    case FieldId::kTokens:
      if (bytes.size() % sizeof(uint32_t) != 0 ||
          bytes.size() / sizeof(uint32_t) > codecs::kTokensPerBlockMax) {
        return Damaged("tokens of another length");
      }
      names->tokens.resize(bytes.size() / sizeof(uint32_t));
      std::memcpy(names->tokens.data(), bytes.data(), bytes.size());
      return absl::OkStatus();
  }
  return absl::OkStatus();  // a field of a later release
}

}  // namespace

std::string EncodeFields(std::string_view key, const EngineNamesRef& names) {
  std::string value;
  if (names == nullptr) {
    return value;
  }
  value.push_back(static_cast<char>(kFieldsVersion));
  PutField(FieldId::kEngineHash, names->hash.bytes(), &value);
  PutField(FieldId::kEngineParent, names->parent.bytes(), &value);
  PutField(FieldId::kTokens, std::as_bytes(std::span(names->tokens)), &value);
  SealRecord(key, &value);
  return value;
}

absl::StatusOr<EngineNamesRef> ParseFields(std::string_view key, std::string_view value) {
  CAIRN_ASSIGN_OR_RETURN(std::string_view rest, OpenRecord(key, value, kFieldsVersion));
  proto::EngineNames names;
  while (!rest.empty()) {  // each iteration takes a field
    if (rest.size() < kFieldHeadBytes) {
      return Damaged("a field is cut short");
    }
    const auto id = Load<FieldId>(rest.data());
    const auto count = Load<uint16_t>(rest.data() + sizeof(uint16_t));
    rest.remove_prefix(kFieldHeadBytes);
    if (rest.size() < count) {
      return Damaged("a field is cut short");
    }
    CAIRN_RETURN_IF_ERROR(TakeField(id, Bytes(rest.substr(0, count)), &names));
    rest.remove_prefix(count);
  }
  return ShareNames(std::move(names));
}

// --- Spaces --------------------------------------------------------------------------------------
// The value of a space has no fixed size. Its fields follow each other. Lists and texts begin with
// their count.

namespace {

using proto::GroupGeometry;

class FieldsOut {
 public:
  explicit FieldsOut(std::string* target) : target_(target) {}

  template <typename Value>
  void Put(const Value& value) {
    static_assert(std::has_unique_object_representations_v<Value> || std::is_same_v<Value, double>);
    target_->append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PutCount(size_t count) {
    CAIRN_CHECK(count <= std::numeric_limits<uint16_t>::max());
    Put(static_cast<uint16_t>(count));
  }
  void PutText(std::string_view text) {
    PutCount(text.size());
    target_->append(text);
  }

 private:
  std::string* target_;
};

// Reads the output of FieldsOut. If a field does not fit, it and all later ones are zero or empty.
class FieldsIn {
 public:
  explicit FieldsIn(std::string_view rest) : rest_(rest) {}

  template <typename Value>
  Value Take() {
    Value value{};
    if (const std::string_view bytes = Bytes(sizeof(value)); !bytes.empty()) {
      std::memcpy(&value, bytes.data(), sizeof(value));
    }
    return value;
  }
  std::string TakeText() { return std::string(Bytes(Take<uint16_t>())); }
  // Reads the count of a list whose elements take at least `bytes` each. Returns 0 if the rest is
  // too short for so many.
  size_t TakeCount(size_t bytes) {
    const size_t count = Take<uint16_t>();
    is_whole_ = is_whole_ && count * bytes <= rest_.size();
    return is_whole_ ? count : 0;
  }
  bool IsAtEnd() const { return is_whole_ && rest_.empty(); }

 private:
  std::string_view Bytes(size_t bytes) {
    is_whole_ = is_whole_ && bytes <= rest_.size();
    const std::string_view taken = rest_.substr(0, is_whole_ ? bytes : 0);
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view rest_;
  bool is_whole_ = true;
};

constexpr size_t kGroupBytesMin = 46;
constexpr size_t kCurrentBytes = 36;

void PutGroup(const GroupGeometry& group, FieldsOut& out) {
  out.Put(group.kind);
  out.Put(group.rope.kind);
  out.Put(group.kv_heads);
  out.Put(group.k_dim);
  out.Put(group.v_dim);
  out.Put(group.window_tokens);
  out.Put(group.state_bytes);
  out.Put(group.row_bytes);
  out.Put(group.rope.rotary_dims);
  out.Put(group.rope.base);
  out.PutCount(group.rope.inverse_frequencies.size());
  for (const double frequency : group.rope.inverse_frequencies) {
    out.Put(frequency);
  }
  out.PutCount(group.layers.size());
  for (const uint32_t layer : group.layers) {
    out.Put(layer);
  }
}

GroupGeometry TakeGroup(FieldsIn& in) {
  GroupGeometry group;
  group.kind = in.Take<GroupGeometry::Kind>();
  group.rope.kind = in.Take<proto::Rope::Kind>();
  group.kv_heads = in.Take<uint32_t>();
  group.k_dim = in.Take<uint32_t>();
  group.v_dim = in.Take<uint32_t>();
  group.window_tokens = in.Take<uint32_t>();
  group.state_bytes = in.Take<uint32_t>();
  group.row_bytes = in.Take<uint32_t>();
  group.rope.rotary_dims = in.Take<uint32_t>();
  group.rope.base = in.Take<double>();
  group.rope.inverse_frequencies.resize(in.TakeCount(sizeof(double)));
  std::ranges::generate(group.rope.inverse_frequencies, [&] { return in.Take<double>(); });
  group.layers.resize(in.TakeCount(sizeof(uint32_t)));
  std::ranges::generate(group.layers, [&] { return in.Take<uint32_t>(); });
  return group;
}

void PutIdentity(const proto::SpaceIdentity& identity, FieldsOut& out) {
  out.PutText(identity.tenant);
  out.PutText(identity.model);
  out.PutText(identity.weights_revision);
  out.Put(identity.dtype);
  out.Put(identity.tokens_per_block);
  out.PutCount(identity.groups.size());
  for (const GroupGeometry& group : identity.groups) {
    PutGroup(group, out);
  }
}

proto::SpaceIdentity TakeIdentity(FieldsIn& in) {
  proto::SpaceIdentity identity;
  identity.tenant = in.TakeText();
  identity.model = in.TakeText();
  identity.weights_revision = in.TakeText();
  identity.dtype = in.Take<codecs::DType>();
  identity.tokens_per_block = in.Take<uint32_t>();
  identity.groups.resize(in.TakeCount(kGroupBytesMin));
  std::ranges::generate(identity.groups, [&] { return TakeGroup(in); });
  return identity;
}

void PutCurrent(const SpaceRecord::Current& current, FieldsOut& out) {
  out.Put(static_cast<uint16_t>(current.group));
  out.Put(current.kind);
  out.Put(static_cast<uint8_t>(current.is_mined ? 1 : 0));
  out.Put(current.id);
}

// Returns true if the side objects name groups of the identity, in ascending order, each kind once.
bool IsInOrder(const SpaceRecord& record) {
  const auto place = [](const SpaceRecord::Current& c) { return std::tuple(c.group, c.kind); };
  for (size_t i = 0; i < record.current.size(); ++i) {
    if (record.current[i].group >= record.identity.groups.size() ||
        (i > 0 && place(record.current[i - 1]) >= place(record.current[i]))) {
      return false;
    }
  }
  return true;
}

bool IsInRange(const SpaceRecord& record) {
  return record.recipe.size() <= kRecipeNameBytesMax &&
         record.cold_recipe.size() <= kRecipeNameBytesMax &&
         proto::Validate(record.identity).ok() &&
         proto::FingerprintOf(record.identity) == record.fingerprint && IsInOrder(record);
}

}  // namespace

std::string EncodeSpace(std::string_view key, const SpaceRecord& record) {
  CAIRN_CHECK(IsInRange(record));
  std::string value;
  FieldsOut out(&value);
  const bool has_policy = !record.cold_recipe.empty() || record.ttl_s != 0;
  out.Put(has_policy ? kSpaceVersionWithPolicy : kSpaceVersion);
  out.Put(record.fingerprint);
  PutIdentity(record.identity, out);
  out.PutText(record.recipe);
  out.PutCount(record.current.size());
  for (const SpaceRecord::Current& current : record.current) {
    PutCurrent(current, out);
  }
  if (has_policy) {
    out.PutText(record.cold_recipe);
    out.Put(record.ttl_s);
  }
  SealRecord(key, &value);
  return value;
}

absl::StatusOr<SpaceRecord> ParseSpace(std::string_view key, std::string_view value) {
  const bool has_policy =
      !value.empty() && static_cast<uint8_t>(value[0]) == kSpaceVersionWithPolicy;
  CAIRN_ASSIGN_OR_RETURN(
      const std::string_view content,
      OpenRecord(key, value, has_policy ? kSpaceVersionWithPolicy : kSpaceVersion));
  FieldsIn in(content);
  SpaceRecord record;
  record.fingerprint = in.Take<proto::Fingerprint>();
  record.identity = TakeIdentity(in);
  record.recipe = in.TakeText();
  record.current.resize(in.TakeCount(kCurrentBytes));
  bool are_flags_known = true;
  for (SpaceRecord::Current& current : record.current) {
    current.group = in.Take<uint16_t>();
    current.kind = in.Take<proto::SideObjectKind>();
    const auto flags = in.Take<uint8_t>();
    are_flags_known = are_flags_known && flags <= 1 &&
                      (current.kind == proto::SideObjectKind::kProfile ||
                       current.kind == proto::SideObjectKind::kBank);
    current.is_mined = flags == 1;
    current.id = in.Take<codecs::Digest>();
  }
  if (has_policy) {
    record.cold_recipe = in.TakeText();
    record.ttl_s = in.Take<uint32_t>();
  }
  if (!in.IsAtEnd()) {
    return absl::DataLossError("record of a space: wrong length");
  }
  if (!are_flags_known) {
    return absl::UnimplementedError("record of a space: a side object this program does not know");
  }
  if (!IsInRange(record)) {
    return absl::DataLossError("record of a space: a field is out of range");
  }
  return record;
}

}  // namespace cairn
