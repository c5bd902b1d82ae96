// SPDX-License-Identifier: Apache-2.0
// How a read goes: its parts, and what becomes of their bytes.
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "service/get/promotions.h"
#include "service/index/pin.h"
#include "service/limits.h"

namespace cairn {

void Promotions::Begin(const std::shared_ptr<Promotion>& promotion) {
  CopyTier* tier = parts_.tiers.Find(promotion->pin_.copy().tier);
  CAIRN_CHECK(tier != nullptr);
  bool is_beginner = false;
  for (;;) {  // ends: each turn begins a part
    TierRead read;
    read.place = &promotion->pin_.extent();
    size_t place = 0;  // of the part
    {
      const MutexLock lock(mutex_);
      if (promotion->is_beginning_ && !is_beginner) {
        return;  // somebody does, who comes by here again: this may run within its Read()
      }
      std::vector<size_t>& unread = promotion->unread_;
      const bool has_part = promotion->begun_ < promotion->parts_.size() || !unread.empty();
      is_beginner = has_part && promotion->read_.ok() &&
                    promotion->begun_ - promotion->ended_ - unread.size() < limits::kSlicePartsMax;
      promotion->is_beginning_ = is_beginner;
      if (!is_beginner) {
        return;
      }
      if (unread.empty()) {
        place = promotion->begun_++;
      } else {
        place = unread.back();
        unread.pop_back();
      }
      const codecs::ImagePart& part = promotion->parts_[place];
      read.deadline = promotion->deadline_;
      read.offset = part.offset;
      read.target = promotion->target_.subspan(part.at, part.bytes);
    }
    const TransferId transfer =
        tier->Read(read, [this, promotion = promotion, place,
                          deadline = read.deadline](absl::Status status) mutable {
          Completed(std::move(promotion), place, deadline, std::move(status));
        });
    bool is_late = false;
    {
      const MutexLock lock(mutex_);
      promotion->transfers_.push_back(transfer);
      is_late = is_stopping_;
    }
    if (is_late) {
      tier->Cancel(transfer);
    }
  }
}

void Promotions::Completed(std::shared_ptr<Promotion> promotion, size_t part, absl::Time deadline,
                           absl::Status status) {
  const absl::Time now = parts_.clock.Now();
  bool is_over = false;
  {
    const MutexLock lock(mutex_);
    std::vector<size_t>& unread = promotion->unread_;
    if (absl::IsDeadlineExceeded(status) && !is_stopping_ && promotion->deadline_ > deadline &&
        promotion->deadline_ > now) {
      unread.push_back(part);  // a get that joined meanwhile has more time
      status = absl::OkStatus();
    } else {
      ++promotion->ended_;
    }
    const bool is_last = promotion->begun_ == promotion->parts_.size() && unread.empty();
    if (status.ok() && is_stopping_ && !is_last) {
      status = absl::UnavailableError("the daemon is stopping");
    }
    promotion->read_.Update(std::move(status));
    is_over = promotion->ended_ + unread.size() == promotion->begun_ &&
              (is_last || !promotion->read_.ok());
    status = promotion->read_;
    if (is_over && absl::IsDeadlineExceeded(status)) {
      ForgetLocked(promotion);  // a get that comes from now on has it read anew
    }
    under_way_ += is_over ? 0 : 1;  // Stop() waits for this thread, which has the pin
  }
  if (!is_over) {
    Begin(promotion);
    promotion.reset();
    return LeaveInFlight();
  }
  PathPool::Job job = [this, promotion, status = std::move(status)]() mutable {
    Finish(std::move(promotion), std::move(status));
  };
  const absl::Status submitted = parts_.pool.Continue(std::move(job), PathPool::Kind::kGet);
  if (!submitted.ok()) {  // the daemon stops
    job = nullptr;
    Finish(std::move(promotion), submitted);
  }
}

void Promotions::Finish(std::shared_ptr<Promotion> promotion, absl::Status status) {
  if (absl::IsDataLoss(status)) {
    status = parts_.drop_damaged(promotion->pin_, "the tier cannot read it");
  } else if (status.ok() && promotion->is_whole()) {
    status = CheckAndKeep(*promotion);
  } else if (status.ok() && promotion->memory_.is_empty()) {
    status = FindParts(*promotion);
    if (status.ok()) {
      return Begin(promotion);
    }
  } else if (status.ok()) {
    status = CheckSlice(*promotion);
  }
  if (!status.ok()) {  // the next read, of another copy, may become one in the host tier
    (absl::IsDeadlineExceeded(status) ? late_ : failed_).Add();
    promotion->writer_.Reset();
    promotion->memory_.Reset();
  }
  std::vector<WaitingGets::Id> gets;
  {
    const MutexLock lock(mutex_);
    promotion->status_ = std::move(status);
    gets.swap(promotion->gets_);
    prefetching_bytes_ -= promotion->is_prefetch_ ? promotion->share_bytes_ : 0;
    GiveShareBack(*promotion);
    ForgetLocked(promotion);
  }
  promotion.reset();  // its pin is gone before Stop() returns, where no get has it
  for (const WaitingGets::Id get : gets) {
    parts_.ended(get);
  }
  parts_.has_room();
  LeaveInFlight();
}

void Promotions::ForgetLocked(const std::shared_ptr<Promotion>& promotion) {
  const auto found = promotions_.find(KeyOf(promotion->pin_, promotion->slice_));
  if (found != promotions_.end() && found->second == promotion) {
    promotions_.erase(found);
  }
}

void Promotions::LeaveInFlight() {
  const MutexLock lock(mutex_);
  if (--under_way_ == 0) {
    ended_.NotifyAll();
  }
}

absl::Status Promotions::FindParts(Promotion& promotion) {
  codecs::Error error = codecs::ParseImagePrefix(promotion.prefix_.bytes(), &promotion.parsed_);
  if (error == codecs::Error::kOk) {
    error = CheckPinned(promotion.pin_, promotion.parsed_, promotion.space_->fingerprint());
  }
  if (error != codecs::Error::kOk) {
    return parts_.drop_damaged(promotion.pin_, codecs::Name(error));
  }
  SliceParts found = PartsOf(promotion.parsed_, promotion.slice_);
  CAIRN_ASSIGN_OR_RETURN(promotion.memory_, AllocateForSlice(promotion, found.bytes));
  SetParts(promotion, std::move(found.parts), promotion.memory_.bytes());
  return absl::OkStatus();
}

absl::Status Promotions::CheckSlice(Promotion& promotion) {
  uint64_t read_bytes = promotion.prefix_.size_bytes();
  for (const codecs::ImagePart& part : promotion.parts_) {
    read_bytes += part.bytes;
  }
  const std::span<std::byte> memory = promotion.memory_.bytes();
  size_t bytes = 0;
  CAIRN_CHECK(codecs::GatherParts(promotion.parsed_, promotion.slice_, promotion.parts_, memory,
                                  &bytes) == codecs::Error::kOk);
  codecs::Error error = codecs::ParseImage(memory.first(bytes), &promotion.view_);
  if (error == codecs::Error::kOk) {
    error = codecs::VerifyTiles(promotion.view_);
  }
  if (error != codecs::Error::kOk) {
    return parts_.drop_damaged(promotion.pin_, codecs::Name(error));
  }
  promotion.prefix_.Reset();
  promotion.memory_.ShrinkTo(bytes);
  slice_bytes_.Add(read_bytes);
  sliced_.Add();
  return absl::OkStatus();
}

absl::Status Promotions::CheckAndKeep(Promotion& promotion) {
  codecs::ImageView& view = promotion.view_;
  codecs::Error error = ParsePinned(promotion.pin_, promotion.memory_.bytes(),
                                    promotion.space_->fingerprint(), &view);
  if (error == codecs::Error::kOk) {
    error = codecs::VerifyTiles(view);
  }
  if (error != codecs::Error::kOk) {
    return parts_.drop_damaged(promotion.pin_, codecs::Name(error));
  }
  whole_bytes_.Add(view.bytes().size());
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
  const ImagePin image = parts_.index.PinImage(promotion.pin_);
  if (!image.is_empty() && parts_.index.FinishCopy(std::move(promotion.writer_), std::move(copy))) {
    promotion.resident_ = parts_.index.PinCopy(image, TierId::kHost);
  }
  if (promotion.resident_.is_empty()) {
    return absl::NotFoundError("deleted or evicted meanwhile");
  }
  copied_.Add();
  return absl::OkStatus();
}

}  // namespace cairn
