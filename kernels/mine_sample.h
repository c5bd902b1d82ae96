// SPDX-License-Identifier: Apache-2.0
#pragma once
// A sample from which banks and profiles are mined: the KV of a group, on the device.
//
// Thread-safety: pure functions. Nothing allocates, synchronizes or throws.

#include <cstddef>
#include <cstdint>

#include "codecs/format/image_spec.h"
#include "codecs/types/error.h"
#include "codecs/types/shape.h"
#include "kernels/target.h"

namespace cairn::kernels {

// Borrows what its view does.
struct MineSample {
  codecs::TileShape tile;  // kKv or kLatent
  uint16_t layers = 0;
  uint16_t heads = 0;
  PagedView view;       // of the whole group; only read
  uint32_t tokens = 0;  // 1 to 65535, those in holes too
};

// kInvalidShape: a tile without values, numbers that no group or no sample has, a view's tables or
// strides, or that `aligned`, bytes of the plan's, are not at a multiple of 16. kTargetTooSmall: a
// page below page_count reaches past layer_bytes, or a slot past the table.
codecs::Error CheckSample(const MineSample& sample, const std::byte* aligned);

// REQUIRES of both: CheckSample() is kOk.

// Of all planes.
[[nodiscard]] uint32_t HeadsOf(const MineSample& sample);
// A spec of what the sample is.
[[nodiscard]] codecs::ImageSpec SpecOf(const MineSample& sample);

}  // namespace cairn::kernels
