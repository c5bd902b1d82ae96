// SPDX-License-Identifier: Apache-2.0
#include "kernels/mine_sample.h"

#include <limits>

#include "kernels/plan_planes.h"

namespace cairn::kernels {

using codecs::Error;
using codecs::GroupKind;

Error CheckSample(const MineSample& sample, const std::byte* aligned) {
  const GroupKind kind = sample.tile.kind;
  const bool has_elements = kind == GroupKind::kKv || kind == GroupKind::kLatent;
  if (!has_elements || codecs::Validate(sample.tile) != Error::kOk || sample.tokens == 0 ||
      sample.tokens > std::numeric_limits<uint16_t>::max() || sample.layers == 0 ||
      sample.heads == 0 ||
      uint64_t{sample.layers} * sample.heads * codecs::PlaneCount(kind) > codecs::kTilesMax) {
    return Error::kInvalidShape;
  }
  const codecs::ImageSpec spec = SpecOf(sample);
  return CheckView(spec, spec.slice, sample.view, aligned);
}

uint32_t HeadsOf(const MineSample& sample) {
  return uint32_t{sample.layers} * sample.heads * codecs::PlaneCount(sample.tile.kind);
}

codecs::ImageSpec SpecOf(const MineSample& sample) {
  codecs::ImageSpec spec;
  spec.tile = sample.tile;
  spec.slice = {0, sample.layers, 0, sample.heads};
  spec.tokens = static_cast<uint16_t>(sample.tokens);
  return spec;
}

}  // namespace cairn::kernels
