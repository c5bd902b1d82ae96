// SPDX-License-Identifier: Apache-2.0
#pragma once
// What comes into tiers and goes, for those who watch: the last events in a ring, numbered without
// gaps. Nobody waits for a reader. One who falls behind what the ring holds is told so, and goes on
// from now.
//
// Nothing is kept before somebody watches, nor a while after the last has left.
//
// Thread-safety: Thread-safe. Append() is called with the index's lock held: index < this.

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "proto/block_key.h"
#include "service/limits.h"
#include "service/tier/block_name.h"
#include "service/tier/tier_extent.h"

namespace cairn {

// A block has its first image in a tier, or the last one has left it.
struct IndexEvent {
  BlockName name;
  bool is_stored = false;
  TierId tier = TierId::kHost;
  uint16_t tokens = 0;
  proto::BlockKey parent{};  // all zero: none is known
  uint64_t first_position = 0;
};

// Where a reader is. Epochs differ, so that numbers of another log, or of before a pause, are not
// taken for these.
struct EventCursor {
  uint64_t epoch = 0;
  uint64_t next = 0;
};

class EventLog {
 public:
  explicit EventLog(const Clock& clock, size_t events_max = limits::kEventsMax)
      : clock_(clock), events_max_(events_max) {}

  bool is_recording() const { return is_recording_.load(std::memory_order_relaxed); }
  // REQUIRES: is_recording() was true.
  void Append(const IndexEvent& event);

  // Somebody watches, until End(). *can_go_on: what is at *cursor is still here; else *cursor is
  // now. ResourceExhausted: too many watch.
  absl::Status Begin(EventCursor* cursor, bool* can_go_on);
  void End();
  // Adds at most `count` events from *cursor on, which moves past them. False: some of them are
  // gone, and *cursor is now.
  bool Read(EventCursor* cursor, size_t count, std::vector<IndexEvent>* events);

  void Report(MetricSink& sink) const;

 private:
  bool Has(const EventCursor& cursor) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  const size_t events_max_;
  std::atomic<bool> is_recording_{false};
  mutable Mutex mutex_;
  std::vector<IndexEvent> ring_ ABSL_GUARDED_BY(mutex_);  // number n is at n % events_max_
  EventCursor now_ ABSL_GUARDED_BY(mutex_);
  uint64_t begin_ ABSL_GUARDED_BY(mutex_) = 0;  // number of the epoch's first
  size_t watchers_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time left_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // by the last who watched
  uint64_t events_total_ ABSL_GUARDED_BY(mutex_) = 0, resets_total_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
