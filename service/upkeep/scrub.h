// SPDX-License-Identifier: Apache-2.0
#pragma once
// The scrubber: reads every copy of the tiers on devices, again and again and slowly, so that what
// rots is found before somebody asks for it. One copy is read at a time, behind all other transfers
// of its device, into staging; what is damaged is dropped and counted. A copy that is read here
// does not count as used.
//
// A pass looks at each copy once. The next begins limits::kScrubPassMsMin after it began, or when
// it is over if that is later.
//
// Thread-safety: RunOnce() and Stop() are for one thread at a time, the rest is Thread-safe.
// Locks:         none held while a tier, the index or a space is called.

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/index/block_index.h"
#include "service/memory/arena.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"
#include "service/upkeep/image_check.h"

namespace cairn {

struct ScrubReport {
  uint64_t rate_bytes = 0;  // a second; 0: there is nothing to read, or it is off
  uint64_t pass_count = 0;  // that are over
  uint64_t corrupt_count = 0;
  // Of the pass under way, or of the last.
  uint64_t image_count = 0, image_bytes = 0;
  std::optional<absl::Duration> since_last_pass = std::nullopt;  // since the last one was over
};

class Scrub {
 public:
  // `rate_bytes`: to read a second; 0: nothing. Unset: what reads the tier once in kScrubPassDays.
  // `wake`: RunOnce() has something to do. Called on any thread, with no lock held.
  Scrub(Spaces& spaces, BlockIndex& index, Tiers& tiers, const Clock& clock,
        std::optional<uint64_t> rate_bytes, std::function<void()> wake);
  ~Scrub();  // REQUIRES: Stop() has returned, or nothing was read

  // Checks what has been read, and reads on. Returns when to call again if nothing wakes before.
  absl::Time RunOnce(absl::Time now);
  // Cancels the read under way, and waits for its completion. Idempotent.
  void Stop();

  ScrubReport Describe() const;
  void Report(MetricSink& sink) const;

 private:
  // The tier that it reads, null: there is none.
  static CopyTier* TierOf(const Tiers& tiers);
  // The completion, on any thread.
  void Completed(absl::Status status);
  // What was read. REQUIRES: the read is over.
  void CheckRead(const absl::Status& status);
  // Looks for the next copy. False: the pass is over, or the next slots have none; see *next.
  bool FindNext(absl::Time now, absl::Time* next);
  void Begin(absl::Time now);

  BlockIndex& index_;
  Tiers& tiers_;
  const Clock& clock_;
  CopyTier* const tier_;
  const uint64_t rate_bytes_;
  const std::function<void()> wake_;
  ImageCheck check_;

  // Owned by who runs it.
  bool is_in_pass_ = false;
  uint64_t cursor_ = 0;
  absl::Time pass_began_ = absl::InfinitePast();
  absl::Time again_ = absl::InfinitePast();
  ResidentPin pin_;  // of what is read, or to be read next
  Extent memory_;
  TransferId transfer_ = 0;

  mutable Mutex mutex_;
  CondVar ended_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> read_ ABSL_GUARDED_BY(mutex_);
  int completions_ ABSL_GUARDED_BY(mutex_) = 0;  // until Completed() is about to return
  uint64_t pass_images_ ABSL_GUARDED_BY(mutex_) = 0, pass_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Time> last_pass_ ABSL_GUARDED_BY(mutex_);
  Counter passes_, bytes_;
};

}  // namespace cairn
