// SPDX-License-Identifier: Apache-2.0
#include "service/upkeep/durable_puts.h"

#include <algorithm>

#include "base/check.h"
#include "service/limits.h"

namespace cairn {
namespace {

using proto::Durability;

// The answer is sent before the deadline, by this part of the remaining time, but at most by
// kMarginMax.
constexpr int kMarginPart = 8;
constexpr absl::Duration kMarginMax = absl::Milliseconds(100);
// The puts that are tried again when the tier has no room.
constexpr size_t kTriedAgainMax = 16;
// The number of times that a put's chain is examined while the block that it waits for changes.
constexpr int kLooksMax = 8;

}  // namespace

DurablePuts::DurablePuts(BlockIndex& index, CopyTier* tier, const Clock& clock,
                         std::function<void()> hurry)
    : index_(index), tier_(tier), clock_(clock), hurry_(std::move(hurry)) {}

DurablePuts::~DurablePuts() {
  const MutexLock lock(mutex_);
  CAIRN_CHECK(waiters_.empty(), "a put outlives upkeep");
}

void DurablePuts::AwaitDurable(const BlockName& block, const WantedGroup& wanted,
                               absl::Time deadline, Done done) {
  const absl::Time now = clock_.Now();
  Durability refusal = tier_ == nullptr ? Durability::kNoTier : Durability::kNotAsked;
  Id id = 0;
  {
    const MutexLock lock(mutex_);
    if (is_stopping_) {
      refusal = Durability::kStopping;
    } else if (waiters_.size() >= limits::kDurableWaitsMax) {
      refusal = Durability::kNoRoom;
    }
    if (refusal == Durability::kNotAsked) {
      id = ++last_id_;
      const absl::Time answer_at = deadline - std::min(kMarginMax, (deadline - now) / kMarginPart);
      waiters_.emplace(id, Waiter{{block, wanted}, answer_at, std::move(done), std::nullopt});
      deadlines_.emplace(answer_at, id);
    }
  }
  if (refusal != Durability::kNotAsked) {
    ended_as_[static_cast<size_t>(refusal)].Add();
    return done(refusal);
  }
  Try(id);
  hurry_();
}

void DurablePuts::Try(Id id) {
  for (int looks = 0; looks < kLooksMax; ++looks) {
    Images images;
    {
      const MutexLock lock(mutex_);
      const auto found = waiters_.find(id);
      if (found == waiters_.end() || found->second.is_syncing) {
        return;
      }
      images = found->second.images;
    }
    const uint64_t lost = tier_ == nullptr ? 0 : index_.figures(tier_->id()).lost_count;
    const WriteBackProgress progress =
        index_.Expedite(images.block, images.wanted.group, images.wanted.slice);
    switch (progress.state) {
      case WriteBackProgress::State::kThere:
        if (BeginSync(id)) {
          tier_->Sync(progress.parts,
                      [this, id, lost](const absl::Status& status) { Synced(id, status, lost); });
        }
        return;
      case WriteBackProgress::State::kOnItsWay:
        if (WaitsAnew(id, progress.block)) {
          continue;  // the block may have been written before the put waited for it
        }
        return;
      case WriteBackProgress::State::kTooLarge:
        return Answer(
            id, progress.block == images.block ? Durability::kTooLarge : Durability::kAncestors);
      case WriteBackProgress::State::kGone:
        return Answer(id, Durability::kGone);
      case WriteBackProgress::State::kNoTier:
        return Answer(id, Durability::kReadOnly);
    }
  }
}

bool DurablePuts::WaitsAnew(Id id, const BlockName& block) {
  const MutexLock lock(mutex_);
  const auto found = waiters_.find(id);
  if (found == waiters_.end() || found->second.waits_for == block) {
    return false;
  }
  StopWaiting(id, found->second);
  found->second.waits_for = block;
  by_block_[block].insert(id);
  return true;
}

bool DurablePuts::BeginSync(Id id) {
  const MutexLock lock(mutex_);
  const auto found = waiters_.find(id);
  if (found == waiters_.end() || found->second.is_syncing) {
    return false;
  }
  StopWaiting(id, found->second);
  found->second.is_syncing = true;
  syncs_.Enter();
  return true;
}

void DurablePuts::Synced(Id id, const absl::Status& status, uint64_t lost) {
  if (status.ok() && index_.figures(tier_->id()).lost_count != lost) {
    // One of the lost copies may be an image of this put, so try again. The sync covers only copies
    // that the tier still has.
    EndSync(id);
    Try(id);
  } else {
    Answer(id, status.ok() ? Durability::kDurable : Durability::kReadOnly);
  }
  syncs_.Leave();
}

void DurablePuts::EndSync(Id id) {
  const MutexLock lock(mutex_);
  if (const auto found = waiters_.find(id); found != waiters_.end()) {
    found->second.is_syncing = false;
  }
}

void DurablePuts::StopWaiting(Id id, Waiter& waiter) {
  if (!waiter.waits_for.has_value()) {
    return;
  }
  const auto others = by_block_.find(*waiter.waits_for);
  others->second.erase(id);
  if (others->second.empty()) {
    by_block_.erase(others);
  }
  waiter.waits_for.reset();
}

void DurablePuts::Answer(Id id, Durability durability) {
  Done done;
  {
    const MutexLock lock(mutex_);
    const auto found = waiters_.find(id);
    if (found == waiters_.end()) {
      return;  // the deadline has passed, or the daemon stops
    }
    StopWaiting(id, found->second);
    deadlines_.erase({found->second.answer_at, id});
    done = std::move(found->second.done);
    waiters_.erase(found);
  }
  ended_as_[static_cast<size_t>(durability)].Add();
  done(durability);
}

void DurablePuts::Tried(const BlockName& block, const absl::Status& status) {
  std::vector<Id> ids;
  {
    const MutexLock lock(mutex_);
    has_no_room_ = has_no_room_ && !status.ok();
    if (const auto found = by_block_.find(block); found != by_block_.end()) {
      ids.assign(found->second.begin(), found->second.end());
      for (const Id id : ids) {
        waiters_.at(id).waits_for.reset();
      }
      by_block_.erase(found);
    }
  }
  for (const Id id : ids) {
    Try(id);
  }
}

void DurablePuts::Refused(const absl::Status& status) {
  const bool takes_none = absl::IsUnavailable(status);
  std::vector<Id> ids;
  {
    const MutexLock lock(mutex_);
    has_no_room_ = !takes_none;
    for (const auto& [id, waiter] : waiters_) {
      if (!waiter.is_syncing && (takes_none || ids.size() < kTriedAgainMax)) {
        ids.push_back(id);
      }
    }
  }
  for (const Id id : ids) {
    if (takes_none) {
      Answer(id, Durability::kReadOnly);
    } else {
      Try(id);  // the refused image is now at the end of the queue
    }
  }
}

absl::Time DurablePuts::AnswerLate(absl::Time now) {
  for (;;) {  // each iteration answers a put
    Id id = 0;
    Durability durability = Durability::kLate;
    {
      const MutexLock lock(mutex_);
      if (deadlines_.empty() || deadlines_.begin()->first > now) {
        return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
      }
      id = deadlines_.begin()->second;
      const Waiter& waiter = waiters_.at(id);
      if (has_no_room_ && !waiter.is_syncing) {
        durability = Durability::kNoRoom;
      } else if (waiter.waits_for.has_value() && *waiter.waits_for != waiter.images.block) {
        durability = Durability::kAncestors;
      }
    }
    Answer(id, durability);
  }
}

void DurablePuts::Stop() {
  std::vector<Id> ids;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    for (const auto& [id, waiter] : waiters_) {
      ids.push_back(id);
    }
  }
  for (const Id id : ids) {
    Answer(id, Durability::kStopping);
  }
  syncs_.Await();  // ends, because a tier completes every sync
}

size_t DurablePuts::count() const {
  const MutexLock lock(mutex_);
  return waiters_.size();
}

void DurablePuts::Report(MetricSink& sink) const {
  for (size_t i = static_cast<size_t>(Durability::kDurable); i < ended_as_.size(); ++i) {
    const MetricLabel labels[] = {{"outcome", Name(static_cast<Durability>(i))}};
    sink.AddCounter("cairn_durable_puts_total", "Stored puts that asked to be durable, by outcome.",
                    labels, ended_as_[i].Value());
  }
  sink.AddGauge("cairn_waiting_durable_puts", "Puts that wait until they are durable.", {},
                static_cast<double>(count()));
}

}  // namespace cairn
