// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "codecs/backend/reference/reference.h"
#include "codecs/pack/dense.h"

namespace cairn::codecs::reference {
namespace {

// A group: `count` elements of a tile, `stride` elements apart. Those of row tokens are left out.
struct Group {
  uint64_t first = 0;         // element index
  uint64_t stride = 1;        // elements
  uint32_t count = 0;         // elements
  uint32_t token_first = 0;   // of element 0
  uint32_t token_stride = 0;  // 1 per channel, 0 per token
};

class GroupReader {
 public:
  GroupReader(const AffineTile& tile, const uint8_t* source, const uint64_t* rows,
              const Group& group)
      : tile_(tile), source_(source), rows_(rows), group_(group) {}

  [[nodiscard]] bool IsKept(uint32_t i) const {
    return !IsRow(rows_, group_.token_first + i * group_.token_stride);
  }
  [[nodiscard]] float At(uint32_t i) const {
    const uint64_t index = group_.first + i * group_.stride;
    const float value = LoadElement(tile_.dtype, source_, index);
    if (tile_.prediction == nullptr) return value;
    const uint32_t token = group_.token_first + i * group_.token_stride;
    const uint8_t* pattern = tile_.prediction->PatternOf(token, tile_.dim);
    if (pattern == nullptr) return value;
    const auto channel = static_cast<uint32_t>(index - uint64_t{token} * tile_.dim);
    return Add(value, -LoadPatternValue(pattern, channel));
  }
  [[nodiscard]] uint32_t count() const { return group_.count; }

 private:
  const AffineTile& tile_;
  const uint8_t* source_;
  const uint64_t* rows_;
  const Group& group_;
};

struct Bounds {
  float low = 0.0F;
  float high = 0.0F;
};

Bounds BoundsOf(const GroupReader& group) {
  Bounds bounds;
  bool is_first = true;
  for (uint32_t i = 0; i < group.count(); ++i) {
    if (!group.IsKept(i)) continue;
    const float value = group.At(i);
    if (is_first || value < bounds.low) bounds.low = value;
    if (is_first || value > bounds.high) bounds.high = value;
    is_first = false;
  }
  return {bounds.low + 0.0F, bounds.high + 0.0F};  // -0 becomes +0
}

uint32_t ClipError(const GroupReader& group, uint32_t bits, AffineParams params,
                   float covering_range) {
  const float min = Fp16ToFloat(params.min);
  const float range = Fp16ToFloat(params.range);
  const float inverse_step = InverseStep(bits, range);
  const float weight = ClipWeight(bits, range, covering_range);
  uint32_t error = 0;
  for (uint32_t i = 0; i < group.count(); ++i) {
    if (!group.IsKept(i)) continue;
    const int32_t distance = ClipDistance(group.At(i), min, inverse_step, Levels(bits), weight);
    error += static_cast<uint32_t>(distance * distance);
  }
  return error;
}

// clip_count: of the ranges that are tried where the tile is clipped.
AffineParams ParamsOf(const GroupReader& group, const AffineTile& tile, const Bounds& bounds,
                      uint32_t clip_count) {
  const AffineParams covering = MakeParams(bounds.low, bounds.high, 0.0F);
  if (!tile.is_clipped || clip_count == 1) return covering;
  const float covering_range = Fp16ToFloat(covering.range);
  AffineParams best = covering;
  uint32_t best_error = ClipError(group, tile.bits, covering, covering_range);
  for (uint32_t i = 1; i < clip_count; ++i) {
    const AffineParams params = MakeParams(bounds.low, bounds.high, ClipInset(tile.bits, i));
    const uint32_t error = ClipError(group, tile.bits, params, covering_range);
    if (error < best_error) {
      best = params;
      best_error = error;
    }
  }
  return best;
}

uint8_t CodeOf(const AffineTile& tile, float value, AffineParams params) {
  const float inverse_step = InverseStep(8, Fp16ToFloat(params.range));
  return Narrow(Code8(value, Fp16ToFloat(params.min), inverse_step), tile.bits);
}

}  // namespace

void SelectRows(const AffineTile& tile, const uint8_t* source, uint64_t* rows) {
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    bool is_row = false;
    for (uint32_t channel = 0; channel < tile.dim; ++channel) {
      is_row |= IsRowValue(LoadElement(tile.dtype, source, uint64_t{token} * tile.dim + channel));
    }
    if (is_row) rows[token / 64] |= uint64_t{1} << (token % 64);
  }
}

bool EncodePerChannel(const AffineTile& tile, const uint8_t* source, const uint64_t* rows,
                      uint8_t* codes, uint8_t* params) {
  const uint32_t row_bytes = CodeRowBytes(tile.dim, tile.bits);
  std::memset(codes, 0, uint64_t{tile.tokens} * row_bytes);
  uint64_t pair = 0;
  for (uint32_t first = 0; first < tile.tokens; first += tile.group) {
    const uint32_t count = tile.tokens - first < tile.group ? tile.tokens - first : tile.group;
    for (uint32_t channel = 0; channel < tile.dim; ++channel) {
      const Group group{uint64_t{first} * tile.dim + channel, tile.dim, count, first, 1};
      const GroupReader reader(tile, source, rows, group);
      const Bounds bounds = BoundsOf(reader);
      if (IsInexactConstant(bounds.low, bounds.high)) return false;
      const AffineParams chosen = ParamsOf(reader, tile, bounds, ClipCount(tile.bits, true));
      StoreParams(params, pair++, chosen);
      for (uint32_t i = 0; i < count; ++i) {
        if (!reader.IsKept(i)) continue;
        uint8_t* row = codes + uint64_t{first + i} * row_bytes;
        PackCode(row, channel, tile.bits, CodeOf(tile, reader.At(i), chosen));
      }
    }
  }
  return true;
}

void EncodePerToken(const AffineTile& tile, const uint8_t* source, uint64_t* rows, uint8_t* codes,
                    uint8_t* params) {
  const uint32_t row_bytes = CodeRowBytes(tile.dim, tile.bits);
  const uint32_t group_count = (tile.dim + tile.group - 1) / tile.group;
  std::memset(codes, 0, uint64_t{tile.tokens} * row_bytes);
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    uint8_t* row = codes + uint64_t{token} * row_bytes;
    uint64_t pair = uint64_t{token} * group_count;
    const auto group_at = [&](uint32_t first) {
      const uint32_t count = tile.dim - first < tile.group ? tile.dim - first : tile.group;
      return Group{uint64_t{token} * tile.dim + first, 1, count, token, 0};
    };
    for (uint32_t first = 0; first < tile.dim && !IsRow(rows, token); first += tile.group) {
      const Group group = group_at(first);
      const Bounds bounds = BoundsOf(GroupReader(tile, source, rows, group));
      if (IsInexactConstant(bounds.low, bounds.high)) {
        rows[token / 64] |= uint64_t{1} << (token % 64);
      }
    }
    for (uint32_t first = 0; first < tile.dim; first += tile.group) {
      if (IsRow(rows, token)) {
        StoreParams(params, pair++, {});
        continue;
      }
      const Group group = group_at(first);
      const GroupReader reader(tile, source, rows, group);
      const AffineParams chosen =
          ParamsOf(reader, tile, BoundsOf(reader), ClipCount(tile.bits, false));
      StoreParams(params, pair++, chosen);
      for (uint32_t i = 0; i < group.count; ++i) {
        PackCode(row, first + i, tile.bits, CodeOf(tile, reader.At(i), chosen));
      }
    }
  }
}

}  // namespace cairn::codecs::reference
