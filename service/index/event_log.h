// SPDX-License-Identifier: Apache-2.0
#pragma once
// Events for watchers: blocks that enter or leave tiers. The log keeps the last events of each
// tenant, with consecutive numbers. The index never waits for readers. A reader that is so slow
// that it has missed events is told so, and continues with new ones.
//
// Events of a tenant are kept while it has a watcher, and for a while after the last watcher left.
// All tenants together have one limit. At the limit, the tenant with the most events drops its
// oldest event. Each tenant has its own numbers. So a tenant learns nothing about others, and a
// busy tenant does not remove the events of a quiet one.
//
// Thread-safety: Thread-safe. Append() is called with the index's lock held. AddSpace() and
// RemoveSpace() are called with the lock of Spaces held. Order of locks: Spaces, index, EventLog.

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "proto/block_key.h"
#include "service/index/tenant_shares.h"
#include "service/limits.h"
#include "service/tier/block_name.h"
#include "service/tier/image_facts.h"
#include "service/tier/tier_extent.h"

namespace cairn {

// A block got its first image in a tier, or lost its last one there.
struct IndexEvent {
  BlockName name;
  bool is_stored = false;
  TierId tier = TierId::kHost;
  uint16_t tokens = 0;
  proto::BlockKey parent{};  // all zero: unknown
  uint64_t first_position = 0;
  EngineNamesRef names = {};  // null: none

  // The names are shared with the block and may outlive it.
  uint64_t names_bytes() const { return names == nullptr ? 0 : names->bytes(); }
};

// Counts the events of a batch until it is full.
class EventBatchRoom {
 public:
  explicit EventBatchRoom(size_t count_max = limits::kEventsPerBatchMax) : count_max_(count_max) {}

  void Take(const IndexEvent& event) {
    ++count_;
    names_bytes_ += event.names_bytes();
  }
  bool is_full() const {
    return count_ >= count_max_ || names_bytes_ >= limits::kEventNamesPerBatchMax;
  }

 private:
  const size_t count_max_;
  size_t count_ = 0;
  uint64_t names_bytes_ = 0;
};

// The position of a reader. A tenant gets a new epoch after a restart, and after its events were
// dropped because nobody watched. So a position from an old epoch is recognized.
struct EventCursor {
  uint64_t epoch = 0;
  uint64_t next = 0;
};

class EventLog {
 public:
  explicit EventLog(const Clock& clock, size_t events_max = limits::kEventsMax,
                    uint64_t names_bytes_max = limits::kEventNamesBytesMax)
      : clock_(clock), events_max_(events_max), names_bytes_max_(names_bytes_max) {}

  // Assigns the events of the space to the tenant, until RemoveSpace(). Events of unknown spaces
  // are dropped.
  void AddSpace(uint64_t space_id, std::string_view tenant);
  void RemoveSpace(uint64_t space_id);

  bool is_recording() const { return is_recording_.load(std::memory_order_relaxed); }
  // REQUIRES: is_recording() was true.
  void Append(IndexEvent event);
  // Returns the tenant's spaces.
  absl::flat_hash_set<uint64_t> SpacesOf(std::string_view tenant) const;

  // Begins watching for the tenant, until End(). If all events from *cursor on are still kept, sets
  // *can_go_on to true. Otherwise sets it to false, and *cursor to the next new event. Errors:
  // ResourceExhausted (the tenant has too many watchers).
  absl::Status Begin(std::string_view tenant, EventCursor* cursor, bool* can_go_on);
  void End(std::string_view tenant);
  // Adds events from *cursor on, as many as `room` has space for, and moves *cursor past them. If
  // some of these events were dropped, returns false and sets *cursor to the next new event.
  // REQUIRES: between Begin() and End() of the tenant.
  bool Read(std::string_view tenant, EventCursor* cursor, EventBatchRoom room,
            std::vector<IndexEvent>* events);

  void Report(MetricSink& sink) const;

 private:
  struct Stream {  // the events of one tenant
    EventCursor now;
    std::deque<IndexEvent> kept;  // the last events before `now`
    size_t watchers = 0;
    absl::Time left = absl::InfiniteFuture();  // the time at which the last watcher left

    bool Has(const EventCursor& cursor) const {
      return cursor.epoch == now.epoch && now.next - kept.size() <= cursor.next &&
             cursor.next <= now.next;
    }
  };
  using Streams = absl::flat_hash_map<std::string, Stream>;

  Stream& StreamOf(std::string_view tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops the oldest event of the tenant that has the most events.
  void DropOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops the streams that had no watcher for too long.
  void DropLeft() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(Streams::iterator stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  const size_t events_max_;
  const uint64_t names_bytes_max_;
  std::atomic<bool> is_recording_{false};  // at least one stream exists
  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::string> tenants_ ABSL_GUARDED_BY(mutex_);  // keyed by space
  Streams streams_ ABSL_GUARDED_BY(mutex_);                                     // keyed by tenant
  size_t kept_count_ ABSL_GUARDED_BY(mutex_) = 0;     // events of all streams
  uint64_t names_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of their names
  // The time of the last DropLeft().
  absl::Time looked_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  TenantShares watchers_ ABSL_GUARDED_BY(mutex_){"watchers", limits::kWatchersMax};
  uint64_t events_total_ ABSL_GUARDED_BY(mutex_) = 0, resets_total_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
