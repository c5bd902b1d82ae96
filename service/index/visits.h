// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts the work in one hold of the index's lock, which may make kVisitsPerHoldMax visits. A visit
// is one key, image or queued block.
//
// Thread-safety: Thread-compatible.

#include <cstddef>

#include "service/limits.h"

namespace cairn {

class Visits {
 public:
  // Returns false if the work belongs to the next hold. The first request of a hold is always
  // granted, so that each hold makes progress.
  [[nodiscard]] bool Take(size_t count = 1) {
    if (count_ > 0 && count_ + count > limits::kVisitsPerHoldMax) {
      is_spent_ = true;
      return false;
    }
    count_ += count;
    return true;
  }
  size_t count() const { return count_; }
  bool is_spent() const { return is_spent_; }  // a request was refused

 private:
  size_t count_ = 0;
  bool is_spent_ = false;
};

}  // namespace cairn
