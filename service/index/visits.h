// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one hold of the index's lock has looked at, of the kVisitsPerHoldMax that it may: a key, an
// image, a block of a queue is one visit.
//
// Thread-safety: Thread-compatible.

#include <cstddef>

#include "service/limits.h"

namespace cairn {

class Visits {
 public:
  // False: this is for the next hold. The first of a hold is always granted, so that each gets on.
  [[nodiscard]] bool Take(size_t count = 1) {
    if (count_ > 0 && count_ + count > limits::kVisitsPerHoldMax) {
      is_spent_ = true;
      return false;
    }
    count_ += count;
    return true;
  }
  size_t count() const { return count_; }
  bool is_spent() const { return is_spent_; }  // something was refused

 private:
  size_t count_ = 0;
  bool is_spent_ = false;
};

}  // namespace cairn
