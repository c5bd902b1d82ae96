// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shapes of KV: the shape of a block's KV in one group of layers, and slices of such a shape.
//
// The source ("raw") payload of a slice is its tiles one after another, in the order layer, head,
// plane. Each tile is [rows, dim] in C order, in the group's dtype, little-endian. There is no
// padding.
//
// - kKv: planes K and V; rows = tokens; dim = k_dim and v_dim elements.
// - kLatent: one plane; rows = tokens; dim = k_dim elements. For MLA: the latent with its rotary
//   part.
// - kState: one plane; 1 row; dim = k_dim bytes. A snapshot of a state at the block's end.
// - kOpaqueRows: one plane; rows = tokens; dim = k_dim bytes.
//
// Every number is checked by Validate() or by the functions that compute sizes. No size computation
// can overflow.

#include <cstdint>

#include "codecs/types/dtype.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

inline constexpr uint32_t kTokensPerBlockMin = 16;
inline constexpr uint32_t kTokensPerBlockMax = 1024;
inline constexpr uint32_t kDimMax = 4096;                // elements of a row of K, V or a latent
inline constexpr uint32_t kOpaqueBytesMax = 16u << 20;   // bytes of a state, or of an opaque row
inline constexpr uint32_t kTilesMax = 65536;             // tiles of an image
inline constexpr uint64_t kImageBytesMax = 64ull << 20;  // bytes of an image
inline constexpr uint32_t kImagesPerBlockMax = 64;       // images into which a block's slices may
                                                         // a block may be divided

// The values are part of the image format.
enum class GroupKind : uint8_t { kKv = 1, kLatent = 2, kState = 3, kOpaqueRows = 4 };
enum class Plane : uint8_t { kK = 0, kV = 1, kLatent = 2, kState = 3, kOpaqueRows = 4 };
enum class RopeKind : uint8_t { kNone = 0, kHalf = 1, kInterleaved = 2 };

// The channel pairs of a rotary embedding and their frequencies. Part of a space's identity. The
// codecs code K after RoPE and do not read this field. A profile has its own description of RoPE.
struct Rope {
  RopeKind kind = RopeKind::kNone;
  uint16_t rotary_dims = 0;  // even, <= k_dim; 0 exactly if kind is kNone
  double base = 0;           // > 1 unless kind is kNone
  friend bool operator==(const Rope&, const Rope&) = default;
};

// The part of a group's shape that determines its tiles.
struct TileShape {
  GroupKind kind = GroupKind::kKv;
  DType dtype = DType::kBf16;  // kBytes exactly for kState and kOpaqueRows
  uint32_t k_dim = 0;
  uint32_t v_dim = 0;  // 0 except for kKv
  friend bool operator==(const TileShape&, const TileShape&) = default;
};

struct GroupShape {
  TileShape tile;
  uint16_t layers = 0;
  uint16_t heads = 0;  // KV heads; 1 for latents
  uint16_t tokens_per_block = 128;
  uint32_t window = 0;  // attention window in tokens; 0: all
  Rope rope;
  friend bool operator==(const GroupShape&, const GroupShape&) = default;
};

// A range of layers times a range of heads.
struct Slice {
  uint16_t layer_first = 0;
  uint16_t layer_count = 0;
  uint16_t head_first = 0;
  uint16_t head_count = 0;

  [[nodiscard]] bool IsEmpty() const { return layer_count == 0 || head_count == 0; }
  [[nodiscard]] bool Contains(const Slice& other) const;
  [[nodiscard]] bool Overlaps(const Slice& other) const;
  friend bool operator==(const Slice&, const Slice&) = default;
};

[[nodiscard]] Slice WholeOf(const GroupShape& shape);
// Returns true if the slice is not empty and inside the group.
[[nodiscard]] bool Fits(const GroupShape& shape, const Slice& slice);

// Errors: kInvalidShape unless every field is within the limits above and the rules of its kind.
Error Validate(const TileShape& shape);
Error Validate(const GroupShape& shape);

[[nodiscard]] uint32_t ElementBytes(DType dtype);
// Returns true for a dtype whose elements are numbers: all but kBytes and unknown values.
[[nodiscard]] bool IsNumber(DType dtype);
[[nodiscard]] uint32_t PlaneCount(GroupKind kind);
[[nodiscard]] Plane PlaneAt(GroupKind kind, uint32_t index);
// Returns the columns of a tile, in elements of the dtype.
[[nodiscard]] uint32_t PlaneDim(const TileShape& shape, Plane plane);
// Returns the rows of a tile of a block of `tokens`: 1 for a state.
[[nodiscard]] uint32_t TileRows(GroupKind kind, uint32_t tokens);

// REQUIRES: Validate(shape) is kOk, tokens <= kTokensPerBlockMax.
[[nodiscard]] uint64_t TileBytes(const TileShape& shape, Plane plane, uint32_t tokens);

// Sets *bytes to the size of a slice's source payload. Errors: kInvalidShape, kInvalidSlice
// (empty).
Error SourceBytes(const TileShape& shape, const Slice& slice, uint32_t tokens, uint64_t* bytes);

}  // namespace cairn::codecs
