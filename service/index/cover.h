// SPDX-License-Identifier: Apache-2.0
#pragma once
// Selects the images of a block that serve a slice.

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "service/index/block.h"

namespace cairn {

// Indices in a list of ImageRefs.
using ImagePlaces = absl::InlinedVector<uint8_t, 8>;

// Returns true if images of the group together contain every tile of the slice. Unless `places` is
// null, sets *places to the images to read. If an image contains the whole slice, *places has only
// one image, the first published one that contains it. Otherwise *places has, in the order of
// publication, each image with a tile that no earlier image has. So each tile is read from the
// first image that has it. Thread-safety: Thread-compatible. Allocates only if *places has too
// little room. Cost: at most three passes over the block's images, whatever slices overlap.
bool FindCover(absl::Span<const ImageRef> refs, uint16_t group, const codecs::Slice& slice,
               ImagePlaces* places);

}  // namespace cairn
