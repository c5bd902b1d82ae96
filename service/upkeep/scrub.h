// SPDX-License-Identifier: Apache-2.0
#pragma once
// The scrubber. It reads every copy in the tiers on devices, repeatedly and slowly, so that damage
// is found before a get needs the copy. It reads one copy at a time into staging, and only when the
// device has no other transfers to do. It drops and counts damaged copies. Its reads do not count
// as uses.
//
// A pass reads each copy once. The next pass begins when the last one has ended, but not earlier
// than limits::kScrubPassMsMin after the start of the last one.
//
// Thread-safety: only one thread at a time may call RunOnce() and Stop(). The rest is Thread-safe.
// Locks: no lock is held while it calls a tier, the index or a space.

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/in_flight.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/index/block_index.h"
#include "service/memory/arena.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"
#include "service/upkeep/image_check.h"

namespace cairn {

struct ScrubReport {
  uint64_t rate_bytes = 0;  // per second; 0: off, or nothing to read
  uint64_t pass_count = 0;  // complete passes
  uint64_t corrupt_count = 0;
  // Counts of the running pass, or of the last one if none runs.
  uint64_t image_count = 0, image_bytes = 0;
  std::optional<absl::Duration> since_last_pass = std::nullopt;  // since the end of the last pass
};

class Scrub {
 public:
  // `rate_bytes` is the number of bytes to read per second. With 0, nothing is read. With nullopt,
  // the rate is such that the tier is read once in kScrubPassDays. `wake` is called when RunOnce()
  // has work, on any thread, without locks held.
  Scrub(Spaces& spaces, BlockIndex& index, Tiers& tiers, const Clock& clock,
        std::optional<uint64_t> rate_bytes, std::function<void()> wake);
  // REQUIRES at destruction: Stop() has returned, or nothing was read.
  ~Scrub() = default;

  // Checks the bytes that were read, and starts the next read. Returns when to call it again,
  // unless `wake` is called before.
  absl::Time RunOnce(absl::Time now);
  // Cancels the running read and waits for its completion. Idempotent.
  void Stop();

  ScrubReport Describe() const;
  void Report(MetricSink& sink) const;

 private:
  // Returns the tier to read, or null.
  static CopyTier* TierOf(const Tiers& tiers);
  // The completion. Runs on any thread.
  void Completed(absl::Status status);
  // Verifies the bytes that were read. REQUIRES: the read has completed.
  void CheckRead(const absl::Status& status);
  // Finds the next copy. Returns false if the pass has ended, or if the examined slots have no
  // copy. In these cases sets *next to the time at which to continue.
  bool FindNext(absl::Time now, absl::Time* next);
  void Begin(absl::Time now);

  BlockIndex& index_;
  Tiers& tiers_;
  const Clock& clock_;
  CopyTier* const tier_;
  const uint64_t rate_bytes_;
  const std::function<void()> wake_;
  ImageCheck check_;

  // Owned by the thread that calls RunOnce().
  bool is_in_pass_ = false;
  uint64_t cursor_ = 0;
  absl::Time pass_began_ = absl::InfinitePast();
  absl::Time again_ = absl::InfinitePast();
  CopyPin pin_;  // the copy that is being read, or that will be read next
  Extent memory_;
  TransferId transfer_ = 0;

  mutable Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> read_ ABSL_GUARDED_BY(mutex_);
  uint64_t pass_images_ ABSL_GUARDED_BY(mutex_) = 0, pass_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Time> last_pass_ ABSL_GUARDED_BY(mutex_);
  Counter passes_, bytes_;
  InFlight in_flight_;  // reads
};

}  // namespace cairn
