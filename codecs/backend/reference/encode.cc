// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "codecs/backend/reference/reference.h"
#include "codecs/numbers/affine.h"
#include "codecs/pack/dense.h"

namespace cairn::codecs::reference {
namespace {

// A group: `count` elements of a tile, `stride` elements apart. Elements of row tokens are left
// out.
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
  // Calls visit(value) for every value of a token that is not a row.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (uint32_t i = 0; i < group_.count; ++i) {
      if (IsKept(i)) visit(At(i));
    }
  }

 private:
  const AffineTile& tile_;
  const uint8_t* source_;
  const uint64_t* rows_;
  const Group& group_;
};

Extremes ExtremesOf(const GroupReader& group) {
  Extremes of;
  group.ForEach([&](float value) { of.Add(value); });
  of.MakeZerosPositive();
  return of;
}

// clip_count: number of ranges to try if the tile is clipped.
AffineParams ParamsOf(const GroupReader& group, const AffineTile& tile, const Extremes& of,
                      uint32_t clip_count) {
  return ChooseParams(tile.bits, tile.is_clipped ? clip_count : 1, of,
                      [&](auto visit) { group.ForEach(visit); });
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
      const Extremes of = ExtremesOf(reader);
      if (IsInexactConstant(of.low, of.high)) return false;
      const AffineParams chosen = ParamsOf(reader, tile, of, ClipCount(tile.bits, true));
      StoreParams(params, pair++, chosen);
      for (uint32_t i = 0; i < count; ++i) {
        if (!reader.IsKept(i)) continue;
        uint8_t* row = codes + uint64_t{first + i} * row_bytes;
        PackCode(row, channel, tile.bits, AffineCode(reader.At(i), chosen, tile.bits));
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
      const Extremes of = ExtremesOf(GroupReader(tile, source, rows, group));
      if (IsInexactConstant(of.low, of.high)) {
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
          ParamsOf(reader, tile, ExtremesOf(reader), ClipCount(tile.bits, false));
      StoreParams(params, pair++, chosen);
      for (uint32_t i = 0; i < group.count; ++i) {
        PackCode(row, first + i, tile.bits, AffineCode(reader.At(i), chosen, tile.bits));
      }
    }
  }
}

}  // namespace cairn::codecs::reference
