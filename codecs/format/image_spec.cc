// SPDX-License-Identifier: Apache-2.0
#include "codecs/format/image_spec.h"

#include <limits>

#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "codecs/side/bank.h"
#include "codecs/side/profile.h"

namespace cairn::codecs {
namespace {

// Checks the number of side objects, and the dims and the domain of K, against the needs of the
// recipe.
bool HasValidSideObjects(const ImageSpec& spec) {
  if (spec.recipe.NeedsBank()) {
    return spec.tile.dtype != DType::kBytes && spec.tile.k_dim <= kBankDimMax &&
           spec.tile.v_dim <= kBankDimMax && spec.domain == Domain::kAsWritten &&
           spec.side_object_count == 1;
  }
  if (!spec.recipe.NeedsProfile()) {
    const uint32_t count_max = spec.recipe.MayHaveProfile() ? 1 : 0;
    return spec.domain == Domain::kAsWritten && spec.side_object_count <= count_max;
  }
  return spec.tile.dtype != DType::kBytes && spec.tile.k_dim <= kProfileDimMax &&
         spec.tile.v_dim <= kProfileDimMax && spec.domain <= Domain::kBasis &&
         spec.side_object_count == 1;
}

}  // namespace

Error MaxImageBytes(const ImageSpec& spec, uint64_t* bytes) {
  if (const Error error = Validate(spec.tile); error != Error::kOk) return error;
  if (spec.unit != CodingUnit{} || spec.symbol_mode != 0) return Error::kUnknownUnit;
  if (spec.tokens == 0 || spec.tokens > kTokensPerBlockMax) return Error::kInvalidShape;
  if (spec.slice.IsEmpty()) return Error::kInvalidSlice;
  // There are at most 2^32 tile groups of two tiles of at most 2^34 bytes each. 64 bits suffice
  // once the tile count is checked.
  const uint64_t tile_count = TilingOf(spec).count();
  if (tile_count > kTilesMax) return Error::kTooLarge;
  uint64_t head_bytes = 0;
  for (uint32_t plane = 0; plane < PlaneCount(spec.tile.kind); ++plane) {
    head_bytes += RawLayout(GeometryOf(spec, plane)).bytes;
  }
  const uint64_t total =
      PrefixBytes(tile_count) + head_bytes * spec.slice.layer_count * spec.slice.head_count;
  if (total > kImageBytesMax) return Error::kTooLarge;
  *bytes = total;
  return Error::kOk;
}

Error Validate(const ImageSpec& spec) {
  uint64_t bytes = 0;
  if (const Error error = MaxImageBytes(spec, &bytes); error != Error::kOk) return error;
  constexpr uint32_t kEnd = std::numeric_limits<uint16_t>::max();
  if (spec.slice.layer_first + uint32_t{spec.slice.layer_count} > kEnd ||
      spec.slice.head_first + uint32_t{spec.slice.head_count} > kEnd) {
    return Error::kInvalidSlice;
  }
  if (!IsKnown(spec.recipe)) return Error::kUnknownRecipe;
  if (!HasValidSideObjects(spec) ||
      spec.first_position > std::numeric_limits<uint64_t>::max() - kTokensPerBlockMax) {
    return Error::kInvalidShape;
  }
  return Error::kOk;
}

}  // namespace cairn::codecs
