// SPDX-License-Identifier: Apache-2.0
#include "codecs/forms/steps.h"

#include <cstring>

#include "codecs/backend/backend_operation.h"
#include "codecs/backend/reference/step.h"
#include "codecs/checksum/checksum.h"
#include "codecs/forms/strips.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

// Calls visit(index, shape, parts, bytes of the strip) for every strip of a tile, in order. Returns
// false if the strips' headers do not account for exactly the tile's bytes, or if visit() returns
// false.
template <typename Visit>
bool ForEachStepStrip(const TileGeometry& geometry, std::span<const std::byte> content,
                      Visit visit) {
  const uint8_t* bytes = U8(content.data());
  uint64_t offset = 0;
  for (uint32_t i = 0; i < StripCount(geometry.rows); ++i) {
    const StripShape shape = StripOf(geometry, {}, i);
    StepStripParts parts = {};
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

std::optional<TileLayout> Layout(const TileGeometry& geometry, const Recipe&, uint32_t,
                                 uint64_t bytes) {
  return LayoutOfBytes(geometry, bytes, StripCount(geometry.rows) * kStripBytesMin);
}

Error Encode(const Backend& backend, const Recipe& recipe, const TileSource& source,
             ImageWriter* writer) {
  const TileGeometry& geometry = source.geometry;
  StepTile tile;
  MakeTile(geometry, recipe, *source.profile, source.at, &tile);
  const std::span<std::byte> room = writer->Rest(RawLayout(geometry).bytes - kSectionAlignment);
  const auto encode = OperationOf<&Backend::encode_step_strip>(backend);
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
  writer->Commit(bytes, Crc32c(room.first(bytes)), rows, kStepsForm);
  return Error::kOk;
}

bool Decode(const DecodeWork& work, const StoredTile& tile, uint8_t* target) {
  return work.steps->Add(tile, *work.side.profile, target);
}

Error Verify(const StoredTile& tile) {
  StripFault fault = StripFault::kNone;
  uint32_t found = 0;
  const auto check = [&](uint32_t, const StripShape& shape, const StepStripParts& parts,
                         const uint8_t* strip) {
    fault = CheckStepStrip(shape, strip, parts);
    found += parts.rows;
    return fault == StripFault::kNone;
  };
  if (ForEachStepStrip(tile.geometry, tile.content, check) && found == tile.entry.rows)
    return Error::kOk;
  return fault == StripFault::kPadding ? Error::kBadPadding : Error::kBadTile;
}

// Recodes one coded tile to the level of `recipe`.
Error Narrow(const Backend&, const DecodeInputs& side, const StoredTile& tile, const Recipe& recipe,
             ImageWriter* writer) {
  const TileGeometry& geometry = tile.geometry;
  StepTile from;
  StepTile to;
  MakeTile(geometry, *tile.recipe, *side.profile, tile.at, &from);
  MakeTile(geometry, recipe, *side.profile, tile.at, &to);
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
  if (!ForEachStepStrip(geometry, tile.content, demote)) return error;
  writer->Commit(bytes, Crc32c(room.first(bytes)), rows, kStepsForm);
  return Error::kOk;
}

}  // namespace

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

bool StepStripDecoder::Add(const StoredTile& stored, const Profile& profile, uint8_t* target) {
  if (tile_count_ == kStripsAtOnce && !Flush()) return false;
  const TileGeometry& geometry = stored.geometry;
  StepTile& tile = tiles_[tile_count_++];
  MakeTile(geometry, *stored.recipe, profile, stored.at, &tile);
  const auto add = [&](uint32_t i, const StripShape& shape, const StepStripParts& parts,
                       const uint8_t* strip) {
    const uint64_t token = uint64_t{i} * kStripTokens;
    jobs_[count_++] = {&tile,
                       shape.tokens,
                       stored.first_position + token,
                       parts,
                       strip,
                       BehindStrip(stored, strip, parts.bytes),
                       target + StripSourceOffset(geometry, i),
                       is_streamed_,
                       scratch_};
    return count_ < kStripsAtOnce || DecodeJobs();
  };
  return ForEachStepStrip(geometry, stored.content, add);
}

bool StepStripDecoder::DecodeJobs() {
  const uint32_t count = count_;
  count_ = 0;
  return count == 0 || OperationOf<&Backend::decode_step_strips>(backend_)(jobs_, count);
}

bool StepStripDecoder::Flush() {
  tile_count_ = 0;
  return DecodeJobs();
}

const Form forms::kSteps = {"steps", Layout, Encode, Decode, Verify, Narrow};

}  // namespace cairn::codecs
