// SPDX-License-Identifier: Apache-2.0
#pragma once
// The descriptions that a put gives to the index.

#include <cstdint>
#include <string_view>

#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"
#include "service/index/side_objects.h"
#include "service/tier/block_name.h"
#include "service/tier/tier_extent.h"

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

// A copy that is ready to be published: verified, encoded and in its tier.
struct NewCopy {
  codecs::Recipe recipe;
  TierExtent extent;           // size_bytes() is the image's; in the host tier, Use::kPlaced
  SideObjectRef side_object;   // null: none
  uint32_t directory_crc = 0;  // if it cannot be read from extent.bytes()
  // The space's tenant, for a copy of an existing image, which may be leased. Borrowed for the
  // call.
  std::string_view tenant = {};
};

// An image and its first copy.
struct NewImage {
  BlockClaim claim;
  uint64_t source_bytes = 0;
  NewCopy copy;
  bool is_encode_pending = false;  // stored raw: upkeep encodes it later
  uint32_t expires_unix_s = 0;     // when the block expires; 0: never
};

}  // namespace cairn
