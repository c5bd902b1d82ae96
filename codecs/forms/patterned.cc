// SPDX-License-Identifier: Apache-2.0
// Tiles of the recipe `patternkv`: codes with a (min, range) per group, after the patterns of a
// bank are subtracted. docs/recipes/patternkv.md draws them.
#include <array>
#include <cstring>

#include "codecs/forms/affine.h"
#include "codecs/forms/rows.h"
#include "codecs/pack/dense.h"
#include "codecs/side/bank.h"
#include "codecs/stages/quantize/affine.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

// Returns number `index` of consecutive numbers of `bits` bits each, at most 8.
uint32_t LoadBits(const uint8_t* source, uint32_t index, uint32_t bits) {
  if (bits == 0) return 0;
  const uint8_t* at = source + index * bits / 8;
  const uint32_t shift = index * bits % 8;
  uint32_t value = at[0];
  if (shift + bits > 8) value |= uint32_t{at[1]} << 8;
  return value >> shift & ((1U << bits) - 1);
}

// REQUIRES: the bits of that number are 0.
void StoreBits(uint8_t* target, uint32_t index, uint32_t bits, uint32_t value) {
  if (bits == 0) return;
  uint8_t* at = target + index * bits / 8;
  const uint32_t shift = index * bits % 8;
  at[0] = static_cast<uint8_t>(at[0] | value << shift);
  if (shift + bits > 8) at[1] = static_cast<uint8_t>(at[1] | value >> (8 - shift));
}

std::optional<TileLayout> Layout(const TileGeometry& geometry, const Recipe& recipe, uint32_t rows,
                                 uint64_t) {
  TileLayout layout = LayoutOfGroups(geometry, recipe, rows);
  layout.pattern_index.bytes = (uint64_t{geometry.rows} * NumberBits(recipe.patterns) + 7) / 8;
  layout.gate.bytes = geometry.IsPerChannel() ? 0 : (geometry.rows + 7) / 8;
  return PlaceParts(layout, geometry);
}

// Stores the pattern numbers and gates of the plan in their parts.
void StorePatterns(const TilePlan& plan, const Recipe& recipe, const TileLayout& layout,
                   uint8_t* tile) {
  std::memset(tile + layout.pattern_index.offset, 0, layout.pattern_index.bytes);
  std::memset(tile + layout.gate.offset, 0, layout.gate.bytes);
  const uint32_t bits = NumberBits(recipe.patterns);
  for (uint32_t token = 0; token < plan.affine.tokens; ++token) {
    if (!plan.IsPredicted(token)) continue;
    StoreBits(tile + layout.pattern_index.offset, token, bits, plan.pattern[token]);
    if (layout.gate.bytes != 0) StoreBits(tile + layout.gate.offset, token, 1, 1);
  }
}

Error Encode(const Backend& backend, const Recipe& recipe, const TileSource& source,
             ImageWriter* writer) {
  return EncodeGroups(backend, recipe, source, StorePatterns, writer);
}

bool Decode(const DecodeWork& work, const StoredTile& stored, uint8_t* target) {
  const TileGeometry& geometry = stored.geometry;
  const TileLayout& layout = stored.layout;
  const uint8_t* content = U8(stored.content.data());
  std::array<uint64_t, kRowWords> is_predicted{};
  std::array<uint8_t, kTokensPerBlockMax> pattern{};
  const uint32_t bits = NumberBits(stored.recipe->patterns);
  for (uint32_t token = 0; token < geometry.rows; ++token) {
    const bool passes =
        layout.gate.bytes == 0 || LoadBits(content + layout.gate.offset, token, 1) != 0;
    if (passes) is_predicted[token / 64] |= uint64_t{1} << (token % 64);
    const uint32_t number = LoadBits(content + layout.pattern_index.offset, token, bits);
    // A number past the bank, which VerifyTile() refuses, counts as 0.
    pattern[token] = static_cast<uint8_t>(number < stored.recipe->patterns ? number : 0);
  }
  const Prediction prediction{work.side.bank->PatternsOf(geometry.PlaneIndex(), stored.at),
                              pattern.data(), is_predicted.data()};
  AffineTile tile = AffineOf(geometry, *stored.recipe);
  tile.is_streamed = work.is_streamed;
  tile.prediction = &prediction;
  DecodeAffine(work.backend, tile, geometry, layout, content, target);
  OverlayRows(stored, layout, target);
  return true;
}

// Returns true if numbers are below recipe.patterns and unused bits are zero.
bool HasValidPatterns(const TileGeometry& geometry, const Recipe& recipe, const TileLayout& layout,
                      const uint8_t* content) {
  const uint32_t bits = NumberBits(recipe.patterns);
  const uint8_t* numbers = content + layout.pattern_index.offset;
  bool is_valid = AreCodeRowsClean(numbers, 1, geometry.rows, bits) &&
                  AreCodeRowsClean(content + layout.gate.offset, layout.gate.bytes == 0 ? 0 : 1,
                                   geometry.rows, 1);
  for (uint32_t token = 0; token < geometry.rows; ++token) {
    is_valid &= LoadBits(numbers, token, bits) < recipe.patterns;
  }
  return is_valid;
}

Error Verify(const StoredTile& tile) {
  if (!HasValidPatterns(tile.geometry, *tile.recipe, tile.layout, U8(tile.content.data()))) {
    return Error::kBadTile;
  }
  return VerifyGroups(tile);
}

}  // namespace

const Form forms::kPatterned = {"patterned", Layout, Encode, Decode, Verify, NarrowGroups};

}  // namespace cairn::codecs
