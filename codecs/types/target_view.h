// SPDX-License-Identifier: Apache-2.0
#pragma once
// The view of a reader's memory that decoding writes to and encoding reads from. It covers dense
// arrays and, by an offset for each token, paged memory.
//
// Thread-safety: values and pure functions. Nothing allocates.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "codecs/types/shape.h"

namespace cairn::codecs {

// A token offset: this token is not written. A source has none such.
inline constexpr int64_t kTokenSkipped = std::numeric_limits<int64_t>::min();

// One plane (K, V, or a latent) of a slice. Element [layer, head, token, dim] is at
//
//   (layers.empty() ? data + layer * stride_bytes[0] : layers[layer]) + head * stride_bytes[1]
//     + (token_offsets.empty() ? token * stride_bytes[2] : token_offsets[token])
//     + (dims_per_run == 0 ? dim * stride_bytes[3]
//                          : dim / dims_per_run * run_stride_bytes
//                              + dim % dims_per_run * stride_bytes[3])
//
// layer, head and token count within the slice. Strides and offsets are bytes and may be negative.
// Borrows everything.
struct TargetPlane {
  std::byte* data = nullptr;                 // only read from, where it is a source
  std::span<std::byte* const> layers{};      // one per layer of the slice, or empty
  std::span<const int64_t> token_offsets{};  // one per token of the block, or empty
  std::array<int64_t, 4> stride_bytes{};     // layer, head, token, dim
  // Tiles for matrix units split a row in runs of channels; 0: it is one run.
  uint32_t dims_per_run = 0;
  int64_t run_stride_bytes = 0;
  // The memory that all elements have to lie in: bytes [first_byte, end_byte) from `data`, or from
  // each of `layers`. Both 0: it is not known, and only overflow is checked.
  int64_t first_byte = 0, end_byte = 0;
};

// The planes of a slice: K and V, or `k` alone for kinds with one plane.
struct TargetView {
  TargetPlane k, v;

  [[nodiscard]] const TargetPlane& At(uint32_t plane) const { return plane == 0 ? k : v; }
};

// What a view is of.
struct ViewShape {
  TileShape tile;
  uint16_t layers = 0, heads = 0, tokens = 0;  // of the slice
};

enum class TargetFault : uint8_t {
  kNone,
  kNoData,         // data is null, and there are no layers
  kLayerCount,     // layers are not as many as the slice's
  kNullLayer,      // one of layers is null
  kTokenCount,     // token_offsets are not as many as the block's tokens
  kNoStep,         // stride_bytes[3] is 0
  kRaggedRuns,     // the channels are no whole number of runs
  kOutside,        // an element would lie outside [first_byte, end_byte)
  kSkippedSource,  // a token of a source has no place
};

// Describes what is wrong with plane `plane` of a view.
[[nodiscard]] TargetFault CheckPlane(const ViewShape& shape, uint32_t plane,
                                     const TargetPlane& view, bool is_source);
// kTargetTooSmall where an element would lie outside, kInvalidShape where something else is wrong.
Error CheckTarget(const ViewShape& shape, const TargetView& view, bool is_source);

// The contiguous source payload of a slice: [layer, head, plane, token, dim].
[[nodiscard]] TargetView DenseView(const ViewShape& shape, std::byte* payload);

// Bytes of the tiles of one (layer, head).
[[nodiscard]] uint64_t HeadBytes(const ViewShape& shape);

// REQUIRES of all below: CheckTarget() is kOk.

// Where the tile of a (layer, head) lies, if its bytes lie there as in a payload; else null.
[[nodiscard]] std::byte* DenseTile(const ViewShape& shape, uint32_t plane, const TargetPlane& view,
                                   uint32_t layer, uint32_t head);

// Copies between that tile and contiguous bytes, [token, dim].
void GatherTile(const ViewShape& shape, uint32_t plane, const TargetPlane& view, uint32_t layer,
                uint32_t head, std::byte* bytes);
void ScatterTile(const ViewShape& shape, uint32_t plane, const TargetPlane& view, uint32_t layer,
                 uint32_t head, const std::byte* bytes);

}  // namespace cairn::codecs
