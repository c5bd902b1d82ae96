// SPDX-License-Identifier: Apache-2.0
// Tiles of the recipe `arkv:paper`: tokens at full precision, tokens in 8-bit floats, and evicted
// tokens.
#include "codecs/forms/kept.h"

#include <array>
#include <bit>
#include <cstring>

#include "codecs/backend/backend_operation.h"
#include "codecs/backend/reference/reference.h"
#include "codecs/checksum/checksum.h"
#include "codecs/forms/fp8.h"
#include "codecs/forms/rows.h"
#include "codecs/pack/dense.h"
#include "codecs/stages/select/select.h"
#include "codecs/stages/select/token_plan.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

// The number of low tokens follows from the size, because each takes 16 bytes or more.
std::optional<TileLayout> Layout(const TileGeometry& geometry, const Recipe&, uint32_t rows,
                                 uint64_t bytes) {
  uint32_t low = 0;
  for (uint32_t step = kTokensPerBlockMax; step != 0; step /= 2) {
    if (low + step > geometry.rows - rows) continue;
    const auto layout = KeptLayoutOf(geometry, rows, low + step);
    if (layout.has_value() && layout->bytes <= bytes) low += step;
  }
  return KeptLayoutOf(geometry, rows, low);
}

TokenState StateOf(const TileSource& source, uint32_t token) {
  if (source.token_states == nullptr) return TokenState::kLow;
  const uint8_t state = source.token_states[token];
  return state < 2 ? static_cast<TokenState>(state) : TokenState::kOriginal;
}

// Returns the tokens whose codes a tile has, as bits. Ignores invalid rows, which HasValidMap()
// refuses.
std::array<uint64_t, kRowWords> LowTokens(const TileGeometry& geometry, const TileLayout& layout,
                                          const uint8_t* content) {
  std::array<uint64_t, kRowWords> low{};
  for (uint32_t token = 0; token < geometry.rows; ++token) {
    if (IsKept(layout, content, token)) low[token / 64] |= uint64_t{1} << (token % 64);
  }
  for (uint64_t i = 0; i < layout.positions.bytes; i += sizeof(uint16_t)) {
    const auto row = Load<uint16_t>(content + layout.positions.offset + i);
    if (row < geometry.rows) low[row / 64] &= ~(uint64_t{1} << (row % 64));
  }
  return low;
}

uint32_t LowCount(const TileLayout& layout) {
  return static_cast<uint32_t>(layout.scales.bytes / sizeof(uint16_t));
}

Error Encode(const Backend& backend, const Recipe& recipe, const TileSource& source,
             ImageWriter* writer) {
  constexpr std::array<uint64_t, kRowWords> kNone{};
  const TileGeometry& geometry = source.geometry;
  TilePlan plan;
  plan.affine = AffineOf(geometry, recipe);
  SelectNone(backend, source, &plan);
  uint32_t low = 0;
  for (uint32_t token = 0; token < geometry.rows; ++token) {
    const TokenState state = StateOf(source, token);
    if (state == TokenState::kOriginal) plan.AddRow(token);
    if (state == TokenState::kEvicted) plan.rows[token / 64] &= ~(uint64_t{1} << (token % 64));
    low += state == TokenState::kLow && !plan.IsRow(token) ? 1 : 0;
  }
  const auto layout = KeptLayoutOf(geometry, plan.RowCount(), low);
  if (!layout.has_value()) return Error::kBadTile;
  const std::span<std::byte> tile = writer->Reserve(layout->bytes);
  if (tile.empty()) return Error::kTargetTooSmall;
  uint8_t* target = U8(tile.data());
  WriteRows(source, plan, *layout, tile.data());
  std::memset(target + layout->kept_map.offset, 0, layout->kept_map.bytes);
  AffineTile one = plan.affine;
  one.tokens = 1;
  uint32_t coded = 0;
  for (uint32_t token = 0; token < geometry.rows; ++token) {
    if (StateOf(source, token) == TokenState::kEvicted) continue;
    target[layout->kept_map.offset + token / 8] |= static_cast<uint8_t>(1U << (token % 8));
    if (plan.IsRow(token)) continue;
    OperationOf<&Backend::encode_fp8>(backend)(
        one, source.bytes + token * geometry.RowBytes(), kNone.data(),
        target + uint64_t{coded} * geometry.dim,
        target + layout->scales.offset + sizeof(uint16_t) * coded);
    ++coded;
  }
  writer->Commit(layout->bytes, Crc32c(tile), plan.RowCount(), kKeptForm);
  return Error::kOk;
}

// Decodes every element from the code and scale of its token; 0 for evicted tokens. The caller
// decodes rows.
void DecodeKept(const Backend& backend, const TileGeometry& geometry, const TileLayout& layout,
                const uint8_t* content, uint8_t* target) {
  const uint64_t row_bytes = geometry.RowBytes();
  const uint32_t count = LowCount(layout);
  TileGeometry of_low = geometry;
  of_low.rows = count;
  DecodeFp8(backend, of_low, layout, content, false, target);
  // Code j belongs to the j-th low token, so codes move to their places from the last one on.
  const auto low = LowTokens(geometry, layout, content);
  uint32_t index = 0;
  for (const uint64_t word : low) index += static_cast<uint32_t>(std::popcount(word));
  for (uint32_t token = geometry.rows; token-- > 0;) {
    uint8_t* place = target + token * row_bytes;
    const bool is_low = reference::IsRow(low.data(), token);
    index -= is_low ? 1 : 0;
    if (is_low && index < count) {
      std::memmove(place, target + index * row_bytes, row_bytes);
    } else {
      std::memset(place, 0, row_bytes);
    }
  }
}

bool Decode(const DecodeWork& work, const StoredTile& tile, uint8_t* target) {
  DecodeKept(work.backend, tile.geometry, tile.layout, U8(tile.content.data()), target);
  OverlayRows(tile, tile.layout, target);
  return true;
}

// Returns true if the map has exactly the tile's tokens, as many as there are codes and rows, and
// every row.
// REQUIRES: rows are tokens of the tile.
bool HasValidMap(const TileGeometry& geometry, const TileLayout& layout, uint32_t rows,
                 const uint8_t* content) {
  const uint8_t* map = content + layout.kept_map.offset;
  if (!AreCodeRowsClean(map, 1, geometry.rows, 1)) return false;
  uint32_t kept = 0;
  for (uint64_t i = 0; i < layout.kept_map.bytes; ++i) {
    kept += static_cast<uint32_t>(std::popcount(map[i]));
  }
  for (uint32_t i = 0; i < rows; ++i) {
    const auto row = Load<uint16_t>(content + layout.positions.offset + sizeof(uint16_t) * i);
    if (!IsKept(layout, content, row)) return false;
  }
  return kept == rows + LowCount(layout);
}

Error Verify(const StoredTile& tile) {
  const bool is_valid =
      HasValidFp8(tile.layout, tile.content) && HasValidRows(tile, tile.layout) &&
      HasValidMap(tile.geometry, tile.layout, tile.entry.rows, U8(tile.content.data()));
  return is_valid ? Error::kOk : Error::kBadTile;
}

}  // namespace

std::optional<TileLayout> KeptLayoutOf(const TileGeometry& geometry, uint32_t rows, uint32_t low) {
  if (geometry.dim < kKeptDimMin) return std::nullopt;
  TileLayout layout = LayoutOfRows(geometry, rows);
  layout.codes_bytes = uint64_t{low} * geometry.dim;
  layout.scales.bytes = low * kScaleBytes;
  layout.kept_map.bytes = (geometry.rows + 7) / 8;
  return PlaceParts(layout, geometry);
}

const Form forms::kKept = {"kept", Layout, Encode, Decode, Verify, nullptr};

}  // namespace cairn::codecs
