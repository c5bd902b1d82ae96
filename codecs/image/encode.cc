// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/encode.h"

#include "codecs/backend/step_scratch.h"
#include "codecs/forms/form.h"
#include "codecs/image/chain.h"
#include "codecs/image/settle.h"
#include "codecs/numbers/float_guard.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

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

// What the inputs have of the tile's head.
void AddInputs(const ImageSpec& spec, const EncodeInputs& inputs, TileSource* tile) {
  const uint64_t head = uint64_t{tile->at.layer - spec.slice.layer_first} * spec.slice.head_count +
                        (tile->at.head - spec.slice.head_first);
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
  const Tiling tiling = TilingOf(spec);
  const auto tile_count = static_cast<uint32_t>(tiling.count());
  if (target.size() < PrefixBytes(tile_count)) return Error::kTargetTooSmall;

  const ImageSpec recorded = RecordedSpec(spec, inputs);
  ImageWriter writer(recorded, target);
  const uint32_t planes = PlaneCount(spec.tile.kind);
  const uint8_t* tile_bytes = U8(source.data());
  HeadWork head;
  StepScratch scratch;
  for (uint32_t i = 0; i < tile_count; ++i) {
    const TileArea area = tiling.AreaOf(i);
    const bool is_first = area.plane_first == 0;
    TileSource tile{GeometryOf(spec, area.plane_first),
                    tile_bytes,
                    spec.first_position,
                    {area.slice.layer_first, area.slice.head_first}};
    tile.head = &head;
    AddInputs(spec, inputs, &tile);
    if (is_first) head = {.chain = ChainBefore(spec, tile.at, inputs.parents)};
    if (spec.side_object_count != 0 && spec.recipe.MayHaveProfile()) tile.profile = inputs.profile;
    if (spec.recipe.NeedsProfile()) {
      tile.profile = inputs.profile;
      tile.scratch = &scratch;
      if (planes == 2) tile.v = is_first ? tile_bytes + tile.geometry.SourceBytes() : tile_bytes;
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
