// SPDX-License-Identifier: Apache-2.0
#pragma once
// The steps of a get. Each consumes the product of the one before.

#include <cstdint>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "codecs/image/image.h"
#include "service/get/get.h"

namespace cairn {

// One get on its way. Thread-safety: Thread-compatible.
struct GetContext {
  GetPath& path;
  const SpaceEntry& space;
  const proto::Get& get;
  codecs::Slice slice;
  uint64_t source_bytes = 0;  // of the slice
  uint64_t target_bytes = 0;
};

// Images that cover the slice, pinned, wherever they are.
struct Found {
  BlockIndex::Pins pins;
};

// The same, in tiers that can be sent from.
struct Promoted {
  BlockIndex::Pins pins;
};

// One payload of the wanted form, verified, and what keeps it.
struct Transcoded {
  ImageFacts facts;  // of the first image that it came from
  std::span<const std::byte> payload;
  uint32_t crc32c = 0;
  Pin pin;
  Extent staging;
};

absl::StatusOr<Found> Lookup(GetContext& context);
absl::StatusOr<Promoted> Promote(GetContext& context, Found found);
absl::StatusOr<Transcoded> Transcode(GetContext& context, Promoted promoted);
Answer Send(GetContext& context, Transcoded transcoded);

// Images of one answer: their views, in the order of their pins.
using Views = absl::InlinedVector<codecs::ImageView, 4>;

}  // namespace cairn
