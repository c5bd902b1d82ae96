// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/view.h"

#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cairn {
namespace {

const PlaneView& ViewAt(const PlaneViews& views, uint32_t plane) {
  return plane == 0 ? views.k : views.v;
}

std::byte* TokenOf(const PlaneView& view, uint16_t layer, uint16_t head, uint32_t token) {
  std::byte* base =
      view.layers.empty() ? view.data + layer * view.stride_bytes[0] : view.layers[layer];
  const int64_t offset =
      view.token_offsets.empty() ? token * view.stride_bytes[2] : view.token_offsets[token];
  return base + head * view.stride_bytes[1] + offset;
}

// Copies `count` elements of kBytes each between places `source_step` and `target_step` apart.
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
    default:
      return CopyElements<4>(source, source_step, target, target_step, count);
  }
}

// Copies one plane of one head, token by token or at once where the tokens are adjacent.
// kIsGather: from the view to the payload, else back.
template <bool kIsGather>
void CopyPlane(const ViewShape& shape, const PlaneView& view, uint32_t dim, uint16_t layer,
               uint16_t head, std::byte* payload) {
  const uint32_t element_bytes = codecs::ElementBytes(shape.tile.dtype);
  const uint32_t rows = codecs::TileRows(shape.tile.kind, shape.tokens);
  const int64_t row_bytes = int64_t{dim} * element_bytes;
  const int64_t step = view.stride_bytes[3];
  const auto copy = [&](std::byte* in_view, std::byte* in_payload, uint32_t count) {
    if constexpr (kIsGather) {
      CopyRow(in_view, step, in_payload, element_bytes, count, element_bytes);
    } else {
      CopyRow(in_payload, element_bytes, in_view, step, count, element_bytes);
    }
  };
  if (view.token_offsets.empty() && step == element_bytes && view.stride_bytes[2] == row_bytes) {
    copy(TokenOf(view, layer, head, 0), payload, rows * dim);
    return;
  }
  for (uint32_t token = 0; token < rows; ++token) {
    copy(TokenOf(view, layer, head, token), payload + token * row_bytes, dim);
  }
}

template <bool kIsGather>
void CopyHead(const ViewShape& shape, const PlaneViews& views, uint16_t layer, uint16_t head,
              std::byte* payload) {
  for (uint32_t i = 0; i < codecs::PlaneCount(shape.tile.kind); ++i) {
    const codecs::Plane plane = codecs::PlaneAt(shape.tile.kind, i);
    CopyPlane<kIsGather>(shape, ViewAt(views, i), codecs::PlaneDim(shape.tile, plane), layer, head,
                         payload);
    payload += codecs::TileBytes(shape.tile, plane, shape.tokens);
  }
}

absl::Status Validate(const ViewShape& shape, std::string_view name, const PlaneView& view) {
  const auto wrong = [&name](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(name), ".", ToAbsl(what)));
  };
  if (view.layers.empty() ? view.data == nullptr : false) {
    return wrong("data is null, and there are no layers");
  }
  if (!view.layers.empty()) {
    if (view.layers.size() != shape.layers) {
      return wrong(absl::StrCat("layers has ", view.layers.size(), " pointers; the slice has ",
                                shape.layers, " layers"));
    }
    for (size_t i = 0; i < view.layers.size(); ++i) {
      if (view.layers[i] == nullptr) {
        return wrong(absl::StrCat("layers[", i, "] is null"));
      }
    }
  }
  const uint32_t rows = codecs::TileRows(shape.tile.kind, shape.tokens);
  if (!view.token_offsets.empty() && view.token_offsets.size() != rows) {
    return wrong(absl::StrCat("token_offsets has ", view.token_offsets.size(),
                              " values; the block has ", rows, " tokens"));
  }
  if (view.stride_bytes[3] == 0) {
    return wrong(absl::StrCat("stride_bytes[3] (dim) is 0; an element has ",
                              codecs::ElementBytes(shape.tile.dtype), " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const ViewShape& shape, const PlaneViews& views) {
  CAIRN_RETURN_IF_ERROR(Validate(shape, "k", views.k));
  if (codecs::PlaneCount(shape.tile.kind) > 1) {
    CAIRN_RETURN_IF_ERROR(Validate(shape, "v", views.v));
  }
  return absl::OkStatus();
}

PlaneViews ContiguousViews(const ViewShape& shape, std::byte* payload) {
  const auto element_bytes = int64_t{codecs::ElementBytes(shape.tile.dtype)};
  const auto head_bytes = static_cast<int64_t>(HeadBytes(shape));
  PlaneViews views;
  PlaneView* const planes[] = {&views.k, &views.v};
  for (uint32_t i = 0; i < codecs::PlaneCount(shape.tile.kind); ++i) {
    const codecs::Plane plane = codecs::PlaneAt(shape.tile.kind, i);
    *planes[i] = {
        .data = payload,
        .layers = {},
        .token_offsets = {},
        .stride_bytes = {shape.heads * head_bytes, head_bytes,
                         codecs::PlaneDim(shape.tile, plane) * element_bytes, element_bytes}};
    payload += codecs::TileBytes(shape.tile, plane, shape.tokens);
  }
  return views;
}

size_t HeadBytes(const ViewShape& shape) {
  size_t bytes = 0;
  for (uint32_t i = 0; i < codecs::PlaneCount(shape.tile.kind); ++i) {
    bytes += codecs::TileBytes(shape.tile, codecs::PlaneAt(shape.tile.kind, i), shape.tokens);
  }
  return bytes;
}

void GatherHead(const ViewShape& shape, const PlaneViews& views, uint16_t layer, uint16_t head,
                std::span<std::byte> payload) {
  CAIRN_DCHECK(payload.size() >= HeadBytes(shape));
  CopyHead<true>(shape, views, layer, head, payload.data());
}

void ScatterHead(const ViewShape& shape, const PlaneViews& views, uint16_t layer, uint16_t head,
                 std::span<const std::byte> payload) {
  CAIRN_DCHECK(payload.size() >= HeadBytes(shape));
  // Scattering only reads the payload; the one template serves both directions.
  CopyHead<false>(shape, views, layer, head, const_cast<std::byte*>(payload.data()));
}

void Gather(const ViewShape& shape, const PlaneViews& views, std::span<std::byte> payload) {
  const size_t head_bytes = HeadBytes(shape);
  CAIRN_CHECK(payload.size() == head_bytes * shape.layers * shape.heads);
  for (uint16_t layer = 0; layer < shape.layers; ++layer) {
    for (uint16_t head = 0; head < shape.heads; ++head) {
      GatherHead(shape, views, layer, head, payload.first(head_bytes));
      payload = payload.subspan(head_bytes);
    }
  }
}

void Scatter(const ViewShape& shape, const PlaneViews& views, std::span<const std::byte> payload) {
  const size_t head_bytes = HeadBytes(shape);
  CAIRN_CHECK(payload.size() == head_bytes * shape.layers * shape.heads);
  for (uint16_t layer = 0; layer < shape.layers; ++layer) {
    for (uint16_t head = 0; head < shape.heads; ++head) {
      ScatterHead(shape, views, layer, head, payload.first(head_bytes));
      payload = payload.subspan(head_bytes);
    }
  }
}

}  // namespace cairn
