// SPDX-License-Identifier: Apache-2.0
#include "codecs/types/target_view.h"

#include <algorithm>
#include <cstring>

namespace cairn::codecs {
namespace {

uint32_t DimOf(const ViewShape& shape, uint32_t plane) {
  return PlaneDim(shape.tile, PlaneAt(shape.tile.kind, plane));
}

std::byte* TokenOf(const TargetPlane& view, uint32_t layer, uint32_t head, uint32_t token) {
  std::byte* base =
      view.layers.empty() ? view.data + layer * view.stride_bytes[0] : view.layers[layer];
  const int64_t offset =
      view.token_offsets.empty() ? token * view.stride_bytes[2] : view.token_offsets[token];
  return base + head * view.stride_bytes[1] + offset;
}

// Copies `count` elements of kBytes each; their strides are `source_step` and `target_step`.
template <size_t kBytes>
void CopyElements(const std::byte* source, int64_t source_step, std::byte* target,
                  int64_t target_step, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    std::memcpy(target, source, kBytes);
    source += source_step;
    target += target_step;
  }
}

void CopyRow(const std::byte* source, int64_t source_step, std::byte* target, int64_t target_step,
             uint32_t count, uint32_t element_bytes) {
  if (source_step == element_bytes && target_step == element_bytes) {
    std::memcpy(target, source, size_t{count} * element_bytes);
    return;
  }
  switch (element_bytes) {
    case 1:
      return CopyElements<1>(source, source_step, target, target_step, count);
    case 2:
      return CopyElements<2>(source, source_step, target, target_step, count);
    case 4:
      return CopyElements<4>(source, source_step, target, target_step, count);
    default:
      return CopyElements<8>(source, source_step, target, target_step, count);
  }
}

// Copies the `dim` channels of a row between a payload and a view. kIsGather: from the view.
template <bool kIsGather>
void CopyChannels(const TargetPlane& view, std::byte* in_view, std::byte* in_payload, uint32_t dim,
                  uint32_t element_bytes) {
  const auto copy = [&](std::byte* place, int64_t step, std::byte* bytes, uint32_t count,
                        uint32_t unit_bytes) {
    if constexpr (kIsGather) {
      CopyRow(place, step, bytes, unit_bytes, count, unit_bytes);
    } else {
      CopyRow(bytes, unit_bytes, place, step, count, unit_bytes);
    }
  };
  const int64_t step = view.stride_bytes[3];
  if (view.dims_per_run == 0) return copy(in_view, step, in_payload, dim, element_bytes);
  const uint32_t run_bytes = view.dims_per_run * element_bytes;
  const uint32_t runs = dim / view.dims_per_run;
  if (step == element_bytes && (run_bytes == 2 || run_bytes == 4 || run_bytes == 8)) {
    return copy(in_view, view.run_stride_bytes, in_payload, runs, run_bytes);
  }
  for (uint32_t run = 0; run < runs; ++run) {
    copy(in_view + run * view.run_stride_bytes, step, in_payload + size_t{run} * run_bytes,
         view.dims_per_run, element_bytes);
  }
}

// The range of the elements' offsets, from the smallest to the largest.
class Reach {
 public:
  // Adds an axis of `count` elements that are `stride` apart.
  void AddAxis(uint32_t count, int64_t stride) {
    int64_t span = 0;
    overflows_ |= __builtin_mul_overflow(static_cast<int64_t>(count) - 1, stride, &span);
    Extend(std::min<int64_t>(span, 0), std::max<int64_t>(span, 0));
  }
  // Adds an axis of offsets from `least` to `most`.
  void Extend(int64_t least, int64_t most) {
    overflows_ |= __builtin_add_overflow(least_, least, &least_);
    overflows_ |= __builtin_add_overflow(most_, most, &most_);
  }
  // Returns whether elements of this size lie in [first, end), if that is known.
  [[nodiscard]] bool IsInside(uint32_t element_bytes, int64_t first, int64_t end) const {
    int64_t behind = 0;
    if (overflows_ || __builtin_add_overflow(most_, element_bytes, &behind)) return false;
    return (first == 0 && end == 0) || (least_ >= first && behind <= end);
  }

 private:
  int64_t least_ = 0;
  int64_t most_ = 0;
  bool overflows_ = false;
};

TargetFault CheckReach(const ViewShape& shape, uint32_t plane, const TargetPlane& view,
                       bool is_source) {
  Reach reach;
  if (view.layers.empty()) reach.AddAxis(shape.layers, view.stride_bytes[0]);
  reach.AddAxis(shape.heads, view.stride_bytes[1]);
  if (view.dims_per_run == 0) {
    reach.AddAxis(DimOf(shape, plane), view.stride_bytes[3]);
  } else {
    reach.AddAxis(view.dims_per_run, view.stride_bytes[3]);
    reach.AddAxis(DimOf(shape, plane) / view.dims_per_run, view.run_stride_bytes);
  }
  if (view.token_offsets.empty()) {
    reach.AddAxis(TileRows(shape.tile.kind, shape.tokens), view.stride_bytes[2]);
  } else {
    int64_t least = std::numeric_limits<int64_t>::max();
    int64_t most = std::numeric_limits<int64_t>::min();
    for (const int64_t offset : view.token_offsets) {
      if (offset == kTokenSkipped) {
        if (is_source) return TargetFault::kSkippedSource;
        continue;
      }
      least = std::min(least, offset);
      most = std::max(most, offset);
    }
    if (least > most) return TargetFault::kNone;  // nothing is written
    reach.Extend(least, most);
  }
  return reach.IsInside(ElementBytes(shape.tile.dtype), view.first_byte, view.end_byte)
             ? TargetFault::kNone
             : TargetFault::kOutside;
}

// kIsGather: from the view to the payload; else from the payload to the view.
template <bool kIsGather>
void CopyTile(const ViewShape& shape, uint32_t plane, const TargetPlane& view, uint32_t layer,
              uint32_t head, std::byte* payload) {
  const uint32_t element_bytes = ElementBytes(shape.tile.dtype);
  const uint32_t rows = TileRows(shape.tile.kind, shape.tokens);
  const uint32_t dim = DimOf(shape, plane);
  const int64_t row_bytes = int64_t{dim} * element_bytes;
  if (std::byte* dense = DenseTile(shape, plane, view, layer, head); dense != nullptr) {
    return CopyChannels<kIsGather>(view, dense, payload, rows * dim, element_bytes);
  }
  for (uint32_t token = 0; token < rows; ++token) {
    if (!view.token_offsets.empty() && view.token_offsets[token] == kTokenSkipped) continue;
    CopyChannels<kIsGather>(view, TokenOf(view, layer, head, token), payload + token * row_bytes,
                            dim, element_bytes);
  }
}

}  // namespace

TargetFault CheckPlane(const ViewShape& shape, uint32_t plane, const TargetPlane& view,
                       bool is_source) {
  if (view.layers.empty()) {
    if (view.data == nullptr) return TargetFault::kNoData;
  } else {
    if (view.layers.size() != shape.layers) return TargetFault::kLayerCount;
    const auto is_null = [](const std::byte* layer) { return layer == nullptr; };
    if (std::ranges::any_of(view.layers, is_null)) return TargetFault::kNullLayer;
  }
  if (!view.token_offsets.empty() &&
      view.token_offsets.size() != TileRows(shape.tile.kind, shape.tokens)) {
    return TargetFault::kTokenCount;
  }
  if (view.stride_bytes[3] == 0) return TargetFault::kNoStep;
  if (view.dims_per_run != 0 && DimOf(shape, plane) % view.dims_per_run != 0) {
    return TargetFault::kRaggedRuns;
  }
  return CheckReach(shape, plane, view, is_source);
}

Error CheckTarget(const ViewShape& shape, const TargetView& view, bool is_source) {
  for (uint32_t plane = 0; plane < PlaneCount(shape.tile.kind); ++plane) {
    const TargetFault fault = CheckPlane(shape, plane, view.At(plane), is_source);
    if (fault == TargetFault::kOutside) return Error::kTargetTooSmall;
    if (fault != TargetFault::kNone) return Error::kInvalidShape;
  }
  return Error::kOk;
}

TargetView DenseView(const ViewShape& shape, std::byte* payload) {
  const auto element_bytes = int64_t{ElementBytes(shape.tile.dtype)};
  const auto head_bytes = static_cast<int64_t>(HeadBytes(shape));
  TargetView view;
  TargetPlane* const planes[] = {&view.k, &view.v};
  for (uint32_t i = 0; i < PlaneCount(shape.tile.kind); ++i) {
    planes[i]->data = payload;
    planes[i]->stride_bytes = {shape.heads * head_bytes, head_bytes,
                               DimOf(shape, i) * element_bytes, element_bytes};
    payload += TileBytes(shape.tile, PlaneAt(shape.tile.kind, i), shape.tokens);
  }
  return view;
}

uint64_t HeadBytes(const ViewShape& shape) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < PlaneCount(shape.tile.kind); ++i) {
    bytes += TileBytes(shape.tile, PlaneAt(shape.tile.kind, i), shape.tokens);
  }
  return bytes;
}

std::byte* DenseTile(const ViewShape& shape, uint32_t plane, const TargetPlane& view,
                     uint32_t layer, uint32_t head) {
  const int64_t element_bytes = ElementBytes(shape.tile.dtype);
  const int64_t row_bytes = DimOf(shape, plane) * element_bytes;
  const bool is_dense =
      view.token_offsets.empty() && view.dims_per_run == 0 &&
      view.stride_bytes[3] == element_bytes &&
      (view.stride_bytes[2] == row_bytes || TileRows(shape.tile.kind, shape.tokens) == 1);
  return is_dense ? TokenOf(view, layer, head, 0) : nullptr;
}

void GatherTile(const ViewShape& shape, uint32_t plane, const TargetPlane& view, uint32_t layer,
                uint32_t head, std::byte* bytes) {
  CopyTile<true>(shape, plane, view, layer, head, bytes);
}

void ScatterTile(const ViewShape& shape, uint32_t plane, const TargetPlane& view, uint32_t layer,
                 uint32_t head, const std::byte* bytes) {
  // Scattering only reads the bytes; one template serves both directions.
  CopyTile<false>(shape, plane, view, layer, head, const_cast<std::byte*>(bytes));
}

}  // namespace cairn::codecs
