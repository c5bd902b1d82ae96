// SPDX-License-Identifier: Apache-2.0
#pragma once
// The side objects of a device, one file each, named by the digest of its content.
//
// Thread-safety: Thread-safe, except Open() and KeepOnly(): one thread, before all others.
// Cost:          calls wait for the disk, but for Has() and bytes().

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

}  // namespace cairn
