// SPDX-License-Identifier: Apache-2.0
#pragma once
// A queue of images, linked through the images: each operation is O(1) and allocates nothing.
//
// Thread-safety: Thread-compatible (the index's lock).

#include <cstdint>

#include "service/index/block.h"

namespace cairn {

class ImageQueue {
 public:
  // An image has one pair of links, so it can be in one queue only; `flag` says that it is in this
  // one.
  explicit ImageQueue(bool Image::*flag) : flag_(flag) {}

  Image* front() const { return front_; }
  uint64_t count() const { return count_; }

  // REQUIRES, for both: not in the queue.
  void PushBack(Image* image) {
    image->queue_before = back_;
    (back_ == nullptr ? front_ : back_->queue_after) = image;
    back_ = image;
    Added(image);
  }
  void PushFront(Image* image) {
    image->queue_after = front_;
    (front_ == nullptr ? back_ : front_->queue_before) = image;
    front_ = image;
    Added(image);
  }
  // REQUIRES: in the queue.
  void Remove(Image* image) {
    Image* before = image->queue_before;
    Image* after = image->queue_after;
    (before == nullptr ? front_ : before->queue_after) = after;
    (after == nullptr ? back_ : after->queue_before) = before;
    image->queue_before = image->queue_after = nullptr;
    image->*flag_ = false;
    --count_;
  }
  void RemoveIfThere(Image* image) {
    if (image->*flag_) {
      Remove(image);
    }
  }

 private:
  void Added(Image* image) {
    image->*flag_ = true;
    ++count_;
  }

  bool Image::*const flag_;
  Image* front_ = nullptr;
  Image* back_ = nullptr;
  uint64_t count_ = 0;
};

}  // namespace cairn
