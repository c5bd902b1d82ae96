// SPDX-License-Identifier: Apache-2.0
#pragma once
// Maps the tiles of an image to parts of a group, and a slice to the tiles that cover it. No other
// code computes the index of a tile.
//
// A tile codes one unit: a rectangle of layers x heads x planes. The group is divided into units
// from layer 0 and head 0 on, so the unit of a layer, head and plane does not depend on the slice.
// A slice starts and ends at borders of units. Readers support only units of 1 x 1 x 1 so far: see
// Validate().
//
// Thread-safety: values.

#include <cstdint>

#include "codecs/types/error.h"
#include "codecs/types/shape.h"

namespace cairn::codecs {

// The size of a unit. Each field is 1..256; planes is at most the planes of the kind.
struct CodingUnit {
  uint16_t layers = 1;
  uint16_t heads = 1;
  uint16_t planes = 1;
  friend bool operator==(const CodingUnit&, const CodingUnit&) = default;
};

struct TileId {
  uint16_t layer = 0;
  uint16_t head = 0;
  uint8_t plane = 0;  // index among the planes of the kind
};

// The part of a group that a tile codes.
struct TileArea {
  Slice slice;
  uint8_t plane_first = 0;
  uint8_t plane_count = 0;
  friend bool operator==(const TileArea&, const TileArea&) = default;
};

class Tiling {
 public:
  // REQUIRES: slice starts and ends at unit borders.
  Tiling(GroupKind kind, const Slice& slice, const CodingUnit& unit);

  // Returns the number of tiles. They are ordered by their first layer, head and plane.
  [[nodiscard]] uint64_t count() const;

  // REQUIRES: index < count().
  [[nodiscard]] TileArea AreaOf(uint32_t index) const;

  // Returns the tile that codes a layer, head and plane. REQUIRES: the slice contains it.
  [[nodiscard]] uint32_t IndexOf(TileId id) const;

  // Calls visit(index) for every tile that codes something of `part`, in ascending order. Stops at
  // the first result that is not kOk, and returns that result. REQUIRES: part is not empty and
  // inside the slice.
  template <typename Visit>
  Error ForEach(const Slice& part, Visit visit) const;

 private:
  // Returns the row or column, in the slice, of the unit with this layer or head.
  [[nodiscard]] uint32_t Row(uint32_t layer) const {
    return (layer - slice_.layer_first) / unit_.layers;
  }
  [[nodiscard]] uint32_t Column(uint32_t head) const {
    return (head - slice_.head_first) / unit_.heads;
  }

  Slice slice_;
  CodingUnit unit_;
  uint32_t planes_;   // number of planes of the kind
  uint32_t columns_;  // units of a layer, by head
  uint32_t depth_;    // units of one layer and head
};

template <typename Visit>
Error Tiling::ForEach(const Slice& part, Visit visit) const {
  const uint32_t row_last = Row(part.layer_first + part.layer_count - 1U);
  const uint32_t column_first = Column(part.head_first);
  const uint32_t column_last = Column(part.head_first + part.head_count - 1U);
  for (uint32_t row = Row(part.layer_first); row <= row_last; ++row) {
    const uint32_t first = (row * columns_ + column_first) * depth_;
    const uint32_t last = (row * columns_ + column_last + 1) * depth_;
    for (uint32_t index = first; index < last; ++index) {
      if (const Error error = visit(index); error != Error::kOk) return error;
    }
  }
  return Error::kOk;
}

}  // namespace cairn::codecs
