// SPDX-License-Identifier: Apache-2.0
#pragma once
// What comes into tiers and goes, for those who watch: of each tenant the last events, numbered
// without gaps. Nobody waits for a reader. One who falls behind what is kept is told so, and goes
// on from now.
//
// Nothing is kept of a tenant before somebody watches, nor a while after the last has left. What is
// kept is bounded for all of them together, and the tenant that has most gives its oldest up: what
// others do is not to be seen in a tenant's numbers, nor does it push out what little the tenant
// has.
//
// Thread-safety: Thread-safe. Append() is called with the index's lock held, the calls about spaces
// with that of the spaces: spaces < index < this.

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "proto/block_key.h"
#include "service/index/tenant_shares.h"
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

  // From now on, until it is removed, events of the space are its tenant's. Others are dropped.
  void AddSpace(uint64_t space_id, std::string_view tenant);
  void RemoveSpace(uint64_t space_id);

  bool is_recording() const { return is_recording_.load(std::memory_order_relaxed); }
  // REQUIRES: is_recording() was true.
  void Append(const IndexEvent& event);

  // Somebody of the tenant watches, until End(). *can_go_on: what is at *cursor is still here; else
  // *cursor is now. ResourceExhausted: the tenant has its share of the watchers.
  absl::Status Begin(std::string_view tenant, EventCursor* cursor, bool* can_go_on);
  void End(std::string_view tenant);
  // Adds at most `count` events from *cursor on, which moves past them. False: some of them are
  // gone, and *cursor is now. REQUIRES: between Begin() and End() of the tenant.
  bool Read(std::string_view tenant, EventCursor* cursor, size_t count,
            std::vector<IndexEvent>* events);

  void Report(MetricSink& sink) const;

 private:
  struct Stream {  // of a tenant
    EventCursor now;
    std::deque<IndexEvent> kept;  // the last before `now`
    size_t watchers = 0;
    absl::Time left = absl::InfiniteFuture();  // by the last who watched

    bool Has(const EventCursor& cursor) const {
      return cursor.epoch == now.epoch && now.next - kept.size() <= cursor.next &&
             cursor.next <= now.next;
    }
  };
  using Streams = absl::flat_hash_map<std::string, Stream>;

  Stream& StreamOf(std::string_view tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of streams that nobody watches: those that were left long enough ago.
  void DropLeft() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(Streams::iterator stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  const size_t events_max_;
  std::atomic<bool> is_recording_{false};  // there are streams
  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::string> tenants_ ABSL_GUARDED_BY(mutex_);  // by space
  Streams streams_ ABSL_GUARDED_BY(mutex_);                                     // by tenant
  size_t kept_count_ ABSL_GUARDED_BY(mutex_) = 0;                               // of all streams
  absl::Time looked_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();            // by DropLeft()
  TenantShares watchers_ ABSL_GUARDED_BY(mutex_){"watchers", limits::kWatchersMax};
  uint64_t events_total_ ABSL_GUARDED_BY(mutex_) = 0, resets_total_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
