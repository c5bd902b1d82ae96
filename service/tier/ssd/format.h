// SPDX-License-Identifier: Apache-2.0
#pragma once
// The fixed bytes of a tier's folder: the file tier.meta, and the first page of a segment.
// docs/internals/formats/ssd.md draws them.
//
// Both begin alike in every version: magic, version, how many bytes they are, and a CRC32C of those
// bytes. So what a later release wrote is told from damage.
//
// Reading assumes malice. Errors: DataLoss where the bytes are none of ours or damaged,
// Unimplemented where they are whole but of a version that this program does not know: leave them
// in place.
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

// Names one life of a tier: what an earlier one wrote does not match. Random.
using SsdTierId = std::array<std::byte, 16>;

inline constexpr uint16_t kTierMetaVersion = 1;
inline constexpr uint16_t kSegmentVersion = 1;
inline constexpr size_t kTierMetaBytes = 64;
inline constexpr size_t kSegmentHeaderBytes = 4096;
inline constexpr uint64_t kSegmentBytesMin = uint64_t{2} * kSegmentHeaderBytes;
// Pages have numbers of 32 bits.
inline constexpr uint64_t kSegmentBytesMax = (uint64_t{1} << 32) * kSegmentHeaderBytes;

struct TierMeta {
  SsdTierId tier_id{};
  uint64_t segment_bytes = 0;  // a multiple of 4096, kSegmentBytesMin to kSegmentBytesMax
  friend bool operator==(const TierMeta&, const TierMeta&) = default;
};

struct SegmentHeader {
  SsdTierId tier_id{};
  uint32_t slot = 0;           // of the file
  uint64_t seq = 0;            // rises with every use of any slot; not 0
  uint64_t segment_bytes = 0;  // of the file, this header included
  friend bool operator==(const SegmentHeader&, const SegmentHeader&) = default;
};

// REQUIRES of both: the fields are in their ranges (CAIRN_CHECKed).
void EncodeTierMeta(const TierMeta& meta, std::span<std::byte, kTierMetaBytes> target);
void EncodeSegmentHeader(const SegmentHeader& header,
                         std::span<std::byte, kSegmentHeaderBytes> target);

absl::StatusOr<TierMeta> ParseTierMeta(std::span<const std::byte> bytes);
absl::StatusOr<SegmentHeader> ParseSegmentHeader(std::span<const std::byte> bytes);

inline constexpr char kTierMetaFile[] = "tier.meta";

// Either the file in `folder` that was there before stays, or the new one is there, whatever
// happens in between; once it returns OK, the new one outlives a power cut.
absl::Status WriteTierMeta(const std::string& folder, const TierMeta& meta);
// NotFound: there is no such file. DataLoss, Unimplemented: as above. Others as errno says: the
// file may be fine.
absl::StatusOr<TierMeta> ReadTierMeta(const std::string& folder);

}  // namespace cairn
