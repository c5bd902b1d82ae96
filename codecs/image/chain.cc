// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/chain.h"

#include "codecs/forms/form.h"
#include "codecs/image/encode.h"
#include "codecs/stages/select/min_norm.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

// `parent` is of the block before that of `spec`, in ott.
bool IsBefore(const ImageSpec& parent, const ImageSpec& spec) {
  return parent.recipe.id == RecipeId::kOtt && parent.space == spec.space &&
         parent.group == spec.group && parent.tile == spec.tile &&
         parent.first_position + parent.tokens == spec.first_position;
}

const ImageView* ParentOf(const ImageSpec& spec, ProfileHead at,
                          std::span<const ImageView> parents) {
  const Slice wanted{static_cast<uint16_t>(at.layer), 1, static_cast<uint16_t>(at.head), 1};
  for (const ImageView& parent : parents) {
    if (IsBefore(parent.spec(), spec) && parent.spec().slice.Contains(wanted)) return &parent;
  }
  return nullptr;
}

bool Traces(const ImageSpec& spec) {
  return spec.recipe.id == RecipeId::kOtt && !spec.recipe.is_local && spec.first_position != 0;
}

}  // namespace

ImageSpec RecordedSpec(const ImageSpec& spec, const EncodeInputs& inputs) {
  ImageSpec recorded = spec;
  if (!Traces(spec)) return recorded;
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
  const ImageView* parent = Traces(spec) ? ParentOf(spec, at, parents) : nullptr;
  if (parent == nullptr) return chain;
  const uint32_t index =
      parent->IndexOf({static_cast<uint16_t>(at.layer), static_cast<uint16_t>(at.head), 0});
  const TileEntry entry = parent->Tile(index);
  const auto layout =
      LayoutOf(GeometryOf(parent->spec(), 0), parent->spec().recipe, entry.form, entry.rows);
  if (layout->chain.bytes != 0) {
    const uint8_t* stored = U8(parent->TileContent(index).data()) + layout->chain.offset;
    // One that is none leaves the pool empty, and no verified image has one.
    if (!LoadChain(stored, &chain)) chain = {};
  }
  return chain;
}

}  // namespace cairn::codecs
