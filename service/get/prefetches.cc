// SPDX-License-Identifier: Apache-2.0
#include "service/get/prefetches.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "service/limits.h"

namespace cairn {

Prefetches::Answer Prefetches::Begin(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                                     absl::Span<const WantedGroup> wanted) {
  Answer answer;
  for (const proto::BlockKey& key : keys) {
    std::vector<Item> to_read;
    bool is_there = !wanted.empty();
    for (const WantedGroup& group : wanted) {
      const ResidentPins pins = images_.Lookup({space_id, key}, group.group, group.slice);
      is_there = is_there && !pins.empty();
      const auto is_cold = [](const ResidentPin& pin) { return pin.bytes().empty(); };
      if (std::any_of(pins.begin(), pins.end(), is_cold)) {
        to_read.push_back({{space_id, key}, group.group, group.slice});
      }
    }
    if (!is_there) {
      ++answer.absent;
    } else if (to_read.empty()) {
      ++answer.in_memory;
    } else {
      const MutexLock lock(mutex_);
      std::erase_if(to_read, [&](const Item& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return waiting_.contains(item);
      });
      const bool is_taken = items_.size() + to_read.size() <= limits::kPrefetchesMax;
      ++(is_taken ? answer.on_their_way : answer.refused);
      refused_.Add(is_taken ? 0 : 1);
      if (is_taken) {
        items_.insert(items_.end(), to_read.begin(), to_read.end());
        waiting_.insert(to_read.begin(), to_read.end());
      }
    }
  }
  Pump();
  return answer;
}

void Prefetches::ReadAhead(const BlockName& block, uint16_t group, const codecs::Slice& slice,
                           uint64_t bytes) {
  const uint64_t count = std::clamp<uint64_t>(
      limits::kReadAheadBytesMax / std::max<uint64_t>(bytes, 1), 1, limits::kReadAheadBlocksMax);
  std::vector<BlockName> next = images_.LeasedAfter(block, count);
  if (next.empty()) {
    return;
  }
  {
    // Before what was named: somebody is at it.
    const MutexLock lock(mutex_);
    for (auto name = next.rbegin(); name != next.rend() && items_.size() < limits::kPrefetchesMax;
         ++name) {
      AddFirst({*name, group, slice});
    }
  }
  Pump();
}

void Prefetches::AddFirst(const Item& item) {
  if (waiting_.insert(item).second) {
    items_.push_front(item);
  }
}

Prefetches::Outcome Prefetches::Start(const Item& item) {
  const absl::StatusOr<SpaceRef> space = spaces_.Find(item.block.space_id);
  if (!space.ok()) {
    return Outcome::kDropped;
  }
  ResidentPins pins = images_.Lookup(item.block, item.group, item.slice);
  Outcome outcome = pins.empty() ? Outcome::kDropped : Outcome::kBegun;
  for (ResidentPin& pin : pins) {
    if (!pin.bytes().empty()) {
      continue;
    }
    switch (promotions_.Prefetch(std::move(pin), *space)) {
      case Promotions::Prefetched::kBegun:
        break;
      case Promotions::Prefetched::kLater:
        return Outcome::kLater;
      case Promotions::Prefetched::kNoRoom:
        outcome = Outcome::kDropped;
        break;
    }
  }
  return outcome;
}

void Prefetches::Pump() {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(is_pumping_, true)) {
      has_room_come_ = true;
      return;
    }
  }
  for (;;) {  // ends: each turn takes an item, but for one each time that room has come
    Item item;
    {
      const MutexLock lock(mutex_);
      if (items_.empty()) {
        is_pumping_ = has_room_come_ = false;
        return;
      }
      item = items_.front();
      items_.pop_front();
      waiting_.erase(item);
    }
    const Outcome outcome = Start(item);
    begun_.Add(outcome == Outcome::kBegun ? 1 : 0);
    dropped_.Add(outcome == Outcome::kDropped ? 1 : 0);
    if (outcome == Outcome::kLater) {
      const MutexLock lock(mutex_);
      AddFirst(item);
      if (!std::exchange(has_room_come_, false)) {
        is_pumping_ = false;
        return;
      }
    }
  }
}

void Prefetches::Report(MetricSink& sink) const {
  const auto outcome = [&](std::string_view name, const Counter& counter) {
    const MetricLabel labels[] = {{"outcome", name}};
    sink.AddCounter("cairn_prefetches_total",
                    "Slices of blocks to be read ahead of gets, by what became of them.", labels,
                    counter.Value());
  };
  outcome("begun", begun_);
  outcome("dropped", dropped_);
  outcome("refused", refused_);
  const MutexLock lock(mutex_);
  sink.AddGauge("cairn_waiting_prefetches", "Slices of blocks that wait to be read ahead of gets.",
                {}, static_cast<double>(items_.size()));
}

}  // namespace cairn
