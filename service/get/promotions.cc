// SPDX-License-Identifier: Apache-2.0
// Which reads there are, what memory they have, and their end. How they go: promotion_reads.cc.
#include "service/get/promotions.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "service/limits.h"

namespace cairn {
namespace {

codecs::GroupKind KindOf(const CopyPin& pin, const SpaceRef& space) {
  return space->groups()[pin.facts().group].tile.kind;
}

}  // namespace

Promotions::Promotions(Parts parts) : parts_(std::move(parts)) {}

Promotions::~Promotions() { CAIRN_CHECK(count() == 0, "a read outlives the store"); }

std::shared_ptr<Promotion> Promotions::JoinLocked(const Key& key, WaitingGets::Id get,
                                                  absl::Time deadline) {
  const auto found = promotions_.find(key);
  if (found == promotions_.end()) {
    return nullptr;
  }
  found->second->gets_.push_back(get);
  found->second->deadline_ = std::max(found->second->deadline_, deadline);
  shared_.Add();
  return found->second;
}

absl::StatusOr<std::shared_ptr<const Promotion>> Promotions::Join(CopyPin pin,
                                                                  const SpaceRef& space,
                                                                  const codecs::Slice& slice,
                                                                  WaitingGets::Id get,
                                                                  absl::Time deadline) {
  codecs::Slice to_read = pin.facts().slice;
  {
    const MutexLock lock(mutex_);
    if (is_stopping_) {
      return absl::UnavailableError("the daemon is stopping");
    }
    std::shared_ptr<const Promotion> shared = JoinLocked(KeyOf(pin, to_read), get, deadline);
    if (shared == nullptr && slice != to_read) {
      shared = JoinLocked(KeyOf(pin, slice), get, deadline);
    }
    if (shared != nullptr) {
      return shared;
    }
    if (slice_reads_.Take(KindOf(pin, space), pin, slice)) {
      to_read = slice;
    }
  }
  const Key key = KeyOf(pin, to_read);
  auto promotion = std::make_shared<Promotion>();
  promotion->slice_ = to_read;
  promotion->space_ = space.Share();
  promotion->pin_ = std::move(pin);
  promotion->gets_.push_back(get);
  promotion->deadline_ = deadline;
  absl::Status allocated = Allocate(*promotion);
  {
    const MutexLock lock(mutex_);
    if (std::shared_ptr<const Promotion> shared = JoinLocked(key, get, deadline)) {
      // Another was faster.
      GiveShareBack(*promotion);
      return shared;
    }
    if (!allocated.ok()) {
      GiveShareBack(*promotion);
      refused_.Add();
      return allocated;
    }
    promotions_.emplace(key, promotion);
    ++under_way_;
  }
  Begin(promotion);
  return promotion;
}

bool Promotions::TakeShare(Promotion& promotion, uint64_t bytes) {
  const uint64_t share = parts_.tiers.host().capacity_bytes() / limits::kPromotedShareOfHost;
  const MutexLock lock(mutex_);
  if (share_bytes_ + bytes > share) {
    return false;
  }
  share_bytes_ += bytes;
  promotion.share_bytes_ += bytes;
  return true;
}

void Promotions::GiveShareBack(Promotion& promotion) {
  share_bytes_ -= std::exchange(promotion.share_bytes_, 0);
}

absl::Status Promotions::Allocate(Promotion& promotion) {
  const CopyPin& pin = promotion.pin_;
  uint64_t bytes = pin.copy().image_bytes;
  if (!promotion.is_whole()) {
    bytes = PrefixReadBytes(KindOf(pin, promotion.space_), pin);
    CAIRN_ASSIGN_OR_RETURN(promotion.prefix_, AllocateForSlice(promotion, bytes));
    SetParts(promotion, {{.bytes = bytes}}, promotion.prefix_.bytes());
    return absl::OkStatus();
  }
  bool is_copy = false;
  if (TakeShare(promotion, bytes)) {
    is_copy = AllocateCopy(promotion);
    if (!is_copy) {
      const MutexLock lock(mutex_);
      GiveShareBack(promotion);
    }
  }
  if (!is_copy) {
    CAIRN_ASSIGN_OR_RETURN(promotion.memory_, parts_.tiers.host().AllocateStaging(bytes));
    SetParts(promotion, {{.bytes = bytes}}, promotion.memory_.bytes());
  }
  return absl::OkStatus();
}

bool Promotions::AllocateCopy(Promotion& promotion) {
  const uint64_t bytes = promotion.pin_.copy().image_bytes;
  promotion.writer_ = parts_.index.BeginCopy(promotion.pin_, TierId::kHost);
  const BlockName block = {promotion.pin_.facts().space_id, promotion.pin_.facts().key};
  absl::StatusOr<Extent> room = promotion.writer_.is_empty()
                                    ? absl::StatusOr<Extent>(absl::AlreadyExistsError(""))
                                    : parts_.tiers.host().Allocate(bytes, &block);
  if (!room.ok()) {
    promotion.writer_.Reset();
    return false;
  }
  promotion.memory_ = *std::move(room);
  SetParts(promotion, {{.bytes = bytes}}, promotion.memory_.bytes());
  return true;
}

absl::StatusOr<Extent> Promotions::AllocateForSlice(Promotion& promotion, uint64_t bytes) {
  if (!TakeShare(promotion, bytes)) {
    return absl::ResourceExhaustedError("reads of colder tiers use all of their share of memory");
  }
  return parts_.tiers.host().AllocateStaging(bytes);
}

void Promotions::SetParts(Promotion& promotion, std::vector<codecs::ImagePart> parts,
                          std::span<std::byte> target) {
  const MutexLock lock(mutex_);
  promotion.parts_ = std::move(parts);
  promotion.target_ = target;
  promotion.begun_ = promotion.ended_ = 0;
}

Promotions::Prefetched Promotions::Prefetch(CopyPin pin, const SpaceRef& space) {
  auto promotion = std::make_shared<Promotion>();
  promotion->slice_ = pin.facts().slice;
  const Key key = KeyOf(pin, promotion->slice_);
  const uint64_t bytes = pin.copy().image_bytes;
  const uint64_t share = parts_.tiers.host().capacity_bytes() / limits::kPromotedShareOfHost / 2;
  {
    const MutexLock lock(mutex_);
    if (promotions_.contains(key)) {
      return Prefetched::kBegun;
    }
    if (is_stopping_ || bytes > share) {
      return Prefetched::kNoRoom;
    }
    if (share_bytes_ + bytes > share ||
        (prefetching_bytes_ > 0 && prefetching_bytes_ + bytes > limits::kPrefetchBytesMax)) {
      return Prefetched::kLater;
    }
    share_bytes_ += bytes;
    prefetching_bytes_ += bytes;
  }
  promotion->share_bytes_ = bytes;
  promotion->is_prefetch_ = true;
  promotion->space_ = space.Share();
  promotion->pin_ = std::move(pin);
  const bool is_allocated = AllocateCopy(*promotion);
  {
    const MutexLock lock(mutex_);
    const bool is_read = promotions_.contains(key);  // a get was faster
    if (!is_allocated || is_read) {
      GiveShareBack(*promotion);
      prefetching_bytes_ -= bytes;
      return is_read ? Prefetched::kBegun : Prefetched::kNoRoom;
    }
    promotions_.emplace(key, promotion);
    ++under_way_;
  }
  Begin(promotion);
  return Prefetched::kBegun;
}

void Promotions::Stop() {
  std::vector<std::pair<CopyTier*, TransferId>> transfers;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    for (const auto& [key, promotion] : promotions_) {
      CopyTier* const tier = parts_.tiers.Find(std::get<TierId>(key));
      for (const TransferId transfer : promotion->transfers_) {
        transfers.emplace_back(tier, transfer);
      }
    }
  }
  for (const auto& [tier, transfer] : transfers) {
    tier->Cancel(transfer);
  }
  const MutexLock lock(mutex_);
  while (under_way_ > 0) {  // ends: a tier completes every transfer
    ended_.WaitUntil(mutex_, MonotonicNow() + absl::Seconds(1));
  }
}

size_t Promotions::count() const {
  const MutexLock lock(mutex_);
  return under_way_;
}

void Promotions::Report(MetricSink& sink) const {
  const auto outcome = [&](std::string_view name, const Counter& counter) {
    const MetricLabel labels[] = {{"outcome", name}};
    sink.AddCounter("cairn_promotions_total",
                    "Reads of copies in colder tiers for gets, by outcome.", labels,
                    counter.Value());
  };
  outcome("copied", copied_);
  outcome("staged", staged_);
  outcome("sliced", sliced_);
  outcome("late", late_);
  outcome("failed", failed_);
  outcome("refused", refused_);
  outcome("shared", shared_);
  const auto bytes = [&](std::string_view name, const Counter& counter) {
    const MetricLabel labels[] = {{"kind", name}};
    sink.AddCounter("cairn_promoted_bytes_total",
                    "Bytes read from colder tiers, as whole images or as slices.", labels,
                    counter.Value());
  };
  bytes("whole", whole_bytes_);
  bytes("slice", slice_bytes_);
  const MutexLock lock(mutex_);
  sink.AddGauge("cairn_promoting_bytes",
                "Bytes that running reads of colder tiers use of their share of the host tier.", {},
                static_cast<double>(share_bytes_));
}

}  // namespace cairn
