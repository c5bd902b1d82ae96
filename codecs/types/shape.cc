// SPDX-License-Identifier: Apache-2.0
#include "codecs/types/shape.h"

namespace cairn::codecs {
namespace {

bool RangeContains(uint32_t first, uint32_t count, uint32_t inner_first, uint32_t inner_count) {
  return inner_first >= first && inner_first + inner_count <= first + count;
}

bool RangesOverlap(uint32_t first, uint32_t count, uint32_t other_first, uint32_t other_count) {
  return first < other_first + other_count && other_first < first + count;
}

bool IsValidRope(const GroupShape& shape) {
  const Rope& rope = shape.rope;
  switch (rope.kind) {
    case RopeKind::kNone:
      return rope.rotary_dims == 0;
    case RopeKind::kHalf:
    case RopeKind::kInterleaved:
      return rope.rotary_dims > 0 && rope.rotary_dims % 2 == 0 &&
             rope.rotary_dims <= shape.tile.k_dim && rope.base > 1.0 && rope.base < 1e30 &&
             shape.tile.dtype != DType::kBytes;
  }
  return false;
}

}  // namespace

bool Slice::Contains(const Slice& other) const {
  return RangeContains(layer_first, layer_count, other.layer_first, other.layer_count) &&
         RangeContains(head_first, head_count, other.head_first, other.head_count);
}

bool Slice::Overlaps(const Slice& other) const {
  return !IsEmpty() && !other.IsEmpty() &&
         RangesOverlap(layer_first, layer_count, other.layer_first, other.layer_count) &&
         RangesOverlap(head_first, head_count, other.head_first, other.head_count);
}

Slice WholeOf(const GroupShape& shape) { return Slice{0, shape.layers, 0, shape.heads}; }

bool Fits(const GroupShape& shape, const Slice& slice) {
  return !slice.IsEmpty() && WholeOf(shape).Contains(slice);
}

Error Validate(const TileShape& shape) {
  const bool is_typed = IsNumber(shape.dtype);
  bool is_valid = false;
  switch (shape.kind) {
    case GroupKind::kKv:
      is_valid = is_typed && shape.k_dim >= 1 && shape.k_dim <= kDimMax && shape.v_dim >= 1 &&
                 shape.v_dim <= kDimMax;
      break;
    case GroupKind::kLatent:
      is_valid = is_typed && shape.k_dim >= 1 && shape.k_dim <= kDimMax && shape.v_dim == 0;
      break;
    case GroupKind::kState:
    case GroupKind::kOpaqueRows:
      is_valid = shape.dtype == DType::kBytes && shape.k_dim >= 1 &&
                 shape.k_dim <= kOpaqueBytesMax && shape.v_dim == 0;
      break;
  }
  return is_valid ? Error::kOk : Error::kInvalidShape;
}

Error Validate(const GroupShape& shape) {
  if (const Error error = Validate(shape.tile); error != Error::kOk) return error;
  const bool is_valid = shape.layers >= 1 && shape.heads >= 1 &&
                        shape.tokens_per_block >= kTokensPerBlockMin &&
                        shape.tokens_per_block <= kTokensPerBlockMax && IsValidRope(shape);
  return is_valid ? Error::kOk : Error::kInvalidShape;
}

uint32_t ElementBytes(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
    case DType::kFp16:
      return 2;
    case DType::kFp32:
      return 4;
    case DType::kBytes:
    case DType::kFp8E4m3:
    case DType::kFp8E5m2:
      return 1;
  }
  return 1;
}

bool IsNumber(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
    case DType::kFp16:
    case DType::kFp32:
    case DType::kFp8E4m3:
    case DType::kFp8E5m2:
      return true;
    case DType::kBytes:
      break;
  }
  return false;
}

uint32_t PlaneCount(GroupKind kind) { return kind == GroupKind::kKv ? 2 : 1; }

Plane PlaneAt(GroupKind kind, uint32_t index) {
  switch (kind) {
    case GroupKind::kKv:
      return index == 0 ? Plane::kK : Plane::kV;
    case GroupKind::kLatent:
      return Plane::kLatent;
    case GroupKind::kState:
      return Plane::kState;
    case GroupKind::kOpaqueRows:
      break;
  }
  return Plane::kOpaqueRows;
}

uint32_t PlaneDim(const TileShape& shape, Plane plane) {
  return plane == Plane::kV ? shape.v_dim : shape.k_dim;
}

uint32_t TileRows(GroupKind kind, uint32_t tokens) {
  return kind == GroupKind::kState ? 1 : tokens;
}

uint64_t TileBytes(const TileShape& shape, Plane plane, uint32_t tokens) {
  return uint64_t{TileRows(shape.kind, tokens)} * PlaneDim(shape, plane) *
         ElementBytes(shape.dtype);
}

Error SourceBytes(const TileShape& shape, const Slice& slice, uint32_t tokens, uint64_t* bytes) {
  if (const Error error = Validate(shape); error != Error::kOk) return error;
  if (tokens == 0 || tokens > kTokensPerBlockMax) return Error::kInvalidShape;
  if (slice.IsEmpty()) return Error::kInvalidSlice;
  // Without the limits, (2^10 rows x 2^24 bytes) x 2 planes x 2^32 layer-heads would exceed 2^64.
  uint64_t head_bytes = 0;
  for (uint32_t plane = 0; plane < PlaneCount(shape.kind); ++plane) {
    head_bytes += TileBytes(shape, PlaneAt(shape.kind, plane), tokens);
  }
  uint64_t total = 0;
  if (__builtin_mul_overflow(head_bytes, uint64_t{slice.layer_count} * slice.head_count, &total)) {
    return Error::kTooLarge;
  }
  *bytes = total;
  return Error::kOk;
}

}  // namespace cairn::codecs
