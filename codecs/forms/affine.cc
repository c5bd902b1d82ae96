// SPDX-License-Identifier: Apache-2.0
#include "codecs/forms/affine.h"

#include <cstring>

#include "codecs/backend/backend_operation.h"
#include "codecs/checksum/checksum.h"
#include "codecs/forms/rows.h"
#include "codecs/pack/dense.h"
#include "codecs/stages/quantize/affine.h"
#include "codecs/stages/select/log_rows.h"
#include "codecs/stages/select/min_norm.h"
#include "codecs/stages/select/scores.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

uint64_t GroupCount(const AffineTile& tile, bool is_per_channel) {
  const uint32_t along = is_per_channel ? tile.tokens : tile.dim;
  const uint32_t across = is_per_channel ? tile.dim : tile.tokens;
  return uint64_t{(along + tile.group - 1) / tile.group} * across;
}

bool HasValidChain(const TileLayout& layout, const uint8_t* content) {
  ChainHead chain;
  return layout.chain.bytes == 0 || LoadChain(content + layout.chain.offset, &chain);
}

// Checks the scores of a tile of arkv, which its K tile has. Other tiles have none.
bool HasValidScores(const StoredTile& tile, const uint8_t* content) {
  const TileLayout& layout = tile.layout;
  return layout.scales.bytes == 0 ||
         AreScores(tile.first_position, tile.geometry.rows, content + layout.scales.offset,
                   content + layout.positions.offset, tile.entry.rows);
}

// Returns a bit for each fault of a pair of fp16: a min that is not finite or is -0, and a range
// that is not finite or has a sign.
uint32_t FaultsOfParams(uint32_t pair) {
  const uint32_t magnitudes = pair & 0x7FFF7FFF;
  const uint32_t has_fault = (magnitudes + 0x04000400)  // a carry: all bits of the exponent are set
                             | (pair & 0x80000000)      // the sign of the range
                             |
                             (pair & ~(magnitudes + 0x7FFF) & 0x8000);  // a sign, and no magnitude
  return has_fault & 0x80008000;
}

std::optional<TileLayout> Layout(const TileGeometry& geometry, const Recipe& recipe, uint32_t rows,
                                 uint64_t) {
  return PlaceParts(LayoutOfGroups(geometry, recipe, rows), geometry);
}

Error Encode(const Backend& backend, const Recipe& recipe, const TileSource& source,
             ImageWriter* writer) {
  return EncodeGroups(backend, recipe, source, nullptr, writer);
}

bool Decode(const DecodeWork& work, const StoredTile& stored, uint8_t* target) {
  AffineTile tile = AffineOf(stored.geometry, *stored.recipe);
  // If many rows are written over the elements, the target is better kept in the caches.
  tile.is_streamed = work.is_streamed && 2 * stored.entry.rows < stored.geometry.rows;
  tile.behind = U8(stored.behind);
  DecodeAffine(work.backend, tile, stored.geometry, stored.layout, U8(stored.content.data()),
               target);
  OverlayRows(stored, stored.layout, target);
  return true;
}

}  // namespace

TileLayout LayoutOfGroups(const TileGeometry& geometry, const Recipe& recipe, uint32_t rows) {
  const AffineTile tile = AffineOf(geometry, recipe);
  const bool is_per_channel = geometry.IsPerChannel();
  TileLayout layout = LayoutOfRows(geometry, rows);
  layout.codes_bytes = uint64_t{tile.tokens} * CodeRowBytes(tile.dim, tile.bits);
  layout.params.bytes = GroupCount(tile, is_per_channel) * kParamsBytes;
  layout.chain.bytes = recipe.Traits().follows_chain && is_per_channel ? kChainBytes : 0;
  layout.scales.bytes = recipe.HasScores() && is_per_channel ? geometry.rows * kScaleBytes : 0;
  return layout;
}

Error EncodeGroups(const Backend& backend, const Recipe& recipe, const TileSource& source,
                   StoreMore store_more, ImageWriter* writer) {
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
  const bool is_log = recipe.Traits().has_ageing_rows;
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
  uint8_t* target = U8(tile.data());
  if (layout->chain.bytes != 0) StoreChain(source.head->chain, target + layout->chain.offset);
  if (layout->scales.bytes != 0) StoreScores(source, target + layout->scales.offset);
  if (store_more != nullptr) store_more(plan, recipe, *layout, target);
  writer->Commit(layout->bytes, Crc32c(tile), rows, form);
  return Error::kOk;
}

Error VerifyGroups(const StoredTile& tile) {
  const Recipe& recipe = *tile.recipe;
  const uint8_t* content = U8(tile.content.data());
  if (!AreCodeRowsClean(content, tile.geometry.rows, tile.geometry.dim, recipe.bits)) {
    return Error::kBadPadding;
  }
  const bool has_valid_rows =
      recipe.Traits().has_ageing_rows
          ? AreLogRows(recipe, tile.geometry.rows, tile.first_position,
                       content + tile.layout.positions.offset, tile.entry.rows)
          : HasValidRows(tile, tile.layout);
  const bool is_valid = HasValidParams(tile.layout, tile.content.data()) &&
                        HasValidChain(tile.layout, content) && has_valid_rows &&
                        HasValidScores(tile, content);
  return is_valid ? Error::kOk : Error::kBadTile;
}

Error NarrowGroups(const Backend& backend, const DecodeInputs&, const StoredTile& tile,
                   const Recipe& recipe, ImageWriter* writer) {
  const TileLayout& wide = tile.layout;
  const uint16_t form = CodedForm(tile.geometry, recipe);
  const auto narrow = LayoutOf(tile.geometry, recipe, form, tile.entry.rows);
  // Fewer bits never make a tile larger, so a tile that was smaller than raw still is.
  if (!narrow.has_value()) return Error::kNotDemotable;
  const std::span<std::byte> room = writer->Reserve(narrow->bytes);
  if (room.empty()) return Error::kTargetTooSmall;
  const std::byte* source = tile.content.data();
  std::byte* target = room.data();
  OperationOf<&Backend::narrow_codes>(backend)(AffineOf(tile.geometry, *tile.recipe), recipe.bits,
                                               U8(source), U8(target));
  std::memset(target + narrow->codes_bytes, 0, narrow->side_offset - narrow->codes_bytes);
  const uint64_t side_bytes = narrow->content_bytes - narrow->side_offset;
  std::memcpy(target + narrow->side_offset, source + wide.side_offset, side_bytes);
  std::memset(target + narrow->content_bytes, 0, narrow->bytes - narrow->content_bytes);
  writer->Commit(narrow->bytes, Crc32c(room), tile.entry.rows, form);
  return Error::kOk;
}

bool HasValidParams(const TileLayout& layout, const std::byte* tile) {
  constexpr uint64_t kPairsAtOnce = 16;  // so that the compiler uses vectors
  const std::byte* params = tile + layout.params.offset;
  const uint64_t pair_count = layout.params.bytes / kParamsBytes;
  uint32_t faults = 0;
  const auto check = [&faults](const uint32_t* pairs, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) faults |= FaultsOfParams(pairs[i]);
  };
  uint32_t pairs[kPairsAtOnce];
  uint64_t at = 0;
  for (; at + kPairsAtOnce <= pair_count; at += kPairsAtOnce) {
    std::memcpy(pairs, params + at * kParamsBytes, sizeof(pairs));
    check(pairs, kPairsAtOnce);
  }
  for (; at < pair_count; ++at) {
    pairs[0] = Load<uint32_t>(params + at * kParamsBytes);
    check(pairs, 1);
  }
  return faults == 0;
}

const Form forms::kAffine = {"affine", Layout, Encode, Decode, VerifyGroups, NarrowGroups};

}  // namespace cairn::codecs
