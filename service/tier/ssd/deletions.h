// SPDX-License-Identifier: Apache-2.0
#pragma once
// Remembers deletions for absent devices: a device that comes back drops the deleted blocks.
//
// Every device keeps a file of the last deletions beside its ledger, and in the ledger the epoch up
// to which it has done them. The epoch increases with each deletion and follows the clock, so that
// devices that were used separately never use a number twice. If the other devices no longer know
// all deletions after a device's epoch, nothing on that device is trusted.
// docs/internals/formats/ssd.md draws the file.
//
// It also repairs a ledger whose last writes are lost, which would otherwise bring back what they
// deleted.

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

// All deletions after `base`, up to `epoch`, that a device has learned.
struct DeletionHistory {
  uint64_t base = 0;
  uint64_t epoch = 0;
  std::vector<Deletion> deletions;  // ascending
};

class RecoverySink;
// Deletes it from all stored data.
void TellSink(RecoverySink& sink, const Deletion& deletion);

// A device's file of deletions. Thread-safety: Thread-compatible.
class DeletionFile {
 public:
  explicit DeletionFile(std::string path) : path_(std::move(path)) {}

  // Reads up to the first incomplete record, where a write was cut off. Errors: NotFound; DataLoss
  // (not a file of ours); others as errno says.
  absl::StatusOr<DeletionHistory> Read() const;
  // Replaces the file. After OK it survives a power cut; so do later Append() calls.
  absl::Status Write(const DeletionHistory& history);
  // REQUIRES: Write() returned OK.
  absl::Status Append(std::span<const Deletion> deletions);
  // The number of deletions in the file.
  size_t count() const { return count_; }

 private:
  std::string path_;
  size_t count_ = 0;
};

// The tier's list of deletions, bounded. Thread-safety: Thread-safe.
class Deletions {
 public:
  explicit Deletions(size_t count_max) : count_max_(count_max) {}

  // Adds the histories of the devices at start.
  void Join(const std::vector<DeletionHistory>& histories);
  // Adds the history of a device that comes later. Returns the deletions that were unknown.
  std::vector<Deletion> Join(const DeletionHistory& history);
  // Adds deletions; no keys means all blocks of the space. `tell` receives them for every device.
  // Concurrent calls run one after the other, so that devices receive deletions in the order of
  // epochs: a ledger's epoch means that all earlier ones are done.
  void Add(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys,
           absl::FunctionRef<void(const std::vector<Deletion>&)> tell);

  // Returns the deletions that a device with `history` must drop after `epoch`. nullopt: some are
  // no longer known, so any of its blocks may be deleted.
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
