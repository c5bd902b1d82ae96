// SPDX-License-Identifier: Apache-2.0
// Tiles of K of the recipe `mixkvq`: channels in classes of 2 and 4 bits, and of source bits.
// docs/recipes/mixkvq.md draws them.
#include <algorithm>
#include <cstring>

#include "codecs/backend/backend_operation.h"
#include "codecs/checksum/checksum.h"
#include "codecs/forms/affine.h"
#include "codecs/forms/rows.h"
#include "codecs/pack/dense.h"
#include "codecs/pack/strip.h"
#include "codecs/stages/allocate/salience.h"
#include "codecs/stages/select/select.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

// The layout of a tile of K in channel classes, whose map gives the number of channels in each
// class: class map | zeros to 16 | codes of the classes | zeros to 16 | side.
struct MixedLayout {
  uint64_t source_bits = 0;  // offsets: tokens * channels of source bits
  uint64_t four_bits = 0;    // tokens * CodeRowBytes(channels, bits)
  uint64_t two_bits = 0;
  TileLayout tile;
};

//   counts  number of channels by ChannelClass; their sum is geometry.dim
std::optional<MixedLayout> MixedLayoutOf(const TileGeometry& geometry, const Recipe& recipe,
                                         const uint32_t (&counts)[3], uint32_t rows) {
  const uint64_t tokens = geometry.rows;
  const auto [two, four, source] = counts;
  const uint64_t groups = (tokens + recipe.k_group_tokens - 1) / recipe.k_group_tokens;
  MixedLayout layout;
  layout.source_bits = AlignSection(CodeRowBytes(geometry.dim, 2));
  layout.four_bits = layout.source_bits + tokens * source * ElementBytes(geometry.dtype);
  layout.two_bits = layout.four_bits + tokens * CodeRowBytes(four, 4);
  layout.tile = LayoutOfRows(geometry, rows);
  layout.tile.codes_bytes = layout.two_bits + tokens * CodeRowBytes(two, 2);
  layout.tile.params.bytes = groups * (two + four) * kParamsBytes;
  const auto placed = PlaceParts(layout.tile, geometry);
  if (!placed.has_value()) return std::nullopt;
  layout.tile = *placed;
  return layout;
}

// The class map determines the offsets of the parts.
std::optional<TileLayout> Layout(const TileGeometry& geometry, const Recipe&, uint32_t,
                                 uint64_t bytes) {
  return LayoutOfBytes(geometry, bytes, AlignSection(CodeRowBytes(geometry.dim, 2)));
}

constexpr uint32_t kColumns = 32;  // channels of a class that are coded at once
constexpr uint32_t kElementBytesMax = 4;
constexpr uint32_t kBitsMax = 4;
constexpr uint32_t kGroupTokensMin = 32;

// Channels of one class, ascending, and 128 tokens.
struct Patch {
  AffineTile tile;
  uint32_t token;            // the first
  uint32_t column;           // of the class, the first
  const uint16_t* channels;  // tile.dim of them
};

// The contiguous copy of a patch for the backend operations.
struct PatchBytes {
  uint8_t elements[kStripTokens * kColumns * kElementBytesMax];
  uint8_t codes[kStripTokens * kColumns * kBitsMax / 8];
  uint8_t params[kStripTokens / kGroupTokensMin * kColumns * sizeof(AffineParams)];
};

// The offsets of the codes and the params of a class.
struct ClassPlace {
  uint64_t codes = 0;      // offset in the tile
  uint32_t row_bytes = 0;  // codes of a token
  uint32_t params = 0;     // its first column among those of a group
  uint32_t columns = 0;    // of all classes with params
};

ClassPlace PlaceOf(const MixedLayout& layout, const ChannelClasses& classes, ChannelClass of) {
  const uint32_t four = classes.counts[static_cast<uint8_t>(ChannelClass::kFourBits)];
  const uint32_t two = classes.counts[static_cast<uint8_t>(ChannelClass::kTwoBits)];
  if (of == ChannelClass::kFourBits) {
    return {layout.four_bits, CodeRowBytes(four, 4), 0, four + two};
  }
  return {layout.two_bits, CodeRowBytes(two, 2), four, four + two};
}

// Calls visit(patch) for every patch of a class until it returns false.
template <typename Visit>
bool ForEachPatch(const TileGeometry& geometry, const Recipe& recipe, const ChannelClasses& classes,
                  ChannelClass of, Visit visit) {
  uint16_t channels[kDimMax];
  uint32_t count = 0;
  for (uint32_t c = 0; c < geometry.dim; ++c) {
    if (classes.of[c] == of) channels[count++] = static_cast<uint16_t>(c);
  }
  Patch patch{};
  patch.tile.group = recipe.k_group_tokens;
  patch.tile.dtype = geometry.dtype;
  patch.tile.bits = of == ChannelClass::kFourBits ? 4 : 2;
  for (patch.token = 0; patch.token < geometry.rows; patch.token += kStripTokens) {
    patch.tile.tokens = std::min(geometry.rows - patch.token, kStripTokens);
    for (patch.column = 0; patch.column < count; patch.column += kColumns) {
      patch.tile.dim = std::min(count - patch.column, kColumns);
      patch.channels = channels + patch.column;
      if (!visit(patch)) return false;
    }
  }
  return true;
}

void GatherElements(const Patch& patch, uint32_t dim, uint32_t element_bytes, const uint8_t* tile,
                    uint8_t* elements) {
  for (uint32_t t = 0; t < patch.tile.tokens; ++t) {
    const uint64_t row = uint64_t{patch.token + t} * dim;
    for (uint32_t i = 0; i < patch.tile.dim; ++i, elements += element_bytes) {
      std::memcpy(elements, tile + (row + patch.channels[i]) * element_bytes, element_bytes);
    }
  }
}

// Copies codes and params of a patch to a tile.
void PlaceCodes(const Patch& patch, const ClassPlace& place, uint64_t params_offset,
                const PatchBytes& bytes, uint8_t* tile) {
  const uint32_t row_bytes = CodeRowBytes(patch.tile.dim, patch.tile.bits);
  const uint64_t first = place.codes + patch.column * patch.tile.bits / 8;
  for (uint32_t t = 0; t < patch.tile.tokens; ++t) {
    std::memcpy(tile + first + uint64_t{patch.token + t} * place.row_bytes,
                bytes.codes + uint64_t{t} * row_bytes, row_bytes);
  }
  const uint32_t pair_bytes = sizeof(AffineParams);
  for (uint32_t t = 0; t < patch.tile.tokens; t += patch.tile.group) {
    const uint32_t group = t / patch.tile.group;
    const uint64_t pair = uint64_t{patch.token / patch.tile.group + group} * place.columns +
                          place.params + patch.column;
    std::memcpy(tile + params_offset + pair * pair_bytes,
                bytes.params + uint64_t{group} * patch.tile.dim * pair_bytes,
                patch.tile.dim * pair_bytes);
  }
}

bool EncodeClass(const Backend& backend, const Recipe& recipe, const TileSource& source,
                 const TilePlan& plan, const ChannelClasses& classes, ChannelClass of,
                 const MixedLayout& layout, uint8_t* tile) {
  const TileGeometry& geometry = source.geometry;
  const ClassPlace place = PlaceOf(layout, classes, of);
  PatchBytes bytes;
  return ForEachPatch(geometry, recipe, classes, of, [&](const Patch& patch) {
    uint64_t rows[kRowWords] = {plan.rows[patch.token / 64], plan.rows[patch.token / 64 + 1]};
    GatherElements(patch, geometry.dim, ElementBytes(geometry.dtype), source.bytes, bytes.elements);
    const bool is_coded = OperationOf<&Backend::encode_per_channel>(backend)(
        patch.tile, bytes.elements, rows, bytes.codes, bytes.params);
    PlaceCodes(patch, place, layout.tile.params.offset, bytes, tile);
    return is_coded;
  });
}

// Stores the channels of source bits of tokens that are not rows.
void StoreSourceBits(const TileSource& source, const TilePlan& plan, const ChannelClasses& classes,
                     uint8_t* target) {
  const TileGeometry& geometry = source.geometry;
  const uint32_t bytes = ElementBytes(geometry.dtype);
  for (uint32_t token = 0; token < geometry.rows; ++token) {
    const uint8_t* elements = source.bytes + token * geometry.RowBytes();
    for (uint32_t c = 0; c < geometry.dim; ++c) {
      if (classes.of[c] != ChannelClass::kSourceBits) continue;
      if (!plan.IsRow(token)) std::memcpy(target, elements + uint64_t{c} * bytes, bytes);
      target += bytes;
    }
  }
}

void StoreMap(const TileGeometry& geometry, const ChannelClasses& classes, uint8_t* map) {
  for (uint32_t c = 0; c < geometry.dim; ++c) {
    PackCode(map, c, 2, static_cast<uint8_t>(classes.of[c]));
  }
}

// Loads the classes from a tile's map. Returns false if the recipe makes no such map.
bool LoadMap(const TileGeometry& geometry, const Recipe& recipe, const uint8_t* map,
             ChannelClasses* classes) {
  uint32_t counts[4] = {};
  for (uint32_t c = 0; c < geometry.dim; ++c) {
    const uint8_t value = UnpackCode(map, c, 2);
    classes->of[c] = static_cast<ChannelClass>(value);
    ++counts[value];
  }
  std::copy_n(counts, kChannelClasses, classes->counts);
  const bool is_budget = static_cast<MixedVariant>(recipe.variant) == MixedVariant::kBudget;
  return counts[3] == 0 &&
         (!is_budget || (counts[2] == 0 && counts[1] == FourBitChannels(geometry.dim)));
}

// Returns nullopt if the tile's map does not fit its recipe or the tile's size.
std::optional<MixedLayout> LoadLayout(const StoredTile& tile, ChannelClasses* classes) {
  if (!LoadMap(tile.geometry, *tile.recipe, U8(tile.content.data()), classes)) return std::nullopt;
  const auto layout = MixedLayoutOf(tile.geometry, *tile.recipe, classes->counts, tile.entry.rows);
  if (!layout.has_value() || layout->tile.bytes != tile.content.size()) return std::nullopt;
  return layout;
}

Error Encode(const Backend& backend, const Recipe& recipe, const TileSource& source,
             ImageWriter* writer) {
  const TileGeometry& geometry = source.geometry;
  TilePlan plan;
  plan.affine = AffineOf(geometry, recipe);
  SelectNone(backend, source, &plan);
  ChannelClasses classes;
  AllocateBySalience(recipe, source, plan, &classes);
  const auto layout = MixedLayoutOf(geometry, recipe, classes.counts, plan.RowCount());
  if (!layout.has_value()) return Error::kBadTile;
  const std::span<std::byte> content = writer->Reserve(layout->tile.bytes);
  if (content.empty()) return Error::kTargetTooSmall;
  uint8_t* tile = U8(content.data());
  std::memset(tile, 0, content.size());
  StoreMap(geometry, classes, tile);
  StoreSourceBits(source, plan, classes, tile + layout->source_bits);
  for (const ChannelClass of : {ChannelClass::kFourBits, ChannelClass::kTwoBits}) {
    if (!EncodeClass(backend, recipe, source, plan, classes, of, *layout, tile)) {
      return Error::kBadTile;
    }
  }
  WriteRows(source, plan, layout->tile, content.data());
  writer->Commit(content.size(), Crc32c(content), plan.RowCount(), kMixedForm);
  return Error::kOk;
}

bool Decode(const DecodeWork& work, const StoredTile& stored, uint8_t* target) {
  const TileGeometry& geometry = stored.geometry;
  const Recipe& recipe = *stored.recipe;
  ChannelClasses classes;
  const auto layout = LoadLayout(stored, &classes);
  if (!layout.has_value()) return false;
  const uint8_t* tile = U8(stored.content.data());
  OperationOf<&Backend::decode_mixed>(work.backend)(
      {geometry.rows, geometry.dim, recipe.k_group_tokens, geometry.dtype, work.is_streamed,
       classes.of, tile + layout->source_bits, tile + layout->four_bits, tile + layout->two_bits,
       tile + layout->tile.params.offset},
      target);
  OverlayRows(stored, layout->tile, target);
  return true;
}

// Returns the layout; nullopt if LoadLayout() returns none, or if unused bits of map or codes are
// set.
std::optional<TileLayout> Check(const StoredTile& stored) {
  const TileGeometry& geometry = stored.geometry;
  ChannelClasses classes;
  const auto layout = LoadLayout(stored, &classes);
  if (!layout.has_value()) return std::nullopt;
  const uint8_t* tile = U8(stored.content.data());
  const uint32_t map_bytes = CodeRowBytes(geometry.dim, 2);
  const bool is_clean =
      AreCodeRowsClean(tile, 1, geometry.dim, 2) &&
      IsZero(stored.content.data() + map_bytes, layout->source_bits - map_bytes) &&
      AreCodeRowsClean(tile + layout->four_bits, geometry.rows, classes.counts[1], 4) &&
      AreCodeRowsClean(tile + layout->two_bits, geometry.rows, classes.counts[0], 2);
  if (!is_clean) return std::nullopt;
  return layout->tile;
}

Error Verify(const StoredTile& tile) {
  const auto layout = Check(tile);
  const bool is_valid = layout.has_value() && HasCleanPadding(*layout, tile.content.data()) &&
                        HasValidParams(*layout, tile.content.data()) && HasValidRows(tile, *layout);
  return is_valid ? Error::kOk : Error::kBadTile;
}

}  // namespace

const Form forms::kMixed = {"mixed", Layout, Encode, Decode, Verify, nullptr};

}  // namespace cairn::codecs
