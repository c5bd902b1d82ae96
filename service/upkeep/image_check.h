// SPDX-License-Identifier: Apache-2.0
#pragma once
// Verifies the bytes of a copy, and drops the copy if they are damaged.
//
// Thread-safety: Thread-safe.

#include <cstddef>
#include <span>
#include <string_view>

#include "base/metric.h"
#include "service/index/block_index.h"
#include "service/index/pin.h"
#include "service/spaces.h"

namespace cairn {

class ImageCheck {
 public:
  // `where` is a label value of the metric cairn_corrupt_tiles_total.
  ImageCheck(Spaces& spaces, BlockIndex& index, std::string_view where)
      : spaces_(spaces), index_(index), where_(where) {}

  // Verifies the whole image: its length, header, directory and tiles, and whether the header
  // matches the index's record. If the image is damaged, drops the copy, counts and logs it, and
  // returns false.
  bool Check(const CopyPin& pin, std::span<const std::byte> bytes);
  // Drops a copy that is damaged or cannot be read.
  void Drop(const CopyPin& pin, std::string_view what);

  const Counter& checked() const { return checked_; }
  const Counter& corrupt() const { return corrupt_; }
  void Report(MetricSink& sink) const;

 private:
  Spaces& spaces_;
  BlockIndex& index_;
  const std::string_view where_;
  Counter checked_, corrupt_;
};

}  // namespace cairn
