// SPDX-License-Identifier: Apache-2.0
#include "codecs/transform/demote.h"

#include <algorithm>

#include "codecs/backend/backends.h"
#include "codecs/forms/strips.h"
#include "codecs/image/encode.h"
#include "codecs/image/settle.h"
#include "codecs/image/tiles.h"
#include "codecs/numbers/float_guard.h"
#include "codecs/numbers/static_step.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

bool Nests(const Recipe& inner, const Recipe& outer) {
  if (inner == outer) return true;
  if (inner.NeedsProfile()) return false;
  if (outer.IsLossless()) return !inner.NeedsBank();
  Recipe narrow = outer;
  narrow.bits = inner.bits;
  const Demotion demotes_to = outer.Traits().demotes_to;
  const bool has_codes =
      demotes_to == Demotion::kFewerBits || demotes_to == Demotion::kFewerBitsCoded;
  return has_codes && inner == narrow && inner.bits < outer.bits;
}

// Decodes a tile into the last bytes of the target, which no image of the new recipe reaches, and
// encodes it again.
Error RecodeTile(const Backend& backend, const StoredTile& tile, const Recipe& recipe,
                 std::span<std::byte> target, TileSource source, ImageWriter* writer) {
  const std::span<std::byte> bits = target.last(source.geometry.SourceBytes());
  StripDecoder strips(backend, false);
  const bool is_decoded = strips.Add(tile, U8(bits.data())) && strips.Flush();
  if (!is_decoded) return Error::kBadTile;
  source.bytes = U8(bits.data());
  return EncodeTile(backend, recipe, source, writer);
}

// Returns the room that RecodeTile() needs after the image.
uint64_t RecodeBytes(const ImageView& view, const Recipe& recipe) {
  const ImageSpec& spec = view.spec();
  if (spec.recipe.Traits().k_form != FormId::kStrips || recipe == spec.recipe) return 0;
  uint64_t bytes = 0;
  for (uint32_t plane = 0; plane < PlaneCount(spec.tile.kind); ++plane) {
    bytes = std::max(bytes, GeometryOf(spec, plane).SourceBytes());
  }
  return bytes;
}

}  // namespace

bool KeepsRawTiles(const Recipe& from) {
  const Demotion demotes_to = from.Traits().demotes_to;
  return demotes_to == Demotion::kFewerBitsCoded || demotes_to == Demotion::kLongerSteps;
}

bool IsDemotable(const Recipe& from, const Recipe& to) {
  if (from.Traits().demotes_to != Demotion::kLongerSteps) return Nests(to, from);
  Recipe stepped = from;
  stepped.level = to.level;
  return stepped == to && to.level >= from.level;
}

uint64_t DemoteBytesMax(const ImageView& view, const Recipe& recipe) {
  uint64_t bytes = 0;
  // The limits of an image do not depend on the recipe, and this image has been parsed.
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
  HeadWork head;
  for (uint32_t i = 0; i < view.tile_count(); ++i) {
    const StoredTile tile = StoredTileOf(view, i);
    if (view.IdOf(i).plane == 0) head = {};
    // A raw tile stores the bits of the source.
    TileSource source{tile.geometry, U8(tile.content.data()), spec.first_position, tile.at};
    source.head = &head;
    const Form& form = *FormOf(tile.entry.form);
    const bool is_raw = tile.entry.form == kRawForm;
    Error error = Error::kOk;
    if (recipe == view.spec().recipe || (is_raw && KeepsRawTiles(view.spec().recipe))) {
      error = writer.Copy(tile.entry, tile.content);
    } else if (is_raw) {
      error = EncodeTile(backend, recipe, source, &writer);
    } else if (form.narrow != nullptr) {
      error = form.narrow(backend, {}, tile, recipe, &writer);
    } else {
      error = RecodeTile(backend, tile, recipe, target, source, &writer);
    }
    if (error != Error::kOk) return error;
  }
  *bytes = writer.Finish();
  return Error::kOk;
}

Error DemoteSteps(const ImageView& view, const Profile& profile, uint32_t level,
                  std::span<std::byte> target, size_t* bytes) {
  const FloatGuard guard;
  ImageSpec spec = view.spec();
  if (spec.recipe.Traits().demotes_to != Demotion::kLongerSteps || level <= spec.recipe.level ||
      level > kStepLevelMax) {
    return Error::kNotDemotable;
  }
  if (!IsCodableWith(spec, &profile)) return Error::kNoProfile;
  spec.recipe.level = static_cast<uint8_t>(level);
  if (target.size() < PrefixBytes(view.tile_count())) return Error::kTargetTooSmall;
  ImageWriter writer(spec, target);
  for (uint32_t i = 0; i < view.tile_count(); ++i) {
    const StoredTile tile = StoredTileOf(view, i);
    const Error error = tile.entry.form == kStepsForm
                            ? forms::kSteps.narrow(ReferenceBackend(), {.profile = &profile}, tile,
                                                   spec.recipe, &writer)
                            : writer.Copy(tile.entry, tile.content);
    if (error != Error::kOk) return error;
  }
  *bytes = writer.Finish();
  return Error::kOk;
}

}  // namespace cairn::codecs
