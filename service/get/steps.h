// SPDX-License-Identifier: Apache-2.0
#pragma once
// The steps of Get(). Each takes what the one before has set.

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "codecs/image/image.h"
#include "service/get/get.h"

namespace cairn {

// One get on its way. Thread-safety: Thread-compatible.
struct GetRun {
  GetPath& path;
  OwnedGet get;
  const SpaceEntry* space = nullptr;
  codecs::Slice slice = {};
  uint64_t source_bytes = 0;  // of the slice
  ResidentPins pins = {};     // of the images that cover the slice, since Lookup()
};

// Makes the answer of run.pins, and takes those of them that it needs.
absl::StatusOr<Answer> Transcode(GetRun& run);

// Images of one answer: their views, in the order of their pins.
using Views = absl::InlinedVector<codecs::ImageView, 4>;

}  // namespace cairn
