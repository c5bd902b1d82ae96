// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/chain.h"

#include "codecs/forms/form.h"
#include "codecs/image/encode.h"
#include "codecs/stages/select/min_norm.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

const ImageView* ParentOf(const ImageSpec& spec, ProfileHead at,
                          std::span<const ImageView> parents) {
  for (const ImageView& parent : parents) {
    if (IsParentOf(parent.spec(), spec, at)) return &parent;
  }
  return nullptr;
}

}  // namespace

bool FollowsChain(const Recipe& recipe, uint64_t first_position) {
  return recipe.FollowsChain() && first_position != 0;
}

bool FollowsChain(const ImageSpec& spec) { return FollowsChain(spec.recipe, spec.first_position); }

bool IsParentOf(const ImageSpec& parent, const ImageSpec& spec, ProfileHead at) {
  const Slice wanted{static_cast<uint16_t>(at.layer), 1, static_cast<uint16_t>(at.head), 1};
  return parent.recipe.Traits().follows_chain && parent.space == spec.space &&
         parent.group == spec.group && parent.tile == spec.tile &&
         parent.first_position + parent.tokens == spec.first_position &&
         parent.slice.Contains(wanted);
}

std::optional<uint64_t> ChainOffset(const ImagePrefix& image, ProfileHead at) {
  const uint32_t index =
      image.IndexOf({static_cast<uint16_t>(at.layer), static_cast<uint16_t>(at.head), 0});
  const TileEntry entry = image.Tile(index);
  const auto layout =
      LayoutOf(GeometryOf(image.spec(), 0), image.spec().recipe, entry.form, entry.rows);
  if (layout->chain.bytes == 0) return std::nullopt;
  return entry.offset + layout->chain.offset;
}

ImageSpec RecordedSpec(const ImageSpec& spec, const EncodeInputs& inputs) {
  ImageSpec recorded = spec;
  if (!FollowsChain(spec)) return recorded;
  const Slice& slice = spec.slice;
  for (uint32_t layer = 0; layer < slice.layer_count; ++layer) {
    for (uint32_t head = 0; head < slice.head_count; ++head) {
      const ImageView* parent =
          ParentOf(spec, {slice.layer_first + layer, slice.head_first + head}, inputs.parents);
      recorded.recipe.is_local |= parent == nullptr || parent->spec().recipe.is_local;
    }
  }
  return recorded;
}

ChainHead ChainBefore(const ImageSpec& spec, ProfileHead at, std::span<const ImageView> parents) {
  ChainHead chain;
  const ImageView* parent = FollowsChain(spec) ? ParentOf(spec, at, parents) : nullptr;
  if (parent == nullptr) return chain;
  const std::optional<uint64_t> offset = ChainOffset(*parent, at);
  // An invalid pool is treated as empty; no verified image has one.
  if (offset.has_value() && !LoadChain(U8(parent->bytes().data()) + *offset, &chain)) chain = {};
  return chain;
}

}  // namespace cairn::codecs
