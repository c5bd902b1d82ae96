// SPDX-License-Identifier: Apache-2.0
#include "service/get/promotions.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "codecs/image/image.h"
#include "service/index/pinned_image.h"
#include "service/limits.h"

namespace cairn {
Promotions::Promotions(Parts parts) : parts_(std::move(parts)) {}

Promotions::~Promotions() { CAIRN_CHECK(count() == 0, "a read outlives the store"); }

std::shared_ptr<Promotion> Promotions::JoinLocked(const Key& key, WaitingGets::Id get) {
  const auto found = promotions_.find(key);
  if (found == promotions_.end()) {
    return nullptr;
  }
  found->second->gets_.push_back(get);
  shared_.Add();
  return found->second;
}

absl::StatusOr<std::shared_ptr<const Promotion>> Promotions::Join(ResidentPin pin,
                                                                  const SpaceRef& space,
                                                                  WaitingGets::Id get) {
  const Key key = KeyOf(pin);
  {
    const MutexLock lock(mutex_);
    if (is_stopping_) {
      return absl::UnavailableError("the daemon is stopping");
    }
    if (std::shared_ptr<const Promotion> shared = JoinLocked(key, get)) {
      return shared;
    }
  }
  auto promotion = std::make_shared<Promotion>();
  promotion->bytes_ = pin.copy().image_bytes;
  promotion->space_ = space.Share();
  promotion->pin_ = std::move(pin);
  promotion->gets_.push_back(get);
  absl::Status allocated = Allocate(*promotion);
  {
    const MutexLock lock(mutex_);
    if (std::shared_ptr<const Promotion> shared = JoinLocked(key, get)) {  // another was faster
      copying_bytes_ -= promotion->writer_.is_empty() ? 0 : promotion->bytes_;
      return shared;
    }
    if (!allocated.ok()) {
      refused_.Add();
      return allocated;
    }
    promotions_.emplace(key, promotion);
    ++under_way_;
  }
  Begin(promotion);
  return promotion;
}

absl::Status Promotions::Allocate(Promotion& promotion) {
  HostTier& host = parts_.tiers.host();
  const uint64_t bytes = promotion.bytes_;
  bool has_share = false;
  {
    const MutexLock lock(mutex_);
    has_share = copying_bytes_ + bytes <= host.capacity_bytes() / limits::kPromotedShareOfHost;
    copying_bytes_ += has_share ? bytes : 0;
  }
  if (has_share) {
    if (AllocateCopy(promotion)) {
      return absl::OkStatus();
    }
    const MutexLock lock(mutex_);
    copying_bytes_ -= bytes;
  }
  CAIRN_ASSIGN_OR_RETURN(promotion.memory_, host.AllocateStaging(bytes));
  return absl::OkStatus();
}

bool Promotions::AllocateCopy(Promotion& promotion) {
  promotion.writer_ = parts_.copies.BeginCopy(promotion.pin_, TierId::kHost);
  const BlockName block = {promotion.pin_.facts().space_id, promotion.pin_.facts().key};
  absl::StatusOr<Extent> room = promotion.writer_.is_empty()
                                    ? absl::StatusOr<Extent>(absl::AlreadyExistsError(""))
                                    : parts_.tiers.host().Allocate(promotion.bytes_, &block);
  if (!room.ok()) {
    promotion.writer_.Reset();
    return false;
  }
  promotion.memory_ = *std::move(room);
  return true;
}

Promotions::Prefetched Promotions::Prefetch(ResidentPin pin, const SpaceRef& space) {
  const Key key = KeyOf(pin);
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
    if (copying_bytes_ + bytes > share ||
        (prefetching_bytes_ > 0 && prefetching_bytes_ + bytes > limits::kPrefetchBytesMax)) {
      return Prefetched::kLater;
    }
    copying_bytes_ += bytes;
    prefetching_bytes_ += bytes;
  }
  auto promotion = std::make_shared<Promotion>();
  promotion->bytes_ = bytes;
  promotion->is_prefetch_ = true;
  promotion->space_ = space.Share();
  promotion->pin_ = std::move(pin);
  const bool is_allocated = AllocateCopy(*promotion);
  {
    const MutexLock lock(mutex_);
    const bool is_read = promotions_.contains(key);  // a get was faster
    if (!is_allocated || is_read) {
      copying_bytes_ -= bytes;
      prefetching_bytes_ -= bytes;
      return is_read ? Prefetched::kBegun : Prefetched::kNoRoom;
    }
    promotions_.emplace(key, promotion);
    ++under_way_;
  }
  Begin(promotion);
  return Prefetched::kBegun;
}

void Promotions::Begin(const std::shared_ptr<Promotion>& promotion) {
  CopyTier* tier = parts_.tiers.Find(promotion->pin_.copy().tier);
  CAIRN_CHECK(tier != nullptr);
  const TransferId transfer =
      tier->Read({.place = &promotion->pin_.extent(), .target = promotion->memory_.bytes()},
                 [this, promotion = promotion](absl::Status status) mutable {
                   Completed(std::move(promotion), std::move(status));
                 });
  bool is_late = false;
  {
    const MutexLock lock(mutex_);
    promotion->transfer_ = transfer;
    is_late = is_stopping_;
  }
  if (is_late) {
    tier->Cancel(transfer);
  }
}

void Promotions::Completed(std::shared_ptr<Promotion> promotion, absl::Status status) {
  PathPool::Job job = [this, promotion, status = std::move(status)]() mutable {
    Finish(std::move(promotion), std::move(status));
  };
  const absl::Status submitted = parts_.pool.Submit(std::move(job));
  if (!submitted.ok()) {
    job = nullptr;
    Finish(std::move(promotion), submitted);
  }
}

absl::Status Promotions::CheckAndKeep(Promotion& promotion) {
  codecs::ImageView view;
  codecs::Error error = ParsePinned(promotion.pin_, promotion.memory_.bytes(),
                                    promotion.space_->fingerprint(), &view);
  if (error == codecs::Error::kOk) {
    error = codecs::VerifyTiles(view);
  }
  if (error != codecs::Error::kOk) {
    return parts_.drop_damaged(promotion.pin_, codecs::Name(error));
  }
  read_bytes_.Add(promotion.bytes_);
  if (promotion.writer_.is_empty()) {
    staged_.Add();
    return absl::OkStatus();
  }
  NewCopy copy;
  copy.recipe = promotion.pin_.copy().recipe;
  copy.directory_crc = promotion.pin_.copy().directory_crc;
  if (view.spec().side_object_count > 0) {
    copy.side_object = promotion.space_->coding().Find(view.spec().side_objects[0]);
  }
  copy.extent = std::move(promotion.memory_);
  copy.tenant = promotion.space_->tenant();
  const Pin image = parts_.images.PinImage(promotion.pin_);
  if (!image.is_empty() &&
      parts_.copies.FinishCopy(std::move(promotion.writer_), std::move(copy))) {
    promotion.resident_ = parts_.images.Reside(image, TierId::kHost);
  }
  if (promotion.resident_.is_empty()) {
    return absl::NotFoundError("deleted or evicted meanwhile");
  }
  copied_.Add();
  return absl::OkStatus();
}

void Promotions::Finish(std::shared_ptr<Promotion> promotion, absl::Status status) {
  const bool is_copy = !promotion->writer_.is_empty();
  const bool is_prefetch = promotion->is_prefetch_;
  if (status.ok()) {
    status = CheckAndKeep(*promotion);
  } else if (absl::IsDataLoss(status)) {
    status = parts_.drop_damaged(promotion->pin_, "the tier cannot read it");
  }
  failed_.Add(status.ok() ? 0 : 1);
  std::vector<WaitingGets::Id> gets;
  {
    const MutexLock lock(mutex_);
    promotion->status_ = std::move(status);
    gets.swap(promotion->gets_);
    copying_bytes_ -= is_copy ? promotion->bytes_ : 0;
    prefetching_bytes_ -= is_prefetch ? promotion->bytes_ : 0;
    promotions_.erase(KeyOf(promotion->pin_));
  }
  promotion.reset();  // its pin is gone before Stop() returns, where no get has it
  for (const WaitingGets::Id get : gets) {
    parts_.ended(get);
  }
  parts_.has_room();
  const MutexLock lock(mutex_);
  --under_way_;
  ended_.NotifyAll();
}

void Promotions::Stop() {
  std::vector<std::pair<CopyTier*, TransferId>> transfers;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    for (const auto& [key, promotion] : promotions_) {
      transfers.emplace_back(parts_.tiers.Find(key.first), promotion->transfer_);
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
                    "Reads of copies in colder tiers that gets asked for, by how they ended.",
                    labels, counter.Value());
  };
  outcome("copied", copied_);
  outcome("staged", staged_);
  outcome("failed", failed_);
  outcome("refused", refused_);
  outcome("shared", shared_);
  sink.AddCounter("cairn_promoted_bytes_total", "Bytes of images read out of colder tiers.", {},
                  read_bytes_.Value());
  const MutexLock lock(mutex_);
  sink.AddGauge("cairn_promoting_bytes",
                "Bytes of the host tier that reads of colder tiers under way take.", {},
                static_cast<double>(copying_bytes_));
}

}  // namespace cairn
