// SPDX-License-Identifier: Apache-2.0
#include "service/upkeep/upkeep.h"

#include <pthread.h>

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "service/active_backend.h"
#include "service/limits.h"

namespace cairn {
namespace {

// Limit for one round, so that no deadline waits long for it.
constexpr int kEvictionsPerRound = 256;
constexpr int kCollectionsPerRound = 64;
// The pause between two collections of expired blocks.
constexpr absl::Duration kCollectionRest = absl::Seconds(10);
// The longest sleep. The watermark is checked at least this often.
constexpr absl::Duration kSleepMax = absl::Seconds(1);

}  // namespace

Upkeep::Upkeep(Spaces& spaces, BlockIndex& index, Tiers& tiers, const Clock& clock,
               const Options& options)
    : spaces_(spaces),
      index_(index),
      tiers_(tiers),
      clock_(clock),
      recoder_(tiers, ActiveBackend()),
      check_(spaces, index, "upkeep"),
      pending_encodes_(spaces, index, tiers, clock, check_, recoder_, options.device),
      mining_(spaces, index, tiers, ActiveBackend()),
      write_down_(spaces, index, tiers, clock, options.write_budget_bytes, check_, recoder_,
                  [this] { Wake(); }),
      device_copies_(spaces, index, tiers, [this] { Wake(); }),
      scrub_(spaces, index, tiers, clock, options.scrub_rate_bytes, [this] { Wake(); }) {}

void Upkeep::Start() {
  CAIRN_CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void Upkeep::Stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  woken_.NotifyAll();
  if (thread_.joinable()) {
    thread_.join();
  }
  SaveHints();
  mining_.Stop();
  scrub_.Stop();
  write_down_.Stop();
  device_copies_.Stop();
}

void Upkeep::Wake() {
  {
    const MutexLock lock(mutex_);
    is_woken_ = true;
  }
  woken_.NotifyOne();
}

void Upkeep::Run() {
  pthread_setname_np(pthread_self(), "upkeep");
  for (;;) {
    const absl::Duration rest = RunOnce() - clock_.Now();
    const absl::Time until = MonotonicNow() + std::min(rest, kSleepMax);
    const MutexLock lock(mutex_);
    while (!is_stopping_ && !is_woken_ && woken_.WaitUntil(mutex_, until)) {
    }
    is_woken_ = false;
    if (is_stopping_) {
      return;
    }
  }
}

absl::Time Upkeep::RunOnce() {
  rounds_.Add();
  absl::Time next =
      std::min({index_.AnswerLateWaiters(), index_.ExpireLeases(), index_.EndHints()});
  int evictions = 0;
  while (evictions < kEvictionsPerRound && tiers_.host().EvictToWatermark()) {
    ++evictions;
  }
  const absl::Time now = clock_.Now();
  if (now >= next_hints_save_ && SaveHints()) {
    next_hints_save_ = now + absl::Milliseconds(limits::kHintsSavedMs);
  }
  if (now >= next_retirement_) {
    spaces_.RetireIdle();
    SayWhatIndexLimits();
    next_retirement_ = now + kSleepMax;
  }
  bool has_more = CollectExpired(now) || evictions == kEvictionsPerRound;
  has_more = pending_encodes_.RunOnce(now) || has_more;
  has_more = device_copies_.RunOnce() || has_more;
  next = std::min({next, mining_.RunSlice(now), write_down_.RunOnce(now), scrub_.RunOnce(now)});
  if (has_more) {
    return now;
  }
  return std::min(next, index_.pending_count() > 0 ? pending_encodes_.again() : now + kSleepMax);
}

bool Upkeep::CollectExpired(absl::Time now) {
  if (now < next_collection_) {
    return false;
  }
  for (int holds = 0; holds < kCollectionsPerRound; ++holds) {
    if (!index_.CollectExpired(&collected_)) {
      collected_ = 0;
      next_collection_ = now + kCollectionRest;
      return false;
    }
  }
  return true;
}

bool Upkeep::SaveHints() {
  const auto changed = index_.ChangedHints(&saved_hints_);
  if (!changed.has_value()) {
    return false;
  }
  absl::flat_hash_map<uint64_t, proto::Fingerprint> fingerprints;
  for (const SpaceRef& space : spaces_.List()) {
    fingerprints.emplace(space->id(), space->fingerprint());
  }
  std::vector<HintRecord> records;
  records.reserve(changed->size());
  for (const BlockIndex::NamedHint& hint : *changed) {
    if (const auto space = fingerprints.find(hint.name.space_id); space != fingerprints.end()) {
      records.push_back({.space = space->second,
                         .key = hint.name.key,
                         .due_unix_s = hint.hint.due_unix_s,
                         .priority = hint.hint.priority});
    }
  }
  tiers_.SaveHints(records);
  return true;
}

void Upkeep::SayWhatIndexLimits() {
  for (const CopyTier* tier : tiers_.all()) {
    const uint64_t blocks = index_.figures(tier->id()).evicted_for_index;
    const uint64_t used = tier->used_bytes(), capacity = tier->capacity_bytes();
    if (blocks > 0 && used < capacity / 100 * limits::kLowWatermarkPercent &&
        limited_.insert(tier->id()).second) {
      LogWarn("upkeep",
              "the index is full before the tier is: blocks are evicted although the tier has "
              "room; a larger --index-bytes keeps more",
              {{"tier", Name(tier->id())},
               {"used_bytes", used},
               {"capacity_bytes", capacity},
               {"evicted_blocks", blocks}});
    }
  }
}

void Upkeep::Report(MetricSink& sink) const {
  sink.AddCounter("cairn_upkeep_rounds_total", "Rounds of upkeep.", {}, rounds_.Value());
  pending_encodes_.Report(sink);
  mining_.Report(sink);
  write_down_.Report(sink);
  device_copies_.Report(sink);
  scrub_.Report(sink);
  check_.Report(sink);
  sink.AddCounter("cairn_verified_images_total", "Images verified by Verify and upkeep.", {},
                  check_.checked().Value());
}

}  // namespace cairn
