// SPDX-License-Identifier: Apache-2.0
#pragma once
// KV where an engine keeps it: gathered into source payload and scattered out of it, without a
// repacking pass of the engine's own.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "codecs/types/shape.h"

namespace cairn {

// One plane (K, V, or a latent) of a slice. Element [layer, head, token, dim] is at
//
//   (layers.empty() ? data + layer * stride_bytes[0] : layers[layer]) + head * stride_bytes[1]
//     + (token_offsets.empty() ? token * stride_bytes[2] : token_offsets[token])
//     + dim * stride_bytes[3]
//
// layer, head and token count within the slice. Strides and offsets are bytes and may be negative.
// Borrows everything.
struct PlaneView {
  std::byte* data = nullptr;                 // not written to by a put
  std::span<std::byte* const> layers{};      // one per layer of the slice, or empty
  std::span<const int64_t> token_offsets{};  // one per token of the block, or empty
  std::array<int64_t, 4> stride_bytes{};     // layer, head, token, dim
};

// The planes of a slice: K and V, or one of them for kinds with one plane.
struct PlaneViews {
  PlaneView k, v;
};

// What the views are of.
struct ViewShape {
  codecs::TileShape tile;
  uint16_t layers = 0, heads = 0, tokens = 0;  // of the slice
};

// InvalidArgument names the view's field that cannot be of this shape.
absl::Status Validate(const ViewShape& shape, const PlaneViews& views);

// Views of contiguous source payload: [layer, head, plane, token, dim].
PlaneViews ContiguousViews(const ViewShape& shape, std::byte* payload);

// Copies between the tiles of one (layer, head) and `payload`, which holds those tiles alone, in
// plane order. REQUIRES: Validate(shape, views) is OK; payload has their bytes.
void GatherHead(const ViewShape& shape, const PlaneViews& views, uint16_t layer, uint16_t head,
                std::span<std::byte> payload);
void ScatterHead(const ViewShape& shape, const PlaneViews& views, uint16_t layer, uint16_t head,
                 std::span<const std::byte> payload);

// Bytes of the tiles of one (layer, head).
size_t HeadBytes(const ViewShape& shape);

// All heads of all layers. REQUIRES: as above; payload.size() is layers * heads * HeadBytes(shape).
void Gather(const ViewShape& shape, const PlaneViews& views, std::span<std::byte> payload);
void Scatter(const ViewShape& shape, const PlaneViews& views, std::span<const std::byte> payload);

}  // namespace cairn
