// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which images of a block serve a slice.

#include <cstdint>

#include "service/index/block.h"

namespace cairn {

// True if images of the group together hold every tile of the slice. *images, if not null, is then
// the ones to read: the first published that holds all of it, else, in the order published, each
// that holds a tile that none before it does (so that of two images the first wins, tile by tile).
// Thread-safety: Thread-compatible. Does not allocate where *images has room.
// Cost:          goes over the block's images three times at most, however their slices overlap.
bool FindCover(const Block& block, uint16_t group, const codecs::Slice& slice, ImageList* images);

}  // namespace cairn
