// SPDX-License-Identifier: Apache-2.0
#pragma once
// The way to a tier on a device: copies what gets read often out of the host tier, so that it is
// near once the host tier has given it up. Such a copy is never an image's only one.
//
// A block is due after limits::kReadsPerDeviceCopy reads, or at once where a get found it on a
// drive: memory was too small for it, and somebody came back. What is due waits as a name. Bytes on
// their way are bounded, no thread waits for the device, and what it has no room for is left out.
//
// Thread-safety: RunOnce() and Stop() are for one thread at a time, the rest is Thread-safe.
// Locks:         none held while a tier, the index or a space is called.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/metric.h"
#include "base/mutex.h"
#include "service/index/copies.h"
#include "service/index/images.h"
#include "service/index/pin.h"
#include "service/read_notes.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"

namespace cairn {

class DeviceCopies final : public ReadNotes {
 public:
  // `wake`: RunOnce() has something to do. Called on any thread, with no lock held.
  DeviceCopies(Spaces& spaces, Images& images, Copies& copies, Tiers& tiers,
               std::function<void()> wake);
  ~DeviceCopies() override;  // REQUIRES: Stop() has returned, or nothing was copied

  // There is a tier that takes such copies.
  bool has_tier() const { return tier_ != nullptr; }
  void NoteRead(const BlockName& block, TierId tier) override;

  // Submits what there is room for; true if there may be more at once.
  bool RunOnce();
  // No new copies; waits for those under way. Idempotent.
  void Stop();

  void Report(MetricSink& sink) const;

 private:
  // The reads of one block since another had its place.
  struct Seen {
    uint64_t hash = 0;
    uint32_t reads = 0;
  };
  // One copy on its way.
  struct Way {
    SpaceRef space;
    ResidentPin source;
    CopyWriter writer;
    TierExtent place;
  };

  bool HasRoom() const;
  void CopyBlock(const BlockName& block);
  void Submit(std::unique_ptr<Way> way);
  // The completion, on any thread.
  void Completed(std::unique_ptr<Way> way, const absl::Status& status);
  bool Finish(Way& way);

  Spaces& spaces_;
  Images& images_;
  Copies& copies_;
  const std::function<void()> wake_;
  CopyTier* const tier_;  // null: there is none
  const uint64_t bytes_max_;

  mutable Mutex mutex_;
  CondVar ended_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;  // until Completed() is about to return
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Seen> seen_ ABSL_GUARDED_BY(mutex_);
  std::deque<BlockName> due_ ABSL_GUARDED_BY(mutex_);
  Counter copied_, gone_, refused_, failed_;
};

}  // namespace cairn
