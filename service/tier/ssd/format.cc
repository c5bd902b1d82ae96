// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/format.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status.h"
#include "codecs/checksum/checksum.h"
#include "codecs/types/bytes.h"

namespace cairn {
namespace {

using codecs::Load;
using codecs::Store;

constexpr uint32_t kTierMetaMagic = 0x54564B43;  // "CKVT"
constexpr uint32_t kSegmentMagic = 0x53564B43;   // "CKVS"

// The start of both.
constexpr size_t kMagic = 0;    // u32
constexpr size_t kVersion = 4;  // u16
constexpr size_t kBytes = 6;    // u16
constexpr size_t kFlags = 8;    // u32, 0
constexpr size_t kCrc = 12;     // u32
constexpr size_t kTierId = 16;  // 16 bytes
constexpr size_t kStartBytes = 16;

constexpr size_t kMetaSegmentBytes = 32;  // u64
constexpr size_t kMetaTail = 40;          // 0

constexpr size_t kSeq = 32;           // u64
constexpr size_t kSegmentBytes = 40;  // u64
constexpr size_t kSlot = 48;          // u32
constexpr size_t kSegmentTail = 52;   // 0

uint32_t CrcOf(std::span<const std::byte> bytes) {
  constexpr std::array<std::byte, 4> kZero{};
  uint32_t crc = codecs::Crc32c(bytes.first(kCrc));
  crc = codecs::ExtendCrc32c(crc, kZero);
  return codecs::ExtendCrc32c(crc, bytes.subspan(kCrc + kZero.size()));
}

void StoreStart(uint32_t magic, uint16_t version, std::span<std::byte> target) {
  std::memset(target.data(), 0, target.size());
  Store(target.data() + kMagic, magic);
  Store(target.data() + kVersion, version);
  Store(target.data() + kBytes, static_cast<uint16_t>(target.size()));
}

void Seal(std::span<std::byte> target) { Store(target.data() + kCrc, CrcOf(target)); }

absl::Status Damaged(absl::string_view what, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(what, ": ", why));
}

absl::Status CheckStart(absl::string_view what, uint32_t magic, uint16_t version, size_t size,
                        std::span<const std::byte> bytes) {
  if (bytes.size() < kStartBytes) {
    return Damaged(what, "cut short");
  }
  const std::byte* base = bytes.data();
  if (Load<uint32_t>(base + kMagic) != magic) {
    return Damaged(what, "another magic");
  }
  if (Load<uint16_t>(base + kBytes) != bytes.size()) {
    return Damaged(what, "another length than it states");
  }
  if (Load<uint32_t>(base + kCrc) != CrcOf(bytes)) {
    return Damaged(what, "checksum does not match");
  }
  if (const auto found = Load<uint16_t>(base + kVersion); found != version) {
    return absl::UnimplementedError(
        absl::StrCat(what, ": version ", found, "; this program knows ", version));
  }
  return bytes.size() == size && Load<uint32_t>(base + kFlags) == 0
             ? absl::OkStatus()
             : Damaged(what, "a field is out of range");
}

bool IsSegmentSize(uint64_t bytes) {
  return bytes >= kSegmentBytesMin && bytes <= kSegmentBytesMax && bytes % kSegmentHeaderBytes == 0;
}

}  // namespace

void EncodeTierMeta(const TierMeta& meta, std::span<std::byte, kTierMetaBytes> target) {
  CAIRN_CHECK(IsSegmentSize(meta.segment_bytes));
  StoreStart(kTierMetaMagic, kTierMetaVersion, target);
  Store(target.data() + kTierId, meta.tier_id);
  Store(target.data() + kMetaSegmentBytes, meta.segment_bytes);
  Seal(target);
}

void EncodeSegmentHeader(const SegmentHeader& header,
                         std::span<std::byte, kSegmentHeaderBytes> target) {
  CAIRN_CHECK(IsSegmentSize(header.segment_bytes) && header.seq != 0);
  StoreStart(kSegmentMagic, kSegmentVersion, target);
  Store(target.data() + kTierId, header.tier_id);
  Store(target.data() + kSeq, header.seq);
  Store(target.data() + kSegmentBytes, header.segment_bytes);
  Store(target.data() + kSlot, header.slot);
  Seal(target);
}

absl::StatusOr<TierMeta> ParseTierMeta(std::span<const std::byte> bytes) {
  CAIRN_RETURN_IF_ERROR(
      CheckStart(kTierMetaFile, kTierMetaMagic, kTierMetaVersion, kTierMetaBytes, bytes));
  const std::byte* base = bytes.data();
  const TierMeta meta{.tier_id = Load<SsdTierId>(base + kTierId),
                      .segment_bytes = Load<uint64_t>(base + kMetaSegmentBytes)};
  if (!IsSegmentSize(meta.segment_bytes) ||
      !codecs::IsZero(base + kMetaTail, kTierMetaBytes - kMetaTail)) {
    return Damaged(kTierMetaFile, "a field is out of range");
  }
  return meta;
}

absl::StatusOr<SegmentHeader> ParseSegmentHeader(std::span<const std::byte> bytes) {
  constexpr char kWhat[] = "segment header";
  CAIRN_RETURN_IF_ERROR(
      CheckStart(kWhat, kSegmentMagic, kSegmentVersion, kSegmentHeaderBytes, bytes));
  const std::byte* base = bytes.data();
  const SegmentHeader header{.tier_id = Load<SsdTierId>(base + kTierId),
                             .slot = Load<uint32_t>(base + kSlot),
                             .seq = Load<uint64_t>(base + kSeq),
                             .segment_bytes = Load<uint64_t>(base + kSegmentBytes)};
  if (!IsSegmentSize(header.segment_bytes) || header.seq == 0 ||
      !codecs::IsZero(base + kSegmentTail, kSegmentHeaderBytes - kSegmentTail)) {
    return Damaged(kWhat, "a field is out of range");
  }
  return header;
}

absl::Status WriteTierMeta(const std::string& folder, const TierMeta& meta) {
  std::array<std::byte, kTierMetaBytes> bytes;
  EncodeTierMeta(meta, bytes);
  return WriteFileDurably(absl::StrCat(folder, "/", kTierMetaFile), bytes);
}

absl::StatusOr<TierMeta> ReadTierMeta(const std::string& folder) {
  // A later version may be larger.
  constexpr size_t kBytesMax = size_t{64} << 10;
  const auto text = ReadFile(absl::StrCat(folder, "/", kTierMetaFile), kBytesMax);
  if (!text.ok()) {
    return absl::IsResourceExhausted(text.status())
               ? Damaged(kTierMetaFile, text.status().message())
               : text.status();
  }
  return ParseTierMeta(std::as_bytes(std::span(*text)));
}

}  // namespace cairn
