// SPDX-License-Identifier: Apache-2.0
#pragma once
// Remembers deletions for absent devices. When a device returns, it drops the deleted blocks.
//
// Every device has a file with the last deletions, beside its ledger. The ledger has an epoch: the
// device has done all deletions up to it. The epoch increases with each call that deletes. It is at
// least the clock's time in microseconds. So devices that were used separately never use a number
// twice. If the other devices have forgotten some deletions after a device's epoch, nothing on that
// device is trusted. docs/internals/formats/ssd.md has the file's layout.
//
// The file also repairs a ledger that has lost its last writes. If only these writes recorded a
// deletion, the ledger would otherwise restore the deleted blocks.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "proto/block_key.h"

namespace cairn {

struct Deletion {
  uint64_t epoch = 0;
  proto::Fingerprint space{};
  proto::BlockKey key{};  // all zero: all blocks of the space
  friend auto operator<=>(const Deletion&, const Deletion&) = default;
};

// The deletions that a device knows. They are those after the epoch `base`, up to `epoch`.
struct DeletionHistory {
  uint64_t base = 0;
  uint64_t epoch = 0;
  std::vector<Deletion> deletions;  // ascending
};

class RecoverySink;
// Deletes a block, or all blocks of a space, from all stored data.
void TellSink(RecoverySink& sink, const Deletion& deletion);

// A device's file of deletions. Thread-safety: Thread-compatible.
class DeletionFile {
 public:
  explicit DeletionFile(std::string path) : path_(std::move(path)) {}

  // Reads up to the first incomplete record, which an interrupted write has left. Errors: NotFound,
  // DataLoss (not such a file), others by errno.
  absl::StatusOr<DeletionHistory> Read() const;
  // Replaces the file. If it returns OK, the file and all later Append()s survive a power loss.
  absl::Status Write(const DeletionHistory& history);
  // REQUIRES: Write() returned OK.
  absl::Status Append(std::span<const Deletion> deletions);
  // The number of deletions in the file.
  size_t count() const { return count_; }

 private:
  std::string path_;
  size_t count_ = 0;
};

// The tier's list of deletions, of limited length. Thread-safety: Thread-safe.
class Deletions {
 public:
  explicit Deletions(size_t count_max) : count_max_(count_max) {}

  // Adds the histories of the devices that exist at start.
  void Join(const std::vector<DeletionHistory>& histories);
  // Adds the history of a device that returns later. Returns the deletions that were new.
  std::vector<Deletion> Join(const DeletionHistory& history);
  // Adds deletions; without keys, of all blocks of the space. Calls `tell` with them, which passes
  // them to every device. Concurrent calls run one after the other, so that devices get deletions
  // in the order of epochs. So a device whose ledger has an epoch has done all earlier deletions.
  void Add(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys,
           absl::FunctionRef<void(const std::vector<Deletion>&)> tell);

  // Returns the deletions after `epoch` that a device with `history` must do. Returns nullopt if
  // some of these deletions are forgotten. Any block of the device may then be a deleted one.
  std::optional<std::vector<Deletion>> Missed(uint64_t epoch, const DeletionHistory& history) const;
  DeletionHistory All() const;
  uint64_t epoch() const;
  size_t count_max() const { return count_max_; }

 private:
  void Bound() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t count_max_;
  mutable Mutex mutex_;
  uint64_t base_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<Deletion> deletions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
