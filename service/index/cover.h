// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which images of a block serve a slice.

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "service/index/block.h"

namespace cairn {

// Places in a list of ImageRefs.
using ImagePlaces = absl::InlinedVector<uint8_t, 8>;

// True if images of the group together hold every tile of the slice. *places, if not null, is then
// where those to read stand: the first published that holds all of it, else, in the order
// published, each that holds a tile that none before it does (so that of two images the first wins,
// tile by tile). Thread-safety: Thread-compatible. Does not allocate where *places has room. Cost:
// goes over the block's images three times at most, however their slices overlap.
bool FindCover(absl::Span<const ImageRef> refs, uint16_t group, const codecs::Slice& slice,
               ImagePlaces* places);

}  // namespace cairn
