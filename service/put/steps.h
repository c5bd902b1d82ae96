// SPDX-License-Identifier: Apache-2.0
#pragma once
// The steps between Received and published. Each consumes the product of the one before.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "codecs/recipe/recipe.h"
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

// Of what comes with a put of that image besides the KV.
uint64_t StatisticsBytes(proto::StatisticSet kinds, const codecs::ImageSpec& spec);
// From those bytes to numbers. InvalidArgument names the first that cannot be.
absl::StatusOr<Statistics> ReadStatistics(proto::StatisticSet kinds, const codecs::ImageSpec& spec,
                                          std::span<const std::byte> bytes);
// The recipe's encoder reads one of them.
bool AreCodedWith(proto::StatisticSet kinds, const codecs::Recipe& recipe);

absl::StatusOr<Encoded> Encode(PutContext& context, Received received);
absl::StatusOr<Placed> Place(PutContext& context, Encoded encoded);
absl::Status Publish(PutContext& context, Placed placed);

}  // namespace cairn
