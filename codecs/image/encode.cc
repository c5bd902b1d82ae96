// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/encode.h"

#include <array>

#include "codecs/backend/step_scratch.h"
#include "codecs/forms/form.h"
#include "codecs/image/chain.h"
#include "codecs/image/settle.h"
#include "codecs/numbers/float_guard.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

// Returns true if each input covers the whole slice or is empty.
bool AreWhole(const ImageSpec& spec, const EncodeInputs& inputs) {
  const uint64_t heads = uint64_t{spec.slice.layer_count} * spec.slice.head_count;
  const auto is_whole = [&](size_t size, uint64_t each) {
    return size == 0 || size == heads * each;
  };
  return is_whole(inputs.query_magnitudes.size(), spec.tile.k_dim) &&
         is_whole(inputs.token_scores.size(), spec.tokens) &&
         is_whole(inputs.token_states.size(), spec.tokens);
}

// Sets the inputs for the tile's head.
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

ViewShape ShapeOf(const ImageSpec& spec) {
  return {spec.tile, spec.slice.layer_count, spec.slice.head_count, spec.tokens};
}

Error Check(const ImageSpec& spec, const EncodeInputs& inputs) {
  if (const Error error = Validate(spec); error != Error::kOk) return error;
  if (const Error error = CheckCodableWith(spec, {inputs.profile, inputs.bank});
      error != Error::kOk) {
    return error;
  }
  return IsEncodableWith(spec, inputs.profile) ? Error::kOk : Error::kNoProfile;
}

// The tiles of a head, in the order of its planes: in the source, or gathered.
using HeadTiles = std::array<const uint8_t*, 2>;

HeadTiles TilesOf(const ViewShape& shape, const TargetView& source, uint32_t layer, uint32_t head,
                  std::span<std::byte> scratch) {
  HeadTiles tiles{};
  for (uint32_t plane = 0; plane < PlaneCount(shape.tile.kind); ++plane) {
    const std::byte* tile = DenseTile(shape, plane, source.At(plane), layer, head);
    if (tile == nullptr) {
      GatherTile(shape, plane, source.At(plane), layer, head, scratch.data());
      tile = scratch.data();
      scratch =
          scratch.subspan(TileBytes(shape.tile, PlaneAt(shape.tile.kind, plane), shape.tokens));
    }
    tiles[plane] = U8(tile);
  }
  return tiles;
}

// Encodes the tile of an area.
//   tiles  tiles of its head
//   work   state of its head
Error EncodeArea(const Backend& backend, const ImageSpec& spec, const TileArea& area,
                 const HeadTiles& tiles, const EncodeInputs& inputs, HeadWork* work,
                 StepScratch* scratch, ImageWriter* writer) {
  TileSource tile{GeometryOf(spec, area.plane_first),
                  tiles[area.plane_first],
                  spec.first_position,
                  {area.slice.layer_first, area.slice.head_first}};
  tile.head = work;
  AddInputs(spec, inputs, &tile);
  if (area.plane_first == 0) *work = {.chain = ChainBefore(spec, tile.at, inputs.parents)};
  if (spec.side_object_count != 0 && spec.recipe.MayHaveProfile()) tile.profile = inputs.profile;
  if (spec.recipe.NeedsProfile()) {
    tile.profile = inputs.profile;
    tile.scratch = scratch;
    tile.v = tiles[1];
  }
  return EncodeTile(backend, spec.recipe, tile, writer);
}

}  // namespace

Error Encode(const Backend& backend, const ImageSpec& spec, std::span<const std::byte> source,
             std::span<std::byte> target, size_t* bytes, const EncodeInputs& inputs) {
  if (const Error error = Check(spec, inputs); error != Error::kOk) return error;
  uint64_t source_bytes = 0;
  if (const Error error = SourceBytes(spec.tile, spec.slice, spec.tokens, &source_bytes);
      error != Error::kOk) {
    return error;
  }
  if (source.size() != source_bytes) return Error::kSourceSize;
  // The source is only read.
  auto* payload = const_cast<std::byte*>(source.data());
  return Encode(backend, spec, DenseView(ShapeOf(spec), payload), {}, target, bytes, inputs);
}

uint64_t RawPrefixBytes(const ImageSpec& spec) {
  uint64_t source_bytes = 0, image_bytes = 0;
  if (SourceBytes(spec.tile, spec.slice, spec.tokens, &source_bytes) != Error::kOk ||
      MaxImageBytes(spec, &image_bytes) != Error::kOk) {
    return 0;
  }
  const uint64_t prefix_bytes = PrefixBytes(TilingOf(spec).count());
  return prefix_bytes + source_bytes == image_bytes ? prefix_bytes : 0;
}

uint64_t ScratchBytes(const ImageSpec& spec, const TargetView& source) {
  const ViewShape shape = ShapeOf(spec);
  uint64_t bytes = 0;
  for (uint32_t plane = 0; plane < PlaneCount(spec.tile.kind); ++plane) {
    if (DenseTile(shape, plane, source.At(plane), 0, 0) != nullptr) continue;
    bytes += TileBytes(spec.tile, PlaneAt(spec.tile.kind, plane), spec.tokens);
  }
  return bytes;
}

Error Encode(const Backend& backend, const ImageSpec& spec, const TargetView& source,
             std::span<std::byte> scratch, std::span<std::byte> target, size_t* bytes,
             const EncodeInputs& inputs) {
  const FloatGuard guard;
  if (const Error error = Check(spec, inputs); error != Error::kOk) return error;
  if (!AreWhole(spec, inputs)) return Error::kSourceSize;
  const ViewShape shape = ShapeOf(spec);
  if (const Error error = CheckTarget(shape, source, true); error != Error::kOk) return error;
  const Tiling tiling = TilingOf(spec);
  const auto tile_count = static_cast<uint32_t>(tiling.count());
  if (target.size() < PrefixBytes(tile_count) || scratch.size() < ScratchBytes(spec, source)) {
    return Error::kTargetTooSmall;
  }
  const ImageSpec recorded = RecordedSpec(spec, inputs);
  ImageWriter writer(recorded, target);
  StepScratch step_scratch;
  HeadTiles tiles{};
  HeadWork work;
  for (uint32_t i = 0; i < tile_count; ++i) {
    const TileArea area = tiling.AreaOf(i);
    if (area.plane_first == 0) {
      tiles = TilesOf(shape, source, area.slice.layer_first - spec.slice.layer_first,
                      area.slice.head_first - spec.slice.head_first, scratch);
      // The scratch identifies V by address, and the next head's V may have the same address.
      step_scratch.v = nullptr;
    }
    if (const Error error =
            EncodeArea(backend, spec, area, tiles, inputs, &work, &step_scratch, &writer);
        error != Error::kOk) {
      return error;
    }
  }
  *bytes = writer.Finish();
  return Error::kOk;
}

}  // namespace cairn::codecs
