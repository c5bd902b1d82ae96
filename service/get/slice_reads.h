// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decides which slices are read from a tier without the rest of their image, and which parts to
// read.
//
// A slice is read alone if it is less than half of the bytes to read, and if the image is so large
// that two small reads, one after the other, take less time than a complete one. Repeated readers
// are better served from memory: once the slices read from a copy add up to the image's size, the
// next read is complete. All readers together then read at most twice as much as one complete read.

#include <cstdint>
#include <vector>

#include "codecs/image/encode.h"
#include "codecs/image/image.h"
#include "codecs/types/shape.h"
#include "service/index/pin.h"
#include "service/limits.h"

namespace cairn {

// The size of the first read: header and directory of an image, in whole pages if it has them.
uint64_t PrefixReadBytes(codecs::GroupKind kind, const CopyPin& pin);

// The parts of an image that contain the tiles of `slice`, in whole pages; parts with small gaps
// are merged. They have places in a buffer of `bytes`, as codecs::GatherParts() expects them.
struct SliceParts {
  std::vector<codecs::ImagePart> parts;
  uint64_t bytes = 0;
};
SliceParts PartsOf(const codecs::ImagePrefix& image, const codecs::Slice& slice);

// Remembers the slices read from limits::kSlicedCopiesMax copies; a copy may replace another one.
// Thread-safety: Thread-compatible.
class SliceReads {
 public:
  SliceReads() : seen_(limits::kSlicedCopiesMax) {}

  // Returns true, and records the read, if the slice of the pinned copy should be read alone.
  // REQUIRES: the image contains it.
  bool Take(codecs::GroupKind kind, const CopyPin& pin, const codecs::Slice& slice);

 private:
  struct Seen {
    uint64_t place = UINT64_MAX;
    uint64_t heads = 0;  // of all layers
  };
  std::vector<Seen> seen_;
};

}  // namespace cairn
