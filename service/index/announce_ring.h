// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks that came or went last, for the thread that announces them to other members. Numbers
// them consecutively. The index never waits for the reader: a reader that is too slow is told so.
//
// Thread-safety: Thread-safe. Append() is called with the index's lock held: index < ring.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "service/tier/block_name.h"

namespace cairn {

// A block got its first copy in any tier, or lost its last one.
struct Announcement {
  BlockName name;
  uint64_t run = 0;  // proto/location.h; not proto::kNoRun
  bool is_stored = false;
};

class AnnounceRing {
 public:
  // REQUIRES: entries_max > 0.
  explicit AnnounceRing(size_t entries_max);

  void Append(const Announcement& announcement);
  // The number of the next one. Needs no lock.
  uint64_t next() const { return next_.load(std::memory_order_relaxed); }
  // Adds up to `count_max` entries from *cursor on to `entries`, and moves *cursor past them. If
  // some of these entries were overwritten, returns false, adds nothing, and sets *cursor to
  // next().
  bool Read(uint64_t* cursor, size_t count_max, std::vector<Announcement>* entries) const;
  // Waits until there is an entry from `cursor` on (nullopt: whatever comes), until Wake(), or
  // until `deadline` (on the clock of MonotonicNow()). One thread at a time.
  void Await(std::optional<uint64_t> cursor, absl::Time deadline) const;
  // Ends the wait of now, or else the next one.
  void Wake() const;

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  mutable bool is_awaited_ ABSL_GUARDED_BY(mutex_) = false;  // a change ends the wait
  mutable bool is_woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Announcement> kept_ ABSL_GUARDED_BY(mutex_);  // entry n is at n % kept_.size()
  std::atomic<uint64_t> next_{0};                           // written with mutex_ held
};

}  // namespace cairn
