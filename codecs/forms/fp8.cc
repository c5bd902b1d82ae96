// SPDX-License-Identifier: Apache-2.0
// Tiles of the recipe `fp8`: one byte per element and one scale per token. docs/recipes/fp8.md
// draws them.
#include "codecs/forms/fp8.h"

#include "codecs/backend/backend_operation.h"
#include "codecs/checksum/checksum.h"
#include "codecs/forms/rows.h"
#include "codecs/numbers/fp8.h"
#include "codecs/stages/select/select.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

constexpr uint64_t kLowByte = 0x0101010101010101;  // times a byte: it, in every byte

std::optional<TileLayout> Layout(const TileGeometry& geometry, const Recipe&, uint32_t rows,
                                 uint64_t) {
  TileLayout layout = LayoutOfRows(geometry, rows);
  layout.codes_bytes = uint64_t{geometry.rows} * geometry.dim;
  layout.scales.bytes = geometry.rows * kScaleBytes;
  return PlaceParts(layout, geometry);
}

Error Encode(const Backend& backend, const Recipe& recipe, const TileSource& source,
             ImageWriter* writer) {
  const TileGeometry& geometry = source.geometry;
  TilePlan plan;
  plan.affine = AffineOf(geometry, recipe);
  SelectNone(backend, source, &plan);
  const uint32_t rows = plan.RowCount();
  const auto layout = LayoutOf(geometry, recipe, kFp8Form, rows);
  if (!layout.has_value()) return Error::kBadTile;
  const std::span<std::byte> tile = writer->Reserve(layout->bytes);
  if (tile.empty()) return Error::kTargetTooSmall;
  OperationOf<&Backend::encode_fp8>(backend)(plan.affine, source.bytes, plan.rows.data(),
                                             U8(tile.data()),
                                             U8(tile.data()) + layout->scales.offset);
  WriteRows(source, plan, *layout, tile.data());
  writer->Commit(layout->bytes, Crc32c(tile), rows, kFp8Form);
  return Error::kOk;
}

bool Decode(const DecodeWork& work, const StoredTile& tile, uint8_t* target) {
  DecodeFp8(work.backend, tile.geometry, tile.layout, U8(tile.content.data()), work.is_streamed,
            target);
  OverlayRows(tile, tile.layout, target);
  return true;
}

Error Verify(const StoredTile& tile) {
  const bool is_valid = HasValidFp8(tile.layout, tile.content) && HasValidRows(tile, tile.layout);
  return is_valid ? Error::kOk : Error::kBadTile;
}

}  // namespace

void DecodeFp8(const Backend& backend, const TileGeometry& geometry, const TileLayout& layout,
               const uint8_t* content, bool is_streamed, uint8_t* target) {
  const AffineTile tile = {geometry.rows, geometry.dim, 0, geometry.dtype, 8, false, is_streamed};
  OperationOf<&Backend::decode_fp8>(backend)(tile, content, content + layout.scales.offset, target);
}

bool HasValidFp8(const TileLayout& layout, std::span<const std::byte> content) {
  uint32_t faults = 0;
  for (uint64_t i = 0; i < layout.scales.bytes; i += sizeof(uint16_t)) {
    faults |= Load<uint16_t>(content.data() + layout.scales.offset + i) >= 0x7C00 ? 1 : 0;
  }
  // Eight codes at once: only the magnitude of a NaN carries into the sign.
  uint64_t carries = 0;
  for (uint64_t i = 0; i + 8 <= layout.codes_bytes; i += 8) {
    carries |= (Load<uint64_t>(content.data() + i) & (kLowByte * 0x7F)) + kLowByte;
  }
  for (uint64_t i = layout.codes_bytes / 8 * 8; i < layout.codes_bytes; ++i) {
    faults |= IsE4m3Nan(static_cast<uint8_t>(content[i])) ? 1 : 0;
  }
  return faults == 0 && (carries & (kLowByte * 0x80)) == 0;
}

const Form forms::kFp8 = {"fp8", Layout, Encode, Decode, Verify, nullptr};

}  // namespace cairn::codecs
