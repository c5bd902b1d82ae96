// SPDX-License-Identifier: Apache-2.0
#include "codecs/forms/steps.h"

#include <cstring>
#include <optional>

#include "codecs/backend/backend_step.h"
#include "codecs/backend/hot_tile.h"
#include "codecs/backend/reference/step.h"
#include "codecs/checksum/checksum.h"
#include "codecs/numbers/float_guard.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

Domain DomainOf(const Profile& profile) {
  if (profile.HasBasis()) return Domain::kBasis;
  return profile.PairCount() != 0 ? Domain::kBeforeRope : Domain::kAsWritten;
}

// Calls visit(index, shape, parts, bytes of the strip) for every strip of a tile, in order. False
// where the tile's bytes are not just the strips that their headers state, or visit() returns
// false.
template <typename Visit>
bool ForEachStepStrip(const TileGeometry& geometry, std::span<const std::byte> content,
                      Visit visit) {
  const uint8_t* bytes = U8(content.data());
  uint64_t offset = 0;
  for (uint32_t i = 0; i < StripCount(geometry.rows); ++i) {
    const StripShape shape = StripOf(geometry, {}, i);
    StepStripParts parts;
    if (!ParseStepStrip(shape, bytes + offset, content.size() - offset, &parts)) return false;
    if (!visit(i, shape, parts, bytes + offset)) return false;
    offset += parts.bytes;
  }
  return offset == content.size();
}

StepRate RateOf(const Recipe& recipe) { return {recipe.multiplier, recipe.level}; }

void MakeTile(const TileGeometry& geometry, const Recipe& recipe, const Profile& profile,
              ProfileHead at, StepTile* tile) {
  MakeStepTile(profile, at, geometry.PlaneIndex(), RateOf(recipe), geometry.dtype, tile);
}

// One coded tile at the level of `recipe`.
Error DemoteTile(const ImageView& view, uint32_t index, const Profile& profile,
                 const Recipe& recipe, ImageWriter* writer) {
  const ImageSpec& spec = view.spec();
  const TileGeometry geometry = GeometryOf(spec, index % PlaneCount(spec.tile.kind));
  StepTile from;
  StepTile to;
  MakeTile(geometry, spec.recipe, profile, HeadOf(spec, index), &from);
  MakeTile(geometry, recipe, profile, HeadOf(spec, index), &to);
  const std::span<std::byte> room = writer->Rest(RawLayout(geometry).bytes - kSectionAlignment);
  uint64_t bytes = 0;
  uint32_t rows = 0;
  const bool has_room = room.size() == RawLayout(geometry).bytes - kSectionAlignment;
  const Error too_large = has_room ? Error::kNotDemotable : Error::kTargetTooSmall;
  Error error = Error::kBadTile;
  const auto demote = [&](uint32_t, const StripShape& shape, const StepStripParts& parts,
                          const uint8_t* strip) {
    uint8_t* target = U8(room.data()) + bytes;
    const uint64_t left = room.size() - bytes;
    bool is_valid = true;
    uint64_t strip_bytes = 0;
    if (parts.mode == StepStripMode::kCoded) {
      strip_bytes =
          reference::DemoteStepStrip(from, to, shape.tokens, parts, strip, target, left, &is_valid);
    } else if (parts.bytes <= left) {
      std::memcpy(target, strip, parts.bytes);
      strip_bytes = parts.bytes;
    }
    if (is_valid && strip_bytes == 0) error = too_large;
    bytes += strip_bytes;
    rows += parts.rows;
    return strip_bytes != 0;
  };
  if (!ForEachStepStrip(geometry, view.TileContent(index), demote)) return error;
  writer->Commit(bytes, Crc32c(room.first(bytes)), rows, kStepStripsForm);
  return Error::kOk;
}

void SetRate(const Profile& profile, const Digest& id, const Recipe& recipe, ImageSpec* spec) {
  spec->recipe = recipe;
  spec->domain = DomainOf(profile);
  NameSideObject(&id, spec);
}

}  // namespace

Error SetCairn(const Profile& profile, const Digest& id, uint32_t bits_in_tenths, uint32_t level,
               ImageSpec* spec) {
  const std::optional<int16_t> multiplier = profile.MultiplierOf(bits_in_tenths);
  if (!multiplier.has_value() || level > kStepLevelMax) return Error::kUnknownRecipe;
  SetRate(profile, id, {.id = RecipeId::kCairn, .bits = static_cast<uint8_t>(bits_in_tenths)},
          spec);
  spec->recipe.level = static_cast<uint8_t>(level);
  spec->recipe.multiplier = *multiplier;
  return Error::kOk;
}

Error SetCairnHot(const Profile& profile, const Digest& id, uint32_t bits_in_tenths,
                  ImageSpec* spec) {
  if (bits_in_tenths < kHotBitsMin || bits_in_tenths > kHotBitsMax) return Error::kUnknownRecipe;
  const std::optional<int16_t> multiplier = HotMultiplierOf(profile, bits_in_tenths);
  if (!multiplier.has_value()) return Error::kUnknownRecipe;
  SetRate(profile, id, {.id = RecipeId::kCairnHot, .bits = static_cast<uint8_t>(bits_in_tenths)},
          spec);
  spec->recipe.multiplier = *multiplier;
  return Error::kOk;
}

bool IsCodableWith(const ImageSpec& spec, const Profile* profile) {
  if (!spec.recipe.NeedsProfile()) return true;
  if (profile == nullptr || !profile->Fits(spec.tile, spec.slice) ||
      spec.domain != DomainOf(*profile)) {
    return false;
  }
  return spec.recipe.id == RecipeId::kCairnHot ||
         profile->MultiplierOf(spec.recipe.bits) == spec.recipe.multiplier;
}

bool IsEncodableWith(const ImageSpec& spec, const Profile* profile) {
  if (!spec.recipe.MayHaveProfile() || spec.side_object_count == 0) return true;
  return profile != nullptr && profile->Fits(spec.tile, spec.slice);
}

ProfileHead HeadOf(const ImageSpec& spec, uint32_t index) {
  const uint32_t pair = index / PlaneCount(spec.tile.kind);
  return {spec.slice.layer_first + pair / spec.slice.head_count,
          spec.slice.head_first + pair % spec.slice.head_count};
}

Error VerifyStepStrips(const TileGeometry& geometry, std::span<const std::byte> content,
                       uint32_t rows) {
  StripFault fault = StripFault::kNone;
  uint32_t found = 0;
  const auto check = [&](uint32_t, const StripShape& shape, const StepStripParts& parts,
                         const uint8_t* strip) {
    fault = CheckStepStrip(shape, strip, parts);
    found += parts.rows;
    return fault == StripFault::kNone;
  };
  if (ForEachStepStrip(geometry, content, check) && found == rows) return Error::kOk;
  return fault == StripFault::kPadding ? Error::kBadPadding : Error::kBadTile;
}

StepSource StepSourceOf(const TileSource& source, uint32_t index) {
  const TileGeometry& geometry = source.geometry;
  const uint64_t token = uint64_t{index} * kStripTokens;
  StepSource strip;
  strip.tokens = StripOf(geometry, {}, index).tokens;
  strip.position = source.first_position + token;
  strip.bytes = source.bytes + StripSourceOffset(geometry, index);
  if (source.v != nullptr) {
    strip.v = source.v + token * source.profile->Dim(1) * ElementBytes(geometry.dtype);
  }
  strip.scratch = source.scratch;
  return strip;
}

Error EncodeStepStrips(const Backend& backend, const Recipe& recipe, const TileSource& source,
                       ImageWriter* writer) {
  const TileGeometry& geometry = source.geometry;
  StepTile tile;
  MakeTile(geometry, recipe, *source.profile, source.at, &tile);
  const std::span<std::byte> room = writer->Rest(RawLayout(geometry).bytes - kSectionAlignment);
  const auto encode = StepOf<&Backend::encode_step_strip>(backend);
  uint64_t bytes = 0;
  uint32_t rows = 0;
  for (uint32_t i = 0; i < StripCount(geometry.rows); ++i) {
    uint32_t strip_rows = 0;
    const uint64_t strip_bytes = encode(tile, StepSourceOf(source, i), U8(room.data()) + bytes,
                                        room.size() - bytes, &strip_rows);
    if (strip_bytes == 0) return Error::kBadTile;
    bytes += strip_bytes;
    rows += strip_rows;
  }
  writer->Commit(bytes, Crc32c(room.first(bytes)), rows, kStepStripsForm);
  return Error::kOk;
}

bool StepStripDecoder::Add(const ImageSpec& spec, uint32_t index, const Profile& profile,
                           std::span<const std::byte> content, uint8_t* target) {
  if (tile_count_ == kStripsAtOnce && !Flush()) return false;
  const TileGeometry geometry = GeometryOf(spec, index % PlaneCount(spec.tile.kind));
  StepTile& tile = tiles_[tile_count_++];
  MakeTile(geometry, spec.recipe, profile, HeadOf(spec, index), &tile);
  const auto add = [&](uint32_t i, const StripShape& shape, const StepStripParts& parts,
                       const uint8_t* strip) {
    const uint64_t token = uint64_t{i} * kStripTokens;
    jobs_[count_++] = {&tile,        shape.tokens, spec.first_position + token,
                       parts,        strip,        target + StripSourceOffset(geometry, i),
                       is_streamed_, scratch_};
    return count_ < kStripsAtOnce || DecodeJobs();
  };
  return ForEachStepStrip(geometry, content, add);
}

bool StepStripDecoder::DecodeJobs() {
  const uint32_t count = count_;
  count_ = 0;
  return count == 0 || StepOf<&Backend::decode_step_strips>(backend_)(jobs_, count);
}

bool StepStripDecoder::Flush() {
  tile_count_ = 0;
  return DecodeJobs();
}

Error DemoteSteps(const ImageView& view, const Profile& profile, uint32_t level,
                  std::span<std::byte> target, size_t* bytes) {
  const FloatGuard guard;
  ImageSpec spec = view.spec();
  if (spec.recipe.id != RecipeId::kCairn || level <= spec.recipe.level || level > kStepLevelMax) {
    return Error::kNotDemotable;
  }
  if (!IsCodableWith(spec, &profile)) return Error::kNoProfile;
  spec.recipe.level = static_cast<uint8_t>(level);
  if (target.size() < PrefixBytes(view.tile_count())) return Error::kTargetTooSmall;
  ImageWriter writer(spec, target);
  for (uint32_t i = 0; i < view.tile_count(); ++i) {
    const Error error = view.Tile(i).form == kStepStripsForm
                            ? DemoteTile(view, i, profile, spec.recipe, &writer)
                            : writer.Copy(view, i);
    if (error != Error::kOk) return error;
  }
  *bytes = writer.Finish();
  return Error::kOk;
}

}  // namespace cairn::codecs
