// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/encode.h"

#include <array>
#include <cstring>

#include "codecs/backend/step_scratch.h"
#include "codecs/checksum/checksum.h"
#include "codecs/forms/fp8.h"
#include "codecs/forms/hot.h"
#include "codecs/forms/kept.h"
#include "codecs/forms/mixed.h"
#include "codecs/forms/patterned.h"
#include "codecs/forms/steps.h"
#include "codecs/forms/strips.h"
#include "codecs/forms/tile_encode.h"
#include "codecs/image/chain.h"
#include "codecs/image/settle.h"
#include "codecs/numbers/float_guard.h"
#include "codecs/stages/select/log_rows.h"
#include "codecs/stages/select/min_norm.h"
#include "codecs/stages/select/scores.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

Error WriteRaw(const TileSource& source, ImageWriter* writer) {
  const TileLayout layout = RawLayout(source.geometry);
  const std::span<std::byte> tile = writer->Reserve(layout.bytes);
  if (tile.empty()) return Error::kTargetTooSmall;
  const auto* bits = reinterpret_cast<const std::byte*>(source.bytes);
  uint32_t crc = CopyCrc32c(0, tile.data(), {bits, layout.content_bytes});
  const std::span<std::byte> padding = tile.subspan(layout.content_bytes);
  if (!padding.empty()) {
    std::memset(padding.data(), 0, padding.size());
    crc = ExtendCrc32c(crc, padding);
  }
  writer->Commit(layout.bytes, crc, 0, kRawForm);
  return Error::kOk;
}

// positions: as they are stored.
void WriteRowsAt(const TileSource& source, std::span<const uint16_t> positions,
                 const TileLayout& layout, std::byte* tile) {
  const uint64_t row_bytes = source.geometry.RowBytes();
  std::byte* bits = tile + layout.row_bits.offset;
  std::byte* target = tile + layout.positions.offset;
  for (const uint16_t position : positions) {
    const uint32_t token = position & ~kRowStays;
    std::memcpy(bits, source.bytes + token * row_bytes, row_bytes);
    Store(target, position);
    bits += row_bytes;
    target += sizeof(uint16_t);
  }
  if (layout.chain.bytes != 0) StoreChain(source.head->chain, U8(tile) + layout.chain.offset);
  std::memset(tile + layout.codes_bytes, 0, layout.side_offset - layout.codes_bytes);
  std::memset(tile + layout.content_bytes, 0, layout.bytes - layout.content_bytes);
}

// A tile of codes with groups of params, by the stages of its recipe.
Error EncodeAffine(const Backend& backend, const Recipe& recipe, const TileSource& source,
                   ImageWriter* writer) {
  const Stages& stages = StagesOf(recipe);
  const TileGeometry& geometry = source.geometry;
  TilePlan plan;
  plan.affine = AffineOf(geometry, recipe);
  stages.select(backend, source, &plan);
  if (stages.predict != nullptr) stages.predict(backend, source, &plan);

  const uint16_t form = CodedForm(geometry, recipe);
  const auto planned = LayoutOf(geometry, recipe, form, plan.RowCount());
  if (!planned.has_value()) return Error::kBadTile;
  const std::span<std::byte> room = writer->Reserve(planned->params.offset + planned->params.bytes);
  if (room.empty()) return Error::kTargetTooSmall;
  if (!stages.quantize(backend, source, &plan, U8(room.data()),
                       U8(room.data()) + planned->params.offset)) {
    return Error::kBadTile;
  }
  // Quantizing may have added rows.
  LogRows log;
  const bool is_log = recipe.id == RecipeId::kLogQuant;
  if (is_log) {
    SelectLogRows(recipe, geometry.rows, source.first_position, source.chain_tokens, plan, &log);
  }
  const uint32_t rows = is_log ? log.count : plan.RowCount();
  const auto layout = LayoutOf(geometry, recipe, form, rows);
  if (!layout.has_value()) return Error::kBadTile;
  const std::span<std::byte> tile = writer->Reserve(layout->bytes);
  if (tile.empty()) return Error::kTargetTooSmall;
  if (is_log) {
    WriteRowsAt(source, std::span(log.positions).first(rows), *layout, tile.data());
  } else {
    WriteRows(source, plan, *layout, tile.data());
  }
  if (recipe.NeedsBank()) StorePatterns(plan, recipe, *layout, U8(tile.data()));
  if (layout->scales.bytes != 0) StoreScores(source, U8(tile.data()) + layout->scales.offset);
  writer->Commit(layout->bytes, Crc32c(tile), rows, form);
  return Error::kOk;
}

// kBadTile, with nothing committed, where the tile has to be raw; kTargetTooSmall.
Error EncodeCoded(const Backend& backend, const Recipe& recipe, const TileSource& source,
                  ImageWriter* writer) {
  switch (LayoutIdOf(CodedForm(source.geometry, recipe))) {
    case TileLayoutId::kRaw:
      return Error::kBadTile;
    case TileLayoutId::kAffine:
    case TileLayoutId::kPatterned:
      return EncodeAffine(backend, recipe, source, writer);
    case TileLayoutId::kStrips:
      return EncodeStrips(backend, recipe, source, writer);
    case TileLayoutId::kStepStrips:
      return EncodeStepStrips(backend, recipe, source, writer);
    case TileLayoutId::kHot:
      return EncodeHot(backend, recipe, source, writer);
    case TileLayoutId::kKept:
      return EncodeKept(backend, recipe, source, writer);
    case TileLayoutId::kFp8:
      return EncodeFp8(backend, recipe, source, writer);
    case TileLayoutId::kMixed:
      return EncodeMixed(backend, recipe, source, writer);
  }
  return Error::kBadTile;
}

// Each of the whole slice, or none.
bool AreWhole(const ImageSpec& spec, const EncodeInputs& inputs) {
  const uint64_t heads = uint64_t{spec.slice.layer_count} * spec.slice.head_count;
  const auto is_whole = [&](size_t size, uint64_t each) {
    return size == 0 || size == heads * each;
  };
  return is_whole(inputs.query_magnitudes.size(), spec.tile.k_dim) &&
         is_whole(inputs.token_scores.size(), spec.tokens) &&
         is_whole(inputs.token_states.size(), spec.tokens);
}

// What the inputs have of the head.
void AddInputs(const ImageSpec& spec, const EncodeInputs& inputs, uint64_t head, TileSource* tile) {
  tile->bank = inputs.bank;
  tile->chain_tokens = inputs.chain_tokens;
  if (!inputs.query_magnitudes.empty()) {
    tile->query_magnitudes = inputs.query_magnitudes.data() + head * spec.tile.k_dim;
  }
  if (!inputs.token_scores.empty()) {
    tile->token_scores = inputs.token_scores.data() + head * spec.tokens;
  }
  if (!inputs.token_states.empty()) {
    tile->token_states = inputs.token_states.data() + head * spec.tokens;
  }
}

}  // namespace

void WriteRows(const TileSource& source, const TilePlan& plan, const TileLayout& layout,
               std::byte* tile) {
  std::array<uint16_t, kTokensPerBlockMax> positions;
  uint32_t count = 0;
  for (uint32_t token = 0; token < source.geometry.rows; ++token) {
    if (plan.IsRow(token)) positions[count++] = static_cast<uint16_t>(token);
  }
  WriteRowsAt(source, std::span(positions).first(count), layout, tile);
}

Error EncodeTile(const Backend& backend, const Recipe& recipe, const TileSource& source,
                 ImageWriter* writer) {
  const Error error =
      source.geometry.IsCodable() ? EncodeCoded(backend, recipe, source, writer) : Error::kBadTile;
  return error == Error::kBadTile ? WriteRaw(source, writer) : error;
}

Error Encode(const Backend& backend, const ImageSpec& spec, std::span<const std::byte> source,
             std::span<std::byte> target, size_t* bytes, const EncodeInputs& inputs) {
  const FloatGuard guard;
  if (const Error error = Validate(spec); error != Error::kOk) return error;
  if (const Error error = CheckCodableWith(spec, {inputs.profile, inputs.bank});
      error != Error::kOk) {
    return error;
  }
  if (!IsEncodableWith(spec, inputs.profile)) return Error::kNoProfile;
  uint64_t source_bytes = 0;
  if (const Error error = SourceBytes(spec.tile, spec.slice, spec.tokens, &source_bytes);
      error != Error::kOk) {
    return error;
  }
  if (source.size() != source_bytes || !AreWhole(spec, inputs)) return Error::kSourceSize;
  const auto tile_count = static_cast<uint32_t>(TileCount(spec.tile, spec.slice));
  if (target.size() < PrefixBytes(tile_count)) return Error::kTargetTooSmall;

  const ImageSpec recorded = RecordedSpec(spec, inputs);
  ImageWriter writer(recorded, target);
  const uint32_t planes = PlaneCount(spec.tile.kind);
  const uint8_t* tile_bytes = U8(source.data());
  HeadWork head;
  StepScratch scratch;
  for (uint32_t i = 0; i < tile_count; ++i) {
    TileSource tile{GeometryOf(spec, i % planes), tile_bytes, spec.first_position, HeadOf(spec, i)};
    tile.head = &head;
    AddInputs(spec, inputs, i / planes, &tile);
    if (i % planes == 0) head = {.chain = ChainBefore(spec, tile.at, inputs.parents)};
    if (spec.side_object_count != 0 && spec.recipe.MayHaveProfile()) tile.profile = inputs.profile;
    if (spec.recipe.NeedsProfile()) {
      tile.profile = inputs.profile;
      tile.scratch = &scratch;
      if (planes == 2)
        tile.v = i % planes == 0 ? tile_bytes + tile.geometry.SourceBytes() : tile_bytes;
    }
    if (const Error error = EncodeTile(backend, spec.recipe, tile, &writer); error != Error::kOk) {
      return error;
    }
    tile_bytes += tile.geometry.SourceBytes();
  }
  *bytes = writer.Finish();
  return Error::kOk;
}

}  // namespace cairn::codecs
