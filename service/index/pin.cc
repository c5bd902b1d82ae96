// SPDX-License-Identifier: Apache-2.0
#include "service/index/pin.h"

#include "base/check.h"
#include "service/index/block_index.h"

namespace cairn {

Pin& Pin::operator=(Pin&& source) noexcept {
  if (this != &source) {
    Reset();
    index_ = std::exchange(source.index_, nullptr);
    image_ = std::exchange(source.image_, nullptr);
  }
  return *this;
}

void Pin::Reset() {
  if (Image* image = std::exchange(image_, nullptr); image != nullptr) {
    index_->Unpin(image);
    index_ = nullptr;
  }
}

const ImageFacts& Pin::facts() const {
  CAIRN_DCHECK(image_ != nullptr);
  return image_->facts;
}

std::span<const std::byte> Pin::bytes() const {
  CAIRN_DCHECK(image_ != nullptr);
  return image_->extent.bytes();
}

const SideObject* Pin::side_object() const {
  CAIRN_DCHECK(image_ != nullptr);
  return image_->side_object.get();
}

uint64_t Pin::place() const {
  CAIRN_DCHECK(image_ != nullptr);
  return image_->extent.offset();
}

}  // namespace cairn
