// SPDX-License-Identifier: Apache-2.0
#pragma once
// What finds out whether the bytes of a copy are those that were written, and drops it if they are
// not.
//
// Thread-safety: Thread-safe.

#include <cstddef>
#include <span>
#include <string_view>

#include "base/metric.h"
#include "service/index/images.h"
#include "service/index/pin.h"
#include "service/spaces.h"

namespace cairn {

class ImageCheck {
 public:
  // `where`: of cairn_corrupt_tiles_total.
  ImageCheck(Spaces& spaces, Images& images, std::string_view where)
      : spaces_(spaces), images_(images), where_(where) {}

  // Checks the whole image: length, header, directory, every tile, and that the header names what
  // the index has it under. False: it is damaged, and has been dropped, counted and logged.
  bool Check(const ResidentPin& pin, std::span<const std::byte> bytes);
  // It is damaged or cannot be read.
  void Drop(const ResidentPin& pin, std::string_view what);

  const Counter& checked() const { return checked_; }
  const Counter& corrupt() const { return corrupt_; }
  void Report(MetricSink& sink) const;

 private:
  Spaces& spaces_;
  Images& images_;
  const std::string_view where_;
  Counter checked_, corrupt_;
};

}  // namespace cairn
