// SPDX-License-Identifier: Apache-2.0
#include "service/upkeep/device_copies.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/hash/hash.h"
#include "base/check.h"
#include "service/limits.h"

namespace cairn {
namespace {

// Limit for one round, so that no deadline waits long for it.
constexpr int kBlocksPerRound = 64;

CopyTier* DeviceTier(const Tiers& tiers) {
  const auto found = std::find_if(tiers.all().begin(), tiers.all().end(), [](const CopyTier* tier) {
    return !tier->traits().may_hold_last;
  });
  return found == tiers.all().end() ? nullptr : *found;
}

}  // namespace

DeviceCopies::DeviceCopies(Spaces& spaces, BlockIndex& index, Tiers& tiers,
                           std::function<void()> wake)
    : spaces_(spaces),
      index_(index),
      wake_(std::move(wake)),
      tier_(DeviceTier(tiers)),
      bytes_max_(std::min(limits::kDeviceCopyBytesMax,
                          tiers.host().capacity_bytes() / limits::kDeviceCopyShareOfHost)),
      seen_(tier_ == nullptr ? 0 : limits::kReadBlocksMax) {}

void DeviceCopies::NoteRead(const BlockName& block, TierId tier) {
  if (tier_ == nullptr || tier == tier_->id()) {
    return;
  }
  const uint64_t hash = absl::HashOf(block);
  bool is_first = false;
  {
    const MutexLock lock(mutex_);
    Seen& seen = seen_[hash % seen_.size()];
    if (seen.hash != hash) {
      seen = {.hash = hash};
    }
    const bool was_due = seen.reads >= limits::kReadsPerDeviceCopy;
    seen.reads += tier == TierId::kHost ? 1 : limits::kReadsPerDeviceCopy;
    // A block that was read from a drive has lost its copy, if it had one.
    const bool is_due = seen.reads >= limits::kReadsPerDeviceCopy;
    seen.reads = std::min(seen.reads, limits::kReadsPerDeviceCopy);
    if (!is_due || (was_due && tier == TierId::kHost) || is_stopping_) {
      return;
    }
    if (due_.size() >= limits::kDeviceCopiesWaitingMax) {
      refused_.Add();
      return;
    }
    is_first = due_.empty();
    due_.push_back(block);
  }
  if (is_first) {
    wake_();
  }
}

bool DeviceCopies::HasRoom() const {
  const MutexLock lock(mutex_);
  return !is_stopping_ && !due_.empty() && bytes_ < bytes_max_;
}

bool DeviceCopies::RunOnce() {
  for (int blocks = 0; blocks < kBlocksPerRound; ++blocks) {
    if (!HasRoom()) {
      return false;  // the completion of a copy wakes upkeep
    }
    BlockName block;
    {
      const MutexLock lock(mutex_);
      block = due_.front();
      due_.pop_front();
    }
    CopyBlock(block);
  }
  return HasRoom();
}

void DeviceCopies::CopyBlock(const BlockName& block) {
  for (const ImagePin& image : index_.PinImages(block)) {
    auto running = std::make_unique<RunningCopy>();
    running->source = index_.PinCopy(image, TierId::kHost);
    absl::StatusOr<SpaceRef> space = spaces_.Find(block.space_id);
    if (running->source.is_empty() || !space.ok()) {
      gone_.Add();
      continue;
    }
    running->space = *std::move(space);
    running->writer = index_.BeginCopy(running->source, tier_->id());
    if (running->writer.is_empty()) {
      continue;  // the device has a copy, or gets one
    }
    absl::StatusOr<TierExtent> place = tier_->Reserve(running->source.bytes().size());
    if (!place.ok()) {
      refused_.Add();
      continue;
    }
    running->place = *std::move(place);
    Submit(std::move(running));
  }
}

void DeviceCopies::Submit(std::unique_ptr<RunningCopy> owned) {
  RunningCopy& running = *owned;
  TierWrite write = {.place = &running.place,
                     .image = running.source.facts(),
                     .copy = running.source.copy(),
                     .source = running.source.bytes()};
  write.copy.tier = tier_->id();
  in_flight_.Enter();
  {
    const MutexLock lock(mutex_);
    bytes_ += running.place.size_bytes();
  }
  tier_->Write(write, [this, owned = std::move(owned)](const absl::Status& status) mutable {
    Completed(std::move(owned), status);
  });
}

bool DeviceCopies::Finish(RunningCopy& running) {
  const CopyFacts& facts = running.source.copy();
  NewCopy copy;
  copy.recipe = facts.recipe;
  copy.extent = std::move(running.place);
  copy.directory_crc = facts.directory_crc;
  copy.tenant = running.space->tenant();
  if (const SideObject* side_object = running.source.side_object(); side_object != nullptr) {
    copy.side_object = running.space->coding().Find(side_object->id());
    CAIRN_CHECK(copy.side_object.get() != nullptr);  // the source keeps it
  }
  return index_.FinishCopy(std::move(running.writer), std::move(copy));
}

void DeviceCopies::Completed(std::unique_ptr<RunningCopy> running, const absl::Status& status) {
  const uint64_t bytes = running->place.size_bytes();
  if (!status.ok()) {
    failed_.Add();
  } else {
    (Finish(*running) ? copied_ : gone_).Add();
  }
  running.reset();  // releases its pins before Stop() returns
  bool is_more_due = false;
  {
    const MutexLock lock(mutex_);
    bytes_ -= bytes;
    is_more_due = !due_.empty() && bytes_ <= bytes_max_ / 2;
  }
  if (is_more_due) {
    wake_();
  }
  in_flight_.Leave();
}

void DeviceCopies::Stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  in_flight_.Await();  // ends, because a tier completes every transfer
}

void DeviceCopies::Report(MetricSink& sink) const {
  if (tier_ == nullptr) {
    return;
  }
  const auto outcome = [&](std::string_view name, const Counter& counter) {
    const MetricLabel labels[] = {{"outcome", name}};
    sink.AddCounter("cairn_gpu_copies_total",
                    "Copies of frequently read images to the device, by outcome.", labels,
                    counter.Value());
  };
  outcome("copied", copied_);
  outcome("gone", gone_);
  outcome("refused", refused_);
  outcome("failed", failed_);
  const MutexLock lock(mutex_);
  sink.AddGauge("cairn_gpu_copying_bytes", "Bytes being copied to the device.", {},
                static_cast<double>(bytes_));
  sink.AddGauge("cairn_gpu_copies_waiting", "Blocks that wait to be copied to the device.", {},
                static_cast<double>(due_.size()));
}

}  // namespace cairn
