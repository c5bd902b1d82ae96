// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies frequently read images from the host tier to the GPU tier, so that they are still near
// after eviction from the host tier. Such a copy is never an image's only one.
//
// A block is copied after limits::kReadsPerDeviceCopy reads, or after its first if a get found it
// on a drive: it is in use, but memory was too small for it. Blocks to copy wait as names. The
// bytes in transit are limited, no thread waits for the device, and blocks without room there are
// skipped.
//
// Thread-safety: RunOnce() and Stop() are for one thread at a time, the rest is Thread-safe.
// Locks:         none is held while it calls a tier, the index or a space.

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
  // `wake` tells that RunOnce() has work. Called on any thread, without locks held.
  DeviceCopies(Spaces& spaces, BlockIndex& index, Tiers& tiers, std::function<void()> wake);
  // REQUIRES at destruction: Stop() has returned, or nothing was copied.
  ~DeviceCopies() = default;

  // There is a tier for such copies.
  bool has_tier() const { return tier_ != nullptr; }
  // A get read the block's bytes from that tier. Call it without locks held.
  void NoteRead(const BlockName& block, TierId tier);

  // Submits copies as far as there is room. Returns true if there may be more at once.
  bool RunOnce();
  // Begins no new copies; waits for running ones. Idempotent.
  void Stop();

  void Report(MetricSink& sink) const;

 private:
  // The reads of one block since it got this place in the table.
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
  // The completion; on any thread.
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
