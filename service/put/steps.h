// SPDX-License-Identifier: Apache-2.0
#pragma once
// The steps between Received and published. Each consumes the product of the one before.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "codecs/recipe.h"
#include "service/memory/arena.h"
#include "service/put/put.h"

namespace cairn {

// An image that is checked: what it says it is, byte for byte. In staging, or in the tier already.
struct Encoded {
  Extent image;
  codecs::Recipe recipe;
  SideObjectRef side_object;  // the one that it names, if any
  bool is_placed = false;
  bool is_encode_pending = false;  // kept raw
};

// An image in a tier, owned, not yet visible.
struct Placed {
  Extent image;
  codecs::Recipe recipe;
  SideObjectRef side_object;
  bool is_encode_pending = false;
};

// Of the squared queries that a put of that image may carry; 0 for groups without K.
uint64_t QuerySquareBytes(const codecs::ImageSpec& spec);
// From those bytes to numbers. InvalidArgument names the first that is none.
absl::StatusOr<std::vector<float>> ReadQuerySquares(const codecs::ImageSpec& spec,
                                                    std::span<const std::byte> bytes);

absl::StatusOr<Encoded> Encode(PutContext& context, Received received);
absl::StatusOr<Placed> Place(PutContext& context, Encoded encoded);
absl::Status Publish(PutContext& context, Placed placed);

}  // namespace cairn
