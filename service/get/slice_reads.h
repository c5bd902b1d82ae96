// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which slices are read out of a tier without the rest of their image, and what is read of it.
//
// A slice is read alone where it is less than half of what there is to read, and the image so large
// that two small reads, one after the other, take less time than one of it all. A reader that comes
// again is better served from memory: once slices as large as the image have been read of a copy,
// the next reads the whole. So all readers together read at most twice as much as if the first
// had.

#include <cstdint>
#include <vector>

#include "codecs/image/encode.h"
#include "codecs/image/image.h"
#include "codecs/types/shape.h"
#include "service/index/pin.h"
#include "service/limits.h"

namespace cairn {

// Of header and directory of an image: what has to be read first. Whole pages, if it has them.
uint64_t PrefixReadBytes(codecs::GroupKind kind, const ResidentPin& pin);

// The parts of an image that have the tiles of `slice`, in whole pages; those with little between
// them are one. They have their places in a buffer of `bytes`, as codecs::GatherParts() takes them.
struct SliceParts {
  std::vector<codecs::ImagePart> parts;
  uint64_t bytes = 0;
};
SliceParts PartsOf(const codecs::ImagePrefix& image, const codecs::Slice& slice);

// Remembers what was read of limits::kSlicedCopiesMax copies; one may take another's place.
// Thread-safety: Thread-compatible.
class SliceReads {
 public:
  SliceReads() : seen_(limits::kSlicedCopiesMax) {}

  // True: the slice of the pinned copy is to be read alone, and counts as read. REQUIRES: it lies
  // in the image.
  bool Take(codecs::GroupKind kind, const ResidentPin& pin, const codecs::Slice& slice);

 private:
  struct Seen {
    uint64_t place = UINT64_MAX;
    uint64_t heads = 0;  // of all layers
  };
  std::vector<Seen> seen_;
};

}  // namespace cairn
