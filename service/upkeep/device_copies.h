// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies frequently read images from the host tier to the GPU tier. So gets can still read an image
// fast after its eviction from the host tier. Such a copy is never an image's only copy.
//
// A block is copied after limits::kReadsPerDeviceCopy reads. If a get found it on a drive, it is
// copied after its first read: the block is in use, and memory was too small for it. Blocks to copy
// wait in a queue, by name. The bytes in transit are limited, no thread waits for the device, and
// blocks for which the device has no room are skipped.
//
// Thread-safety: only one thread at a time may call RunOnce() and Stop(). The rest is Thread-safe.
// Locks: no lock is held while it calls a tier, the index or a space.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/in_flight.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/index/block_index.h"
#include "service/index/pin.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"

namespace cairn {

class DeviceCopies {
 public:
  // `wake` is called when RunOnce() has work: on any thread, without locks held.
  DeviceCopies(Spaces& spaces, BlockIndex& index, Tiers& tiers, std::function<void()> wake);
  // REQUIRES at destruction: Stop() has returned, or nothing was copied.
  ~DeviceCopies() = default;

  // Returns true if there is a GPU tier.
  bool has_tier() const { return tier_ != nullptr; }
  // Must be called when a get has read the block's bytes from that tier, without locks held.
  void NoteRead(const BlockName& block, TierId tier);

  // Submits as many copies as there is room for. Returns true if there may be more to do at once.
  bool RunOnce();
  // Begins no new copies, and waits for running ones. Idempotent.
  void Stop();

  void Report(MetricSink& sink) const;

 private:
  // Counts the reads of a block. The count starts when the block gets this entry of the table.
  struct Seen {
    uint64_t hash = 0;
    uint32_t reads = 0;
  };
  // A running copy.
  struct RunningCopy {
    SpaceRef space;
    CopyPin source;
    CopyWriter writer;
    TierExtent place;
  };

  bool HasRoom() const;
  void CopyBlock(const BlockName& block);
  void Submit(std::unique_ptr<RunningCopy> running);
  // The completion. Runs on any thread.
  void Completed(std::unique_ptr<RunningCopy> running, const absl::Status& status);
  bool Finish(RunningCopy& running);

  Spaces& spaces_;
  BlockIndex& index_;
  const std::function<void()> wake_;
  CopyTier* const tier_;  // null: none
  const uint64_t bytes_max_;

  mutable Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Seen> seen_ ABSL_GUARDED_BY(mutex_);
  std::deque<BlockName> due_ ABSL_GUARDED_BY(mutex_);
  Counter copied_, gone_, refused_, failed_;
  InFlight in_flight_;
};

}  // namespace cairn
