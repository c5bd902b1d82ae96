// SPDX-License-Identifier: Apache-2.0
#pragma once
// What was deleted, for devices that were away meanwhile: one that comes back drops it.
//
// Every device keeps a file of the last deletions beside its ledger, and in its ledger the epoch up
// to which those are done there. The epoch is a number that rises with each deletion, and is of
// the clock, so that devices that were used apart do not give one number twice. A device that
// comes with an epoch before which the others do not know all deletions any more has nothing that
// is believed. docs/internals/formats/ssd.md draws the file.
//
// It mends the ledger too: one whose last writes are lost would have again what they deleted.

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

// All deletions after `base`, up to `epoch`, that a device was told of.
struct DeletionHistory {
  uint64_t base = 0;
  uint64_t epoch = 0;
  std::vector<Deletion> deletions;  // ascending
};

class RecoverySink;
// Deletes it from all that is there.
void TellSink(RecoverySink& sink, const Deletion& deletion);

// The file of a device. Thread-safety: Thread-compatible.
class DeletionFile {
 public:
  explicit DeletionFile(std::string path) : path_(std::move(path)) {}

  // Reads up to the first record that is not whole, which is where a write was cut off. NotFound;
  // DataLoss: it is none of ours; others as errno says.
  absl::StatusOr<DeletionHistory> Read() const;
  // In the place of what there is. Once it returns OK it outlives a power cut; so with Append().
  absl::Status Write(const DeletionHistory& history);
  // REQUIRES: Write() returned OK.
  absl::Status Append(std::span<const Deletion> deletions);
  // In the file.
  size_t count() const { return count_; }

 private:
  std::string path_;
  size_t count_ = 0;
};

// What the tier knows, bounded. Thread-safety: Thread-safe.
class Deletions {
 public:
  explicit Deletions(size_t count_max) : count_max_(count_max) {}

  // What devices bring at the start.
  void Join(const std::vector<DeletionHistory>& histories);
  // What a device brings that comes later. Returns what was not known.
  std::vector<Deletion> Join(const DeletionHistory& history);
  // No keys: all blocks of the space. `tell` gets what is to be told to every device. Of calls at
  // once one is over before the next, so that devices hear of deletions in the order of epochs: a
  // ledger's epoch says that all before it are done.
  void Add(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys,
           absl::FunctionRef<void(const std::vector<Deletion>&)> tell);

  // What a device has to drop that was told of `history` and has done all up to `epoch`. nullopt:
  // that is not known any more, and anything may be deleted.
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
