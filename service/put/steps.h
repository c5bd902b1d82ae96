// SPDX-License-Identifier: Apache-2.0
#pragma once
// The steps of Put(). Each consumes the product of the one before.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "codecs/recipe/recipe.h"
#include "service/index/side_objects.h"
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

// Takes put.staging. `crc32c` is of the payload as it landed.
absl::StatusOr<Encoded> Encode(OwnedPut& put, uint32_t crc32c);
absl::StatusOr<Placed> Place(OwnedPut& put, Encoded encoded);
// Sets put.is_duplicate and put.image_bytes.
absl::Status Publish(OwnedPut& put, Placed placed);

}  // namespace cairn
