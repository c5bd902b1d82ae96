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

// A sample. Borrows the memory that its view borrows.
struct MineSample {
  codecs::TileShape tile;  // kKv or kLatent
  uint16_t layers = 0;
  uint16_t heads = 0;
  PagedView view;       // view of the whole group; only read
  uint32_t tokens = 0;  // 1 to 65535, tokens in holes included
};

// Checks a sample. `aligned` lists addresses in the plan. Errors: kInvalidShape (a tile without
// values; a count outside the limits of a group or a sample; a table or a stride is invalid; or an
// address in `aligned` is not a multiple of 16), kTargetTooSmall (a page below page_count exceeds
// layer_bytes, or a slot exceeds the table).
codecs::Error CheckSample(const MineSample& sample, const std::byte* aligned);

// REQUIRES for the functions below: CheckSample() is kOk.

// Returns the number of heads of all planes.
[[nodiscard]] uint32_t HeadsOf(const MineSample& sample);
// Returns a spec with the sample's shape.
[[nodiscard]] codecs::ImageSpec SpecOf(const MineSample& sample);

}  // namespace cairn::kernels
