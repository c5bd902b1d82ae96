// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a put tells the index.

#include <cstdint>

#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"
#include "service/index/block_name.h"
#include "service/index/side_objects.h"
#include "service/memory/arena.h"

namespace cairn {

// A block as a put describes it, before or with one of its images.
struct BlockClaim {
  BlockName name;
  proto::BlockKey parent{};  // all zero: none
  uint64_t first_position = 0;
  uint16_t tokens = 0;  // of the block: the space's tokens per block
  uint16_t group = 0;
  codecs::Slice slice;
};

// An image that is ready to be seen: checked, encoded and in its tier.
struct NewImage {
  BlockClaim claim;
  codecs::Recipe recipe;
  uint64_t source_bytes = 0;
  Extent extent;                   // Use::kPlaced; size_bytes() is the image's
  SideObjectRef side_object;       // the one that it names, if any
  bool is_encode_pending = false;  // kept raw: upkeep encodes it later
};

}  // namespace cairn
