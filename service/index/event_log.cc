// SPDX-License-Identifier: Apache-2.0
#include "service/index/event_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/random_bytes.h"
#include "base/status.h"
#include "base/text.h"

namespace cairn {
namespace {

constexpr absl::Duration kKept = absl::Milliseconds(limits::kEventsKeptMs);
constexpr absl::Duration kLookEach = absl::Seconds(1);
// Streams without watchers are kept, too.
constexpr size_t kStreamsMax = 2 * limits::kWatchersMax;

}  // namespace

void EventLog::AddSpace(uint64_t space_id, std::string_view tenant) {
  const MutexLock lock(mutex_);
  tenants_.emplace(space_id, tenant);
}

void EventLog::RemoveSpace(uint64_t space_id) {
  const MutexLock lock(mutex_);
  tenants_.erase(space_id);
}

absl::flat_hash_set<uint64_t> EventLog::SpacesOf(std::string_view tenant) const {
  const MutexLock lock(mutex_);
  absl::flat_hash_set<uint64_t> spaces;
  for (const auto& [space_id, owner] : tenants_) {
    if (owner == tenant) {
      spaces.insert(space_id);
    }
  }
  return spaces;
}

void EventLog::Append(IndexEvent event) {
  const MutexLock lock(mutex_);
  if (const absl::Time now = clock_.Now(); now - looked_ >= kLookEach) {
    looked_ = now;
    DropLeft();
  }
  const auto tenant = tenants_.find(event.name.space_id);
  if (tenant == tenants_.end()) {
    return;
  }
  const auto stream = streams_.find(tenant->second);
  if (stream == streams_.end()) {
    return;
  }
  const uint64_t names_bytes = event.names_bytes();
  while (kept_count_ > 0 &&
         (kept_count_ >= events_max_ || names_bytes_ + names_bytes > names_bytes_max_)) {
    DropOldest();
  }
  names_bytes_ += names_bytes;
  stream->second.kept.push_back(std::move(event));
  ++stream->second.now.next;
  ++kept_count_;
  ++events_total_;
}

void EventLog::DropOldest() {
  const auto most = std::ranges::max_element(
      streams_, {}, [](const auto& stream) { return stream.second.kept.size(); });
  names_bytes_ -= most->second.kept.front().names_bytes();
  most->second.kept.pop_front();
  --kept_count_;
}

void EventLog::DropLeft() {
  const absl::Time now = clock_.Now();
  for (auto stream = streams_.begin(); stream != streams_.end();) {
    const auto next = std::next(stream);
    if (stream->second.watchers == 0 && now - stream->second.left > kKept) {
      Drop(stream);
    }
    stream = next;
  }
}

void EventLog::Drop(Streams::iterator stream) {
  kept_count_ -= stream->second.kept.size();
  for (const IndexEvent& event : stream->second.kept) {
    names_bytes_ -= event.names_bytes();
  }
  streams_.erase(stream);
  is_recording_.store(!streams_.empty(), std::memory_order_relaxed);
}

EventLog::Stream& EventLog::StreamOf(std::string_view tenant) {
  if (const auto found = streams_.find(ToAbsl(tenant)); found != streams_.end()) {
    return found->second;
  }
  if (streams_.size() >= kStreamsMax) {
    Drop(std::ranges::min_element(streams_, {}, [](const auto& stream) {
      return stream.second.watchers > 0 ? absl::InfiniteFuture() : stream.second.left;
    }));
  }
  Stream& stream = streams_[ToAbsl(tenant)];
  const auto bytes = RandomBytes<sizeof(stream.now.epoch)>();
  std::memcpy(&stream.now.epoch, bytes.data(), bytes.size());
  stream.now.epoch |= 1;  // never 0
  is_recording_.store(true, std::memory_order_relaxed);
  return stream;
}

absl::Status EventLog::Begin(std::string_view tenant, EventCursor* cursor, bool* can_go_on) {
  const MutexLock lock(mutex_);
  CAIRN_RETURN_IF_ERROR(watchers_.CheckRoom(tenant, 1));
  watchers_.Add(tenant, 1);
  DropLeft();
  Stream& stream = StreamOf(tenant);
  ++stream.watchers;
  *can_go_on = stream.Has(*cursor);
  if (!*can_go_on) {
    *cursor = stream.now;
  }
  return absl::OkStatus();
}

void EventLog::End(std::string_view tenant) {
  const MutexLock lock(mutex_);
  watchers_.Remove(tenant, 1);
  Stream& stream = StreamOf(tenant);
  if (--stream.watchers == 0) {
    stream.left = clock_.Now();
  }
}

bool EventLog::Read(std::string_view tenant, EventCursor* cursor, EventBatchRoom room,
                    std::vector<IndexEvent>* events) {
  const MutexLock lock(mutex_);
  const Stream& stream = StreamOf(tenant);
  if (!stream.Has(*cursor)) {
    *cursor = stream.now;
    ++resets_total_;
    return false;
  }
  const uint64_t first = stream.now.next - stream.kept.size();
  for (; cursor->next < stream.now.next && !room.is_full(); ++cursor->next) {
    events->push_back(stream.kept[cursor->next - first]);
    room.Take(events->back());
  }
  return true;
}

void EventLog::Report(MetricSink& sink) const {
  const MutexLock lock(mutex_);
  sink.AddGauge("cairn_event_watchers", "WatchEvents calls.", {},
                static_cast<double>(watchers_.total()));
  sink.AddCounter("cairn_events_total",
                  "Blocks that entered or left a tier while there were watchers.", {},
                  events_total_);
  sink.AddCounter("cairn_event_resets_total", "Watchers that were too slow and got a reset.", {},
                  resets_total_);
  watchers_.Report(sink);
}

}  // namespace cairn
