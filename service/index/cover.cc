// SPDX-License-Identifier: Apache-2.0
#include "service/index/cover.h"

#include <algorithm>
#include <array>
#include <bitset>

namespace cairn {
namespace {

using codecs::Slice;

// Limit for the cells of one axis. Each image may begin and end within the slice.
constexpr size_t kCellsMax = 2 * codecs::kImagesPerBlockMax + 1;
using Cells = std::bitset<kCellsMax>;

struct Range {
  uint32_t first = 0, end = 0;
};

Range Layers(const Slice& slice) {
  return {slice.layer_first, uint32_t{slice.layer_first} + slice.layer_count};
}

Range Heads(const Slice& slice) {
  return {slice.head_first, uint32_t{slice.head_first} + slice.head_count};
}

Range Common(const Range& a, const Range& b) {
  return {std::max(a.first, b.first), std::min(a.end, b.end)};
}

uint64_t TilesInCommon(const Slice& a, const Slice& b) {
  const Range layers = Common(Layers(a), Layers(b)), heads = Common(Heads(a), Heads(b));
  return uint64_t{layers.end - layers.first} * (heads.end - heads.first);
}

// One axis of a slice. It is cut into cells wherever an image begins or ends, so that no image
// covers only a part of a cell.
class Axis {
 public:
  explicit Axis(const Range& range) : edges_{range.first, range.end}, count_(2) {}

  void Cut(const Range& range) {
    Cut(range.first);
    Cut(range.end);
  }
  size_t cell_count() const { return count_ - 1; }
  Range CellsOf(const Range& range) const { return {IndexOf(range.first), IndexOf(range.end)}; }

 private:
  void Cut(uint32_t at) {
    uint32_t* const end = edges_.data() + count_;
    uint32_t* const place = std::lower_bound(edges_.data(), end, at);
    if (*place != at) {
      std::copy_backward(place, end, end + 1);
      *place = at;
      ++count_;
    }
  }
  uint32_t IndexOf(uint32_t edge) const {
    const auto end = edges_.begin() + static_cast<ptrdiff_t>(count_);
    return static_cast<uint32_t>(std::lower_bound(edges_.begin(), end, edge) - edges_.begin());
  }

  std::array<uint32_t, kCellsMax + 1> edges_;
  size_t count_;
};

}  // namespace

bool FindCover(absl::Span<const ImageRef> refs, uint16_t group, const Slice& slice,
               ImagePlaces* places) {
  const auto add = [&](const ImageRef& ref) {
    if (places != nullptr) {
      places->push_back(static_cast<uint8_t>(&ref - refs.data()));
    }
  };
  if (places != nullptr) {
    places->clear();
  }
  uint64_t tiles_seen = 0;
  for (const ImageRef& ref : refs) {
    if (ref.group != group || !ref.slice.Overlaps(slice)) {
      continue;
    }
    if (ref.slice.Contains(slice)) {
      add(ref);
      return true;
    }
    tiles_seen += TilesInCommon(ref.slice, slice);
  }
  if (tiles_seen < uint64_t{slice.layer_count} * slice.head_count) {
    return false;
  }
  Axis layers(Layers(slice)), heads(Heads(slice));
  for (const ImageRef& ref : refs) {
    if (ref.group == group && ref.slice.Overlaps(slice)) {
      layers.Cut(Common(Layers(ref.slice), Layers(slice)));
      heads.Cut(Common(Heads(ref.slice), Heads(slice)));
    }
  }
  std::array<Cells, kCellsMax> covered;  // per layer, the covered heads
  size_t missing = layers.cell_count() * heads.cell_count();
  for (const ImageRef& ref : refs) {
    if (ref.group != group || !ref.slice.Overlaps(slice)) {
      continue;
    }
    const Range rows = layers.CellsOf(Common(Layers(ref.slice), Layers(slice)));
    const Range columns = heads.CellsOf(Common(Heads(ref.slice), Heads(slice)));
    const Cells mask = (~Cells() >> (kCellsMax - (columns.end - columns.first))) << columns.first;
    const size_t missing_before = missing;
    for (uint32_t row = rows.first; row < rows.end; ++row) {
      missing -= (mask & ~covered[row]).count();
      covered[row] |= mask;
    }
    if (missing < missing_before) {
      add(ref);
    }
    if (missing == 0) {
      return true;
    }
  }
  return false;
}

}  // namespace cairn
