// SPDX-License-Identifier: Apache-2.0
#include "service/index/pin.h"

#include "base/check.h"
#include "service/index/block_index.h"

namespace cairn {

ImagePin& ImagePin::operator=(ImagePin&& source) noexcept {
  if (this != &source) {
    Reset();
    index_ = std::exchange(source.index_, nullptr);
    image_ = std::exchange(source.image_, nullptr);
  }
  return *this;
}

void ImagePin::Reset() {
  if (Image* image = std::exchange(image_, nullptr); image != nullptr) {
    index_->Unpin(image);
    index_ = nullptr;
  }
}

const ImageFacts& ImagePin::facts() const {
  CAIRN_DCHECK(image_ != nullptr);
  return image_->facts;
}

CopyPin& CopyPin::operator=(CopyPin&& source) noexcept {
  if (this != &source) {
    Reset();
    index_ = std::exchange(source.index_, nullptr);
    copy_ = std::exchange(source.copy_, nullptr);
  }
  return *this;
}

void CopyPin::Reset() {
  if (Copy* copy = std::exchange(copy_, nullptr); copy != nullptr) {
    index_->Unpin(copy);
    index_ = nullptr;
  }
}

const ImageFacts& CopyPin::facts() const {
  CAIRN_DCHECK(copy_ != nullptr);
  return copy_->image->facts;
}

const CopyFacts& CopyPin::copy() const {
  CAIRN_DCHECK(copy_ != nullptr);
  return copy_->facts;
}

std::span<const std::byte> CopyPin::bytes() const { return extent().bytes(); }

const SideObject* CopyPin::side_object() const {
  CAIRN_DCHECK(copy_ != nullptr);
  return copy_->side_object.get();
}

const TierExtent& CopyPin::extent() const {
  CAIRN_DCHECK(copy_ != nullptr);
  return copy_->extent;
}

std::string CopyPin::place() const { return FormatPlace(copy().tier, extent().offset()); }

CopyWriter& CopyWriter::operator=(CopyWriter&& source) noexcept {
  if (this != &source) {
    Reset();
    index_ = std::exchange(source.index_, nullptr);
    image_ = std::exchange(source.image_, nullptr);
    tier_ = source.tier_;
  }
  return *this;
}

void CopyWriter::Reset() {
  if (Image* image = std::exchange(image_, nullptr); image != nullptr) {
    index_->GiveUp(image, tier_);
    index_ = nullptr;
  }
}

const ImageFacts& CopyWriter::facts() const {
  CAIRN_DCHECK(image_ != nullptr);
  return image_->facts;
}

PutReservation& PutReservation::operator=(PutReservation&& source) noexcept {
  if (this != &source) {
    Reset();
    index_ = std::exchange(source.index_, nullptr);
    block_ = std::exchange(source.block_, nullptr);
  }
  return *this;
}

void PutReservation::Reset() {
  if (Block* block = std::exchange(block_, nullptr); block != nullptr) {
    index_->EndReservation(block);
    index_ = nullptr;
  }
}

}  // namespace cairn
