// SPDX-License-Identifier: Apache-2.0
#pragma once
// Planes of views in plans, of those that decode and those that encode.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "codecs/format/tile_layout.h"
#include "codecs/recipe/recipe.h"
#include "codecs/types/error.h"
#include "codecs/types/shape.h"
#include "kernels/records.h"
#include "kernels/target.h"

namespace cairn::kernels {

inline constexpr uint32_t kPlanesOfImage = 2;
inline constexpr uint32_t kUnitMax = 16;  // bytes that are stored at once, at most

// Every page below page_count lies in its layer, every slot of the block in the table, and rows at
// multiples of an element: else kInvalidShape or kTargetTooSmall.
codecs::Error CheckView(const PagedView& view, const codecs::Slice& slice,
                        const codecs::TileGeometry& geometry, uint32_t plane_index);

// REQUIRES: CheckView() is kOk.
//   image  whose status it is
PlaneRecord RecordOf(const PagedView& view, const codecs::Slice& slice,
                     const codecs::Recipe& recipe, const codecs::TileGeometry& geometry,
                     uint32_t plane_index, uint32_t image);

}  // namespace cairn::kernels
