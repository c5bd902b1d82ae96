// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/token_reader.h"

#include <algorithm>

#include "codecs/forms/kept.h"
#include "codecs/image/tiles.h"
#include "codecs/numbers/math.h"
#include "codecs/stages/select/scores.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {

Error ReadScores(const ImageView& view, uint16_t layer, uint16_t head, std::span<float> scores) {
  const ImageSpec& spec = view.spec();
  if (!spec.slice.Contains({layer, 1, head, 1})) return Error::kInvalidSlice;
  const uint32_t index = view.IndexOf({layer, head, 0});
  const TileEntry entry = view.Tile(index);
  const TileGeometry geometry = GeometryOf(spec, 0);
  const auto layout = LayoutOf(geometry, spec.recipe, entry.form, entry.rows, entry.bytes);
  const bool is_whole = spec.recipe.HasScores() && entry.form == kRawForm;
  const bool has_scores = spec.recipe.HasScores() && !is_whole && layout.has_value();
  const uint8_t* stored = U8(view.TileContent(index).data());
  for (uint32_t token = 0; token < spec.tokens; ++token) {
    uint16_t score = is_whole ? kScoreInfinite : uint16_t{0};
    if (has_scores) score = Load<uint16_t>(stored + layout->scales.offset + 2 * uint64_t{token});
    scores[token] = Fp16ToFloat(score);
  }
  return Error::kOk;
}

Error ReadKept(const ImageView& view, uint16_t layer, uint16_t head, std::span<uint8_t> kept) {
  const ImageSpec& spec = view.spec();
  if (!spec.slice.Contains({layer, 1, head, 1})) return Error::kInvalidSlice;
  std::ranges::fill(kept.first(spec.tokens), uint8_t{1});
  for (uint8_t plane = 0; plane < PlaneCount(spec.tile.kind); ++plane) {
    const uint32_t index = view.IndexOf({layer, head, plane});
    const TileEntry entry = view.Tile(index);
    if (FormIdOf(entry.form) != FormId::kKept) continue;
    const auto layout =
        LayoutOf(GeometryOf(spec, plane), spec.recipe, entry.form, entry.rows, entry.bytes);
    const uint8_t* content = U8(view.TileContent(index).data());
    for (uint32_t token = 0; token < spec.tokens; ++token) {
      kept[token] &= IsKept(*layout, content, token) ? 1 : 0;
    }
  }
  return Error::kOk;
}

}  // namespace cairn::codecs
