// SPDX-License-Identifier: Apache-2.0
#include "service/remote/remote_table.h"

#include <algorithm>

namespace cairn {
namespace {

BlockName NameOf(const RemoteRun& run, size_t index) { return {run.space->id(), run.keys[index]}; }

template <typename Places>
void Remove(Places& places, const RemoteRun* run) {
  places.erase(std::remove_if(places.begin(), places.end(),
                              [run](const auto& place) { return place.run.get() == run; }),
               places.end());
}

}  // namespace

uint64_t BytesLeft(RemoteRun& run, size_t index, uint64_t max) {
  const MutexLock lock(run.mutex);
  return run.bytes_left.empty() ? max : std::min(max, run.bytes_left[index]);
}

bool TakeBytes(RemoteRun& run, size_t index, uint64_t bytes) {
  const MutexLock lock(run.mutex);
  if (run.bytes_left.empty()) return true;
  if (bytes > run.bytes_left[index]) return false;
  run.bytes_left[index] -= bytes;
  return true;
}

bool RemoteTable::Add(RemoteLease&& lease, absl::Time expires) {
  size_t count = 0;
  for (const auto& run : lease.runs) count += run->keys.size();
  const MutexLock lock(mutex_);
  if (block_count_ + count > blocks_max_ || leases_.contains(lease.token)) return false;
  block_count_ += count;
  for (const auto& run : lease.runs) {
    for (size_t i = 0; i < run->keys.size(); ++i) {
      blocks_[NameOf(*run, i)].push_back({.run = run, .index = i});
    }
  }
  const proto::LeaseToken token = lease.token;
  leases_.emplace(token, Entry{std::move(lease), expires});
  return true;
}

RemoteTable::Place RemoteTable::Find(const BlockName& block) const {
  const MutexLock lock(mutex_);
  const auto found = blocks_.find(block);
  return found == blocks_.end() || deleting_.contains(block) ? Place() : found->second.back();
}

void RemoteTable::Forget(const BlockName& block, const RemoteRun* run) {
  const MutexLock lock(mutex_);
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return;
  Remove(found->second, run);
  if (found->second.empty()) blocks_.erase(found);
}

void RemoteTable::Forget(uint64_t space_id) {
  const MutexLock lock(mutex_);
  absl::erase_if(blocks_,
                 [space_id](const auto& block) { return block.first.space_id == space_id; });
}

void RemoteTable::Forget(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                         absl::Time until) {
  const MutexLock lock(mutex_);
  for (const proto::BlockKey& key : keys) {
    const BlockName block{space_id, key};
    blocks_.erase(block);
    if (deleting_.size() < kDeletingMax || deleting_.contains(block)) deleting_[block] = until;
  }
}

bool RemoteTable::IsDeleting(const BlockName& block) const {
  const MutexLock lock(mutex_);
  return deleting_.contains(block);
}

size_t RemoteTable::CountBeforeDeleting(uint64_t space_id,
                                        absl::Span<const proto::BlockKey> keys) const {
  const MutexLock lock(mutex_);
  if (deleting_.empty()) return keys.size();
  const auto* const first = std::ranges::find_if(
      keys, [&](const proto::BlockKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return deleting_.contains({space_id, key});
      });
  return static_cast<size_t>(first - keys.begin());
}

RemoteLease RemoteTable::TakeLocked(absl::flat_hash_map<proto::LeaseToken, Entry>::iterator found) {
  RemoteLease lease = std::move(found->second.lease);
  leases_.erase(found);
  for (const auto& run : lease.runs) {
    block_count_ -= run->keys.size();
    for (size_t i = 0; i < run->keys.size(); ++i) {
      const auto block = blocks_.find(NameOf(*run, i));
      if (block == blocks_.end()) continue;
      Remove(block->second, run.get());
      if (block->second.empty()) blocks_.erase(block);
    }
  }
  return lease;
}

template <typename Predicate>
RemoteTable::Leases RemoteTable::TakeIf(Predicate predicate) {
  Leases taken;
  const MutexLock lock(mutex_);
  for (auto entry = leases_.begin(); entry != leases_.end();) {
    const auto next = std::next(entry);
    if (predicate(entry->second)) taken.push_back(TakeLocked(entry));
    entry = next;
  }
  return taken;
}

RemoteTable::Leases RemoteTable::Release(std::string_view tenant,
                                         absl::Span<const proto::LeaseToken> tokens) {
  Leases taken;
  const MutexLock lock(mutex_);
  for (const proto::LeaseToken& token : tokens) {
    const auto found = leases_.find(token);
    if (found != leases_.end() && found->second.lease.tenant == tenant) {
      taken.push_back(TakeLocked(found));
    }
  }
  return taken;
}

RemoteTable::Leases RemoteTable::EndSession(uint64_t session_id) {
  return TakeIf([=](const Entry& entry) { return entry.lease.session_id == session_id; });
}

RemoteTable::Leases RemoteTable::Expire(absl::Time now) {
  {
    const MutexLock lock(mutex_);
    absl::erase_if(deleting_, [now](const auto& block) { return block.second <= now; });
  }
  return TakeIf([=](const Entry& entry) { return entry.expires <= now; });
}

RemoteTable::Leases RemoteTable::Clear() {
  return TakeIf([](const Entry&) { return true; });
}

size_t RemoteTable::block_count() const {
  const MutexLock lock(mutex_);
  return block_count_;
}

}  // namespace cairn
