// SPDX-License-Identifier: Apache-2.0
#include "service/get/prefetches.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "service/limits.h"

namespace cairn {

Prefetches::Answer Prefetches::QueueReads(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                                          absl::Span<const WantedGroup> wanted) {
  Answer answer;
  const absl::StatusOr<SpaceRef> space = spaces_.Find(space_id);
  if (!space.ok() || wanted.empty()) {
    answer.absent = static_cast<uint32_t>(keys.size());
    answer.absent_keys.assign(keys.begin(), keys.end());
    return answer;
  }
  const std::string tenant((*space)->tenant());
  const std::vector<BlockIndex::Where> places = index_.Locate(space_id, keys, wanted);
  std::vector<Item> to_read;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto of_key = absl::MakeConstSpan(places).subspan(i * wanted.size(), wanted.size());
    if (std::find(of_key.begin(), of_key.end(), BlockIndex::Where::kNowhere) != of_key.end()) {
      ++answer.absent;
      answer.absent_keys.push_back(keys[i]);
      continue;
    }
    to_read.clear();
    for (size_t group = 0; group < wanted.size(); ++group) {
      if (of_key[group] == BlockIndex::Where::kCold) {
        to_read.push_back({{space_id, keys[i]}, wanted[group].group, wanted[group].slice, tenant});
      }
    }
    if (to_read.empty()) {
      ++answer.in_memory;
      continue;
    }
    const MutexLock lock(mutex_);
    std::erase_if(to_read, [&](const Item& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return waiting_.contains(item);
    });
    // After the first refusal, the rest of the call is refused, too. The limit counts only one
    // refusal.
    const bool is_taken = answer.refused > 0 ? shares_.FreeFor(tenant) >= to_read.size()
                                             : shares_.CheckRoom(tenant, to_read.size()).ok();
    ++(is_taken ? answer.on_their_way : answer.refused);
    refused_.Add(is_taken ? 0 : 1);
    if (is_taken) {
      for (Item& item : to_read) {
        AddItem(std::move(item), /*is_first=*/false);
      }
    }
  }
  StartReads();
  return answer;
}

void Prefetches::ReadAhead(const BlockName& block, uint16_t group, const codecs::Slice& slice,
                           uint64_t bytes) {
  const uint64_t count = std::clamp<uint64_t>(
      limits::kReadAheadBytesMax / std::max<uint64_t>(bytes, 1), 1, limits::kReadAheadBlocksMax);
  std::vector<BlockName> next = index_.LeasedAfter(block, count);
  if (next.empty()) {
    return;
  }
  const absl::StatusOr<SpaceRef> space = spaces_.Find(block.space_id);
  if (!space.ok()) {
    return;
  }
  const std::string tenant((*space)->tenant());
  {
    // Put them before blocks that clients named: a reader is about to need these.
    const MutexLock lock(mutex_);
    for (auto name = next.rbegin(); name != next.rend() && shares_.FreeFor(tenant) > 0; ++name) {
      AddItem({*name, group, slice, tenant}, /*is_first=*/true);
    }
  }
  StartReads();
}

void Prefetches::AddItem(Item item, bool is_first) {
  if (!waiting_.insert(item).second) {
    return;
  }
  shares_.Add(item.tenant, 1);
  items_.insert(is_first ? items_.begin() : items_.end(), std::move(item));
}

Prefetches::Outcome Prefetches::StartRead(const Item& item) {
  const absl::StatusOr<SpaceRef> space = spaces_.Find(item.block.space_id);
  if (!space.ok()) {
    return Outcome::kDropped;
  }
  CopyPins pins = index_.Lookup(item.block, item.group, item.slice);
  Outcome outcome = pins.empty() ? Outcome::kDropped : Outcome::kBegun;
  for (CopyPin& pin : pins) {
    if (!pin.bytes().empty()) {
      continue;
    }
    switch (promotions_.PrefetchCopy(std::move(pin), *space)) {
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

void Prefetches::StartReads() {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(is_starting_, true)) {
      has_room_come_ = true;
      return;
    }
  }
  for (;;) {  // each iteration takes an item, or repeats after has_room_come_
    Item item;
    {
      const MutexLock lock(mutex_);
      if (items_.empty()) {
        is_starting_ = has_room_come_ = false;
        return;
      }
      item = std::move(items_.front());
      items_.pop_front();
      waiting_.erase(item);
      shares_.Remove(item.tenant, 1);
    }
    const Outcome outcome = StartRead(item);
    begun_.Add(outcome == Outcome::kBegun ? 1 : 0);
    dropped_.Add(outcome == Outcome::kDropped ? 1 : 0);
    if (outcome == Outcome::kLater) {
      const MutexLock lock(mutex_);
      AddItem(std::move(item), /*is_first=*/true);
      if (!std::exchange(has_room_come_, false)) {
        is_starting_ = false;
        return;
      }
    }
  }
}

void Prefetches::Report(MetricSink& sink) const {
  const auto outcome = [&](std::string_view name, const Counter& counter) {
    const MetricLabel labels[] = {{"outcome", name}};
    sink.AddCounter("cairn_prefetches_total", "Slices of blocks to prefetch, by outcome.", labels,
                    counter.Value());
  };
  outcome("begun", begun_);
  outcome("dropped", dropped_);
  outcome("refused", refused_);
  const MutexLock lock(mutex_);
  shares_.Report(sink);
  sink.AddGauge("cairn_waiting_prefetches", "Slices of blocks that wait to be prefetched.", {},
                static_cast<double>(items_.size()));
}

}  // namespace cairn
