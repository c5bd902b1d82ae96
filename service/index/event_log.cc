// SPDX-License-Identifier: Apache-2.0
#include "service/index/event_log.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/random_bytes.h"

namespace cairn {

void EventLog::Append(const IndexEvent& event) {
  const MutexLock lock(mutex_);
  if (watchers_ == 0 && clock_.Now() - left_ > absl::Milliseconds(limits::kEventsKeptMs)) {
    is_recording_.store(false, std::memory_order_relaxed);
    now_.epoch = 0;
    ring_ = {};
  }
  if (now_.epoch == 0) {
    return;
  }
  ring_[now_.next++ % events_max_] = event;
  ++events_total_;
}

bool EventLog::Has(const EventCursor& cursor) const {
  const uint64_t first = std::max(begin_, now_.next - std::min(now_.next, events_max_));
  return cursor.epoch == now_.epoch && first <= cursor.next && cursor.next <= now_.next;
}

absl::Status EventLog::Begin(EventCursor* cursor, bool* can_go_on) {
  const MutexLock lock(mutex_);
  if (watchers_ == limits::kWatchersMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("events: ", limits::kWatchersMax, " watch already"));
  }
  ++watchers_;
  if (now_.epoch == 0) {
    const auto bytes = RandomBytes<sizeof(now_.epoch)>();
    std::memcpy(&now_.epoch, bytes.data(), bytes.size());
    now_.epoch |= 1;  // never 0
    begin_ = now_.next;
    ring_.resize(events_max_);
    is_recording_.store(true, std::memory_order_relaxed);
  }
  *can_go_on = Has(*cursor);
  if (!*can_go_on) {
    *cursor = now_;
  }
  return absl::OkStatus();
}

void EventLog::End() {
  const MutexLock lock(mutex_);
  if (--watchers_ == 0) {
    left_ = clock_.Now();
  }
}

bool EventLog::Read(EventCursor* cursor, size_t count, std::vector<IndexEvent>* events) {
  const MutexLock lock(mutex_);
  if (!Has(*cursor)) {
    *cursor = now_;
    ++resets_total_;
    return false;
  }
  const uint64_t end = std::min<uint64_t>(now_.next, cursor->next + count);
  for (; cursor->next < end; ++cursor->next) {
    events->push_back(ring_[cursor->next % events_max_]);
  }
  return true;
}

void EventLog::Report(MetricSink& sink) const {
  const MutexLock lock(mutex_);
  sink.AddGauge("cairn_event_watchers", "Calls that watch blocks come and go.", {},
                static_cast<double>(watchers_));
  sink.AddCounter("cairn_events_total", "Blocks that came or went while somebody watched.", {},
                  events_total_);
  sink.AddCounter("cairn_event_resets_total",
                  "Watchers that were too slow, and were told to begin again.", {}, resets_total_);
}

}  // namespace cairn
