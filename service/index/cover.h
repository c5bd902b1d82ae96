// SPDX-License-Identifier: Apache-2.0
#pragma once
// Selects the images of a block that serve a slice.

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "service/index/block.h"

namespace cairn {

// Places in a list of ImageRefs.
using ImagePlaces = absl::InlinedVector<uint8_t, 8>;

// Returns true if images of the group together contain every tile of the slice. Sets *places,
// unless null, to those to read: the first published image that contains the whole slice, else, in
// the order of publication, each image with a tile that none before it has (so that of two images
// the first wins, tile by tile). Thread-safety: Thread-compatible. Does not allocate if *places has
// room. Cost: at most three passes over the block's images, however their slices overlap.
bool FindCover(absl::Span<const ImageRef> refs, uint16_t group, const codecs::Slice& slice,
               ImagePlaces* places);

}  // namespace cairn
