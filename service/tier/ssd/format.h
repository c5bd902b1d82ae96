// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of a tier's folder that have a fixed layout: the file tier.meta and the first page of a
// segment.
// docs/internals/formats/ssd.md draws them.
//
// Both begin with the same fields in every version: magic, version, size, and a CRC32C of those
// bytes. Readers can therefore tell data of a later release from damaged data.
//
// Readers assume untrusted bytes. Errors: DataLoss if the bytes are damaged or not ours;
// Unimplemented if they are intact but of an unknown version: leave them in place.
//
// Thread-safety: pure functions; the structs are values.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cairn {

// A random id of one lifetime of a tier. Data of an earlier lifetime has another id.
using SsdTierId = std::array<std::byte, 16>;

inline constexpr uint16_t kTierMetaVersion = 1;
inline constexpr uint16_t kSegmentVersion = 1;
inline constexpr size_t kTierMetaBytes = 64;
inline constexpr size_t kSegmentHeaderBytes = 4096;
inline constexpr uint64_t kSegmentBytesMin = uint64_t{2} * kSegmentHeaderBytes;
// Page numbers have 32 bits.
inline constexpr uint64_t kSegmentBytesMax = (uint64_t{1} << 32) * kSegmentHeaderBytes;

struct TierMeta {
  SsdTierId tier_id{};
  uint64_t segment_bytes = 0;  // a multiple of 4096, kSegmentBytesMin to kSegmentBytesMax
  friend bool operator==(const TierMeta&, const TierMeta&) = default;
};

struct SegmentHeader {
  SsdTierId tier_id{};
  uint32_t slot = 0;           // the file's slot
  uint64_t seq = 0;            // increases with every use of any slot; not 0
  uint64_t segment_bytes = 0;  // of the file, including this header
  friend bool operator==(const SegmentHeader&, const SegmentHeader&) = default;
};

// REQUIRES, for both: the fields are in their ranges (CAIRN_CHECKed).
void EncodeTierMeta(const TierMeta& meta, std::span<std::byte, kTierMetaBytes> target);
void EncodeSegmentHeader(const SegmentHeader& header,
                         std::span<std::byte, kSegmentHeaderBytes> target);

absl::StatusOr<TierMeta> ParseTierMeta(std::span<const std::byte> bytes);
absl::StatusOr<SegmentHeader> ParseSegmentHeader(std::span<const std::byte> bytes);

inline constexpr char kTierMetaFile[] = "tier.meta";

// Replaces the file in `folder` atomically. After OK the new one survives a power cut.
absl::Status WriteTierMeta(const std::string& folder, const TierMeta& meta);
// Errors: NotFound (no such file); DataLoss, Unimplemented as above; other codes by errno, and
// then the file may be intact.
absl::StatusOr<TierMeta> ReadTierMeta(const std::string& folder);

}  // namespace cairn
