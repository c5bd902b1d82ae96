// SPDX-License-Identifier: Apache-2.0
#include "codecs/transform/demote.h"

#include <algorithm>
#include <cstring>

#include "codecs/backend/backend_step.h"
#include "codecs/checksum/checksum.h"
#include "codecs/forms/steps.h"
#include "codecs/forms/strips.h"
#include "codecs/forms/tile_encode.h"
#include "codecs/image/encode.h"
#include "codecs/numbers/float_guard.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

bool Nests(const Recipe& inner, const Recipe& outer) {
  if (inner == outer) return true;
  if (inner.NeedsProfile()) return false;
  if (outer.IsLossless()) return !inner.NeedsBank();
  Recipe narrow = outer;
  narrow.bits = inner.bits;
  const bool has_codes = outer.id == RecipeId::kKivi || outer.id == RecipeId::kOtt ||
                         outer.id == RecipeId::kPatternkv || outer.id == RecipeId::kLogQuant;
  return has_codes && inner == narrow && inner.bits < outer.bits;
}

// Narrower codes; parameters and rows as they are.
Error NarrowTile(const Backend& backend, const ImageView& view, uint32_t index,
                 const TileGeometry& geometry, const Recipe& recipe, ImageWriter* writer) {
  const TileEntry entry = view.Tile(index);
  const std::byte* source = view.TileContent(index).data();
  const Recipe& outer = view.spec().recipe;
  const auto wide = LayoutOf(geometry, outer, entry.form, entry.rows);
  const auto narrow = LayoutOf(geometry, recipe, CodedForm(geometry, recipe), entry.rows);
  // Fewer bits never make a tile larger, so what was smaller than raw still is.
  if (!wide.has_value() || !narrow.has_value()) return Error::kNotDemotable;
  const std::span<std::byte> tile = writer->Reserve(narrow->bytes);
  if (tile.empty()) return Error::kTargetTooSmall;
  std::byte* target = tile.data();
  StepOf<&Backend::narrow_codes>(backend)(AffineOf(geometry, outer), recipe.bits, U8(source),
                                          U8(target));
  std::memset(target + narrow->codes_bytes, 0, narrow->side_offset - narrow->codes_bytes);
  const uint64_t side_bytes = narrow->content_bytes - narrow->side_offset;
  std::memcpy(target + narrow->side_offset, source + wide->side_offset, side_bytes);
  std::memset(target + narrow->content_bytes, 0, narrow->bytes - narrow->content_bytes);
  writer->Commit(narrow->bytes, Crc32c(tile), entry.rows, CodedForm(geometry, recipe));
  return Error::kOk;
}

// Decoded into the last bytes of the target, which no image of the new recipe reaches, and encoded
// anew.
Error RecodeTile(const Backend& backend, const ImageView& view, uint32_t index,
                 const Recipe& recipe, std::span<std::byte> target, TileSource source,
                 ImageWriter* writer) {
  const std::span<std::byte> bits = target.last(source.geometry.SourceBytes());
  StripDecoder strips(backend, false);
  const bool is_decoded =
      strips.Add(source.geometry, view.spec().recipe, view.TileContent(index), U8(bits.data())) &&
      strips.Flush();
  if (!is_decoded) return Error::kBadTile;
  source.bytes = U8(bits.data());
  return EncodeTile(backend, recipe, source, writer);
}

// What RecodeTile() needs behind the image.
uint64_t RecodeBytes(const ImageView& view, const Recipe& recipe) {
  const ImageSpec& spec = view.spec();
  if (spec.recipe.id != RecipeId::kExact || recipe == spec.recipe) return 0;
  uint64_t bytes = 0;
  for (uint32_t plane = 0; plane < PlaneCount(spec.tile.kind); ++plane) {
    bytes = std::max(bytes, GeometryOf(spec, plane).SourceBytes());
  }
  return bytes;
}

}  // namespace

uint64_t DemoteBytesMax(const ImageView& view, const Recipe& recipe) {
  uint64_t bytes = 0;
  // The limits of an image depend on no recipe, and this one has been parsed.
  if (MaxImageBytes(view.spec(), &bytes) != Error::kOk) return 0;
  return bytes + RecodeBytes(view, recipe);
}

Error Demote(const Backend& backend, const ImageView& view, const Recipe& recipe,
             std::span<std::byte> target, size_t* bytes) {
  const FloatGuard guard;
  if (!IsKnown(recipe)) return Error::kUnknownRecipe;
  if (!Nests(recipe, view.spec().recipe)) return Error::kNotDemotable;
  ImageSpec spec = view.spec();
  spec.recipe = recipe;
  if (view.spec().recipe.IsLossless()) spec = RecordedSpec(spec, {});
  const uint64_t recode_bytes = RecodeBytes(view, recipe);
  if (target.size() < recode_bytes ||
      target.size() - recode_bytes < PrefixBytes(view.tile_count())) {
    return Error::kTargetTooSmall;
  }
  ImageWriter writer(spec, target.first(target.size() - recode_bytes));
  const uint32_t planes = PlaneCount(spec.tile.kind);
  HeadWork head;
  for (uint32_t i = 0; i < view.tile_count(); ++i) {
    const TileGeometry geometry = GeometryOf(spec, i % planes);
    if (i % planes == 0) head = {};
    // The bits of a raw tile are the source's.
    TileSource source{geometry, U8(view.TileContent(i).data()), spec.first_position,
                      HeadOf(spec, i)};
    source.head = &head;
    const bool is_raw = view.Tile(i).form == kRawForm;
    Error error = Error::kOk;
    if (recipe == view.spec().recipe ||
        (is_raw && !view.spec().recipe.IsLossless() && view.spec().recipe.id != RecipeId::kKivi)) {
      error = writer.Copy(view, i);
    } else if (is_raw) {
      error = EncodeTile(backend, recipe, source, &writer);
    } else if (view.Tile(i).form == kStripsForm) {
      error = RecodeTile(backend, view, i, recipe, target, source, &writer);
    } else {
      error = NarrowTile(backend, view, i, geometry, recipe, &writer);
    }
    if (error != Error::kOk) return error;
  }
  *bytes = writer.Finish();
  return Error::kOk;
}

}  // namespace cairn::codecs
