// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files of a device's folder beside the ledger (ledger.h) and the list of deletions
// (deletions.h): the file tier.meta, the headers of segments, and the side objects. Also: whether
// the folder's file system is mounted.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "codecs/image/image.h"
#include "service/tier/recovery.h"

namespace cairn {

// --- Layouts -------------------------------------------------------------------------------------
// The file tier.meta and the first page of a segment have a fixed layout, which
// docs/internals/formats/ssd.md draws. Both begin with the same fields in every version: magic,
// version, size, and a CRC32C of those bytes. Readers can therefore tell data of a later release
// from damaged data.
//
// Readers assume untrusted bytes. Errors: DataLoss if the bytes are damaged or not ours;
// Unimplemented if they are intact but of an unknown version: leave them in place.
//
// Thread-safety: pure functions; the structs are values.

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

// --- Side objects --------------------------------------------------------------------------------
// The side objects of a device, one file each, named by the digest of its content.
//
// Thread-safety: Thread-safe, except Open() and KeepOnly(): one thread, before all others.
// Cost:          calls wait for the disk, but for Has() and bytes().
class SideFiles final : public SideObjectSource {
 public:
  SideFiles(std::string folder, uint64_t bytes_max)
      : folder_(std::move(folder)), bytes_max_(bytes_max) {}

  // Makes the folder and lists its files. Errors: as errno says.
  absl::Status Open();
  bool Has(const codecs::Digest& id) const;
  // Writes a side object durably, unless it exists. Errors: ResourceExhausted (the budget or the
  // disk is full).
  absl::Status Write(const codecs::Digest& id, std::span<const std::byte> bytes);
  absl::StatusOr<std::vector<std::byte>> Read(const codecs::Digest& id) override;
  // Removes all others.
  void KeepOnly(const absl::flat_hash_set<codecs::Digest>& ids);
  uint64_t bytes() const;

 private:
  std::string PathOf(const codecs::Digest& id) const;

  const std::string folder_;
  const uint64_t bytes_max_;
  mutable Mutex mutex_;
  absl::flat_hash_map<codecs::Digest, uint64_t> files_ ABSL_GUARDED_BY(mutex_);  // bytes
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// --- Mounts --------------------------------------------------------------------------------------
// Checks that the file system of a folder is mounted. Without its disk the mount point is an empty
// folder of the file system above, which the cache would fill. Errors: Unavailable if `fstab` lists
// a file system at the folder or above it that is not mounted. A missing `fstab` lists none.
absl::Status CheckMounted(const std::string& folder, const std::string& fstab);

}  // namespace cairn
