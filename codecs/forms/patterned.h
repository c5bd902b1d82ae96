// SPDX-License-Identifier: Apache-2.0
#pragma once
// Images of the recipe patternkv: what a spec says of a bank, and tiles that have patterns besides
// codes. docs/recipes/patternkv.md draws them.
//
// Thread-safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/image/image.h"
#include "codecs/side/bank.h"
#include "codecs/stages/stages.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Makes *spec one of patternkv with this bank: sets recipe, domain and side object.
//   recipe  of ParsePatternkvRecipe(), without its patterns
//   id      SHA-256 of the bank's bytes
void SetPatternkv(const Recipe& recipe, const Bank& bank, const Digest& id, ImageSpec* spec);

// The recipe needs no bank, or this is one for the spec. Whether it is the one that is named is the
// caller's to know.
[[nodiscard]] bool IsCodableWith(const ImageSpec& spec, const Bank* bank);

// Pattern numbers and gates of the plan into their parts.
void StorePatterns(const TilePlan& plan, const Recipe& recipe, const TileLayout& layout,
                   uint8_t* tile);

// Every element as its code, params and pattern have it, rows included. Whatever the tile holds, it
// stays in bounds.
//   patterns  of the tile's head and plane: recipe.patterns * dim fp16
//   is_streamed  the target is better written past the caches
void DecodePatterned(const Backend& backend, const TileGeometry& geometry, const Recipe& recipe,
                     const TileLayout& layout, const uint8_t* content, const uint8_t* patterns,
                     bool is_streamed, uint8_t* target);

// Numbers are below recipe.patterns, unused bits are zero.
[[nodiscard]] bool HasValidPatterns(const TileGeometry& geometry, const Recipe& recipe,
                                    const TileLayout& layout, const uint8_t* content);

}  // namespace cairn::codecs
