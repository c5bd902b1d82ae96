// SPDX-License-Identifier: Apache-2.0
#pragma once
// A view of a caller's memory that decoding writes to and encoding reads from. A view covers dense
// arrays and, with an offset for each token, paged memory.
//
// Thread-safety: values and pure functions. They do not allocate.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "codecs/types/shape.h"

namespace cairn::codecs {

// As a token offset, it means that the token is skipped. Not allowed in a source.
inline constexpr int64_t kTokenSkipped = std::numeric_limits<int64_t>::min();

// One plane (K, V, or a latent) of a slice. Element [layer, head, token, dim] is at
//
//   (layers.empty() ? data + layer * stride_bytes[0] : layers[layer]) + head * stride_bytes[1]
//     + (token_offsets.empty() ? token * stride_bytes[2] : token_offsets[token])
//     + (dims_per_run == 0 ? dim * stride_bytes[3]
//                          : dim / dims_per_run * run_stride_bytes
//                              + dim % dims_per_run * stride_bytes[3])
//
// layer, head and token are counted within the slice. Strides and offsets are in bytes and may be
// negative. Borrows everything.
struct TargetPlane {
  std::byte* data = nullptr;                 // if it is a source, it is only read
  std::span<std::byte* const> layers{};      // one per layer of the slice, or empty
  std::span<const int64_t> token_offsets{};  // one per token of the block, or empty
  std::array<int64_t, 4> stride_bytes{};     // layer, head, token, dim
  // Number of channels in a run: layouts for matrix units split a row into runs. 0: the row is one
  // run.
  uint32_t dims_per_run = 0;
  int64_t run_stride_bytes = 0;
  // The memory that must contain all elements: bytes [first_byte, end_byte) from `data`, or from
  // each pointer of `layers`. If both are 0, the memory is unknown, and only overflow of addresses
  // is checked.
  int64_t first_byte = 0, end_byte = 0;
};

// The planes of a slice: K and V, or `k` alone for kinds with one plane.
struct TargetView {
  TargetPlane k, v;

  [[nodiscard]] const TargetPlane& At(uint32_t plane) const { return plane == 0 ? k : v; }
};

// The shape of the slice that a view covers.
struct ViewShape {
  TileShape tile;
  uint16_t layers = 0, heads = 0, tokens = 0;  // of the slice
};

enum class TargetFault : uint8_t {
  kNone,
  kNoData,         // data is null, and there are no layers
  kLayerCount,     // the number of layers differs from the slice's
  kNullLayer,      // a pointer of layers is null
  kTokenCount,     // the number of token_offsets differs from the block's tokens
  kNoStep,         // stride_bytes[3] is 0
  kRaggedRuns,     // the channels are not a whole number of runs
  kOutside,        // an element would lie outside [first_byte, end_byte)
  kSkippedSource,  // a source skips a token
};

// Returns what is wrong with plane `plane` of a view, or that nothing is.
[[nodiscard]] TargetFault CheckPlane(const ViewShape& shape, uint32_t plane,
                                     const TargetPlane& view, bool is_source);
// Errors: kTargetTooSmall if an element would lie outside, kInvalidShape for any other fault.
Error CheckTarget(const ViewShape& shape, const TargetView& view, bool is_source);

// Returns a view of the contiguous source payload of a slice: [layer, head, plane, token, dim].
[[nodiscard]] TargetView DenseView(const ViewShape& shape, std::byte* payload);

// Returns the size of the tiles of one (layer, head).
[[nodiscard]] uint64_t HeadBytes(const ViewShape& shape);

// REQUIRES for all functions below: CheckTarget() is kOk.

// Returns the tile of a (layer, head) if its bytes are contiguous as in a payload; else null.
[[nodiscard]] std::byte* DenseTile(const ViewShape& shape, uint32_t plane, const TargetPlane& view,
                                   uint32_t layer, uint32_t head);

// Copies between that tile and contiguous bytes, [token, dim].
void GatherTile(const ViewShape& shape, uint32_t plane, const TargetPlane& view, uint32_t layer,
                uint32_t head, std::byte* bytes);
void ScatterTile(const ViewShape& shape, uint32_t plane, const TargetPlane& view, uint32_t layer,
                 uint32_t head, const std::byte* bytes);

}  // namespace cairn::codecs
