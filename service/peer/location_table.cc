// SPDX-License-Identifier: Apache-2.0
#include "service/peer/location_table.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace cairn {

LocationTable::LocationTable(uint64_t bytes)
    : buckets_per_part_(bytes / sizeof(Bucket) / kParts),
      // All zero is empty. calloc() gives large blocks as pages that exist once they are written.
      buckets_(static_cast<Bucket*>(std::calloc(buckets_per_part_ * kParts, sizeof(Bucket)))) {
  CAIRN_CHECK(buckets_per_part_ > 0 && buckets_ != nullptr);
}

// --- Entries and buckets -------------------------------------------------------------------------

bool LocationTable::Entry::Drop(uint16_t member) {
  const auto found = std::ranges::find(holders, member, &Holder::member);
  if (found == holders.end()) return false;
  std::copy(found + 1, holders.end(), found);
  holders.back() = Holder();
  return true;
}

size_t LocationTable::Bucket::Find(const proto::LocationName& name) const {
  for (size_t i = 0; i < kWays && !entries[i].is_empty(); ++i) {
    if (entries[i].name == name) return i;
  }
  return kWays;
}

void LocationTable::Bucket::Erase(size_t index) {
  std::copy(entries.begin() + index + 1, entries.end(), entries.begin() + index);
  entries.back() = Entry();
}

size_t LocationTable::IndexOf(const proto::LocationName& name) const {
  uint64_t hash = 0;
  std::memcpy(&hash, name.data(), sizeof(hash));
  const auto wide = static_cast<unsigned __int128>(hash) * (buckets_per_part_ * kParts);
  return static_cast<size_t>(wide >> 64);
}

// --- The table -----------------------------------------------------------------------------------

void LocationTable::Add(const proto::LocationName& name, Holder holder) {
  CAIRN_CHECK(holder.member != 0);
  const size_t index = IndexOf(name);
  const MutexLock lock(LockOf(index));
  Bucket& bucket = buckets_[index];
  size_t place = bucket.Find(name);
  Entry entry = {.name = name, .holders = {}};
  if (place < kWays) {
    entry = bucket.entries[place];
    entry.Drop(holder.member);
  } else {
    place = kWays - 1;
    const bool is_full = !bucket.entries[place].is_empty();
    evicted_.Add(is_full ? 1 : 0);
    count_.fetch_add(is_full ? 0 : 1, std::memory_order_relaxed);
  }
  std::copy_backward(entry.holders.begin(), entry.holders.end() - 1, entry.holders.end());
  entry.holders[0] = holder;
  std::copy_backward(bucket.entries.begin(), bucket.entries.begin() + place,
                     bucket.entries.begin() + place + 1);
  bucket.entries[0] = entry;
}

void LocationTable::Remove(const proto::LocationName& name, uint16_t member) {
  const size_t index = IndexOf(name);
  const MutexLock lock(LockOf(index));
  Bucket& bucket = buckets_[index];
  const size_t place = bucket.Find(name);
  if (place == kWays || !bucket.entries[place].Drop(member)) return;
  if (!bucket.entries[place].is_empty()) return;
  bucket.Erase(place);
  count_.fetch_sub(1, std::memory_order_relaxed);
}

void LocationTable::Forget(uint16_t member) {
  for (size_t part = 0; part < kParts; ++part) {
    const MutexLock lock(locks_[part]);
    for (size_t i = 0; i < buckets_per_part_; ++i) {
      Bucket& bucket = buckets_[part * buckets_per_part_ + i];
      for (size_t place = 0; place < kWays && !bucket.entries[place].is_empty();) {
        Entry& entry = bucket.entries[place];
        if (entry.Drop(member) && entry.is_empty()) {
          bucket.Erase(place);
          count_.fetch_sub(1, std::memory_order_relaxed);
        } else {
          ++place;
        }
      }
    }
  }
}

LocationTable::Holders LocationTable::Find(const proto::LocationName& name) const {
  const size_t index = IndexOf(name);
  const MutexLock lock(LockOf(index));
  const Bucket& bucket = buckets_[index];
  const size_t place = bucket.Find(name);
  Holders found;
  if (place == kWays) return found;
  for (const Holder& holder : bucket.entries[place].holders) {
    if (holder.member != 0) found.push_back(holder);
  }
  return found;
}

void LocationTable::Report(MetricSink& sink) const {
  sink.AddGauge("cairn_locations", "Blocks of the cluster whose holders this daemon knows.", {},
                static_cast<double>(count()));
  sink.AddGauge("cairn_locations_bytes", "Bytes of the entries of these blocks.", {},
                static_cast<double>(count() * sizeof(Entry)));
  sink.AddCounter("cairn_locations_evicted_total",
                  "Blocks whose holders were forgotten to make room for others.", {},
                  evicted_.Value());
}

}  // namespace cairn
