// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files of a device's folder, other than the ledger (ledger.h) and the list of deletions
// (deletions.h): tier.meta, the headers of segments, and the side objects. It also checks whether
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
// The file tier.meta and the first page of a segment have fixed layouts
// (docs/internals/formats/ssd.md). In every version, both begin with the same fields: magic,
// version, size, and a CRC32C of the other bytes. So a reader can distinguish data of a later
// release from damaged data.
//
//
// Readers assume untrusted bytes. Errors: DataLoss (damaged, or not our data), Unimplemented
// (intact, but of an unknown version: leave the data in place).
//
// Thread-safety: pure functions. The structs are values.

// A random id of a tier's data. A tier that starts empty gets a new id.
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
  uint64_t seq = 0;            // greater than those of all segments written before; not 0
  uint64_t segment_bytes = 0;  // size of the file, including this header
  friend bool operator==(const SegmentHeader&, const SegmentHeader&) = default;
};

// REQUIRES, for both functions: the fields are in their ranges (CAIRN_CHECKed).
void EncodeTierMeta(const TierMeta& meta, std::span<std::byte, kTierMetaBytes> target);
void EncodeSegmentHeader(const SegmentHeader& header,
                         std::span<std::byte, kSegmentHeaderBytes> target);

absl::StatusOr<TierMeta> ParseTierMeta(std::span<const std::byte> bytes);
absl::StatusOr<SegmentHeader> ParseSegmentHeader(std::span<const std::byte> bytes);

inline constexpr char kTierMetaFile[] = "tier.meta";

// Replaces the file in `folder` atomically. If it returns OK, the new file survives a power loss.
absl::Status WriteTierMeta(const std::string& folder, const TierMeta& meta);
// Errors: NotFound (no such file), DataLoss and Unimplemented as above. Other codes come from
// errno; then the file may be intact.
absl::StatusOr<TierMeta> ReadTierMeta(const std::string& folder);

// --- Side objects --------------------------------------------------------------------------------
// The side objects of a device: one file each, with the digest of its content as its name.
//
// Thread-safety: Thread-safe, except Open() and KeepOnly(), which one thread calls before all
//                others.
// Cost:          all calls wait for the drive, except Has() and bytes().
class SideFiles final : public SideObjectSource {
 public:
  SideFiles(std::string folder, uint64_t bytes_max)
      : folder_(std::move(folder)), bytes_max_(bytes_max) {}

  // Makes the folder and lists its files. Errors: by errno.
  absl::Status Open();
  bool Has(const codecs::Digest& id) const;
  // Writes a side object durably, unless it exists. Errors: ResourceExhausted (the budget or the
  // disk is full).
  absl::Status Write(const codecs::Digest& id, std::span<const std::byte> bytes);
  absl::StatusOr<std::vector<std::byte>> Read(const codecs::Digest& id) override;
  // Removes all files whose ids are not in `ids`.
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
// Checks that the file system of a folder is mounted. If it is not, the mount point is an empty
// folder of the parent file system, which the cache would fill. Errors: Unavailable if `fstab`
// lists an unmounted file system at the folder or above it. A missing `fstab` lists none.
absl::Status CheckMounted(const std::string& folder, const std::string& fstab);

}  // namespace cairn
