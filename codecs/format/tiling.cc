// SPDX-License-Identifier: Apache-2.0
#include "codecs/format/tiling.h"

namespace cairn::codecs {

Tiling::Tiling(GroupKind kind, const Slice& slice, const CodingUnit& unit)
    : slice_(slice),
      unit_(unit),
      planes_(PlaneCount(kind)),
      columns_(slice.head_count / unit.heads),
      depth_((planes_ + unit.planes - 1) / unit.planes) {}

uint64_t Tiling::count() const {
  return uint64_t{slice_.layer_count} / unit_.layers * columns_ * depth_;
}

TileArea Tiling::AreaOf(uint32_t index) const {
  const uint32_t plane = index % depth_ * unit_.planes;
  const uint32_t column = index / depth_ % columns_;
  const uint32_t row = index / depth_ / columns_;
  const uint32_t planes = planes_ - plane < unit_.planes ? planes_ - plane : unit_.planes;
  return {{static_cast<uint16_t>(slice_.layer_first + row * unit_.layers), unit_.layers,
           static_cast<uint16_t>(slice_.head_first + column * unit_.heads), unit_.heads},
          static_cast<uint8_t>(plane),
          static_cast<uint8_t>(planes)};
}

uint32_t Tiling::IndexOf(TileId id) const {
  return (Row(id.layer) * columns_ + Column(id.head)) * depth_ + id.plane / unit_.planes;
}

}  // namespace cairn::codecs
