// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes patternkv, one block per tile. One warp per token chooses the pattern of the head that
// leaves the smallest remainder, as codecs/backend/reference/pattern.cc does. The remainder is
// coded as affine_encode.h codes values. Accepts every shape and dtype.

#include <cstdint>

#include "codecs/backend/reference/token_norm.h"
#include "codecs/numbers/gate.h"
#include "codecs/pack/dense.h"
#include "kernels/body/affine_encode.h"

namespace cairn::kernels {

struct PatternedEncodeShared {
  EncodeShared tile;
  uint32_t is_predicted[kRowWordsMax];
  uint8_t pattern[kTileTokensMax];  // index of the pattern of each token
};

CAIRN_DEVICE const uint8_t* PatternOf(const EncodeTile& tile, uint32_t number) {
  const PlaneRecord& plane = tile.plane;
  const uint64_t index = static_cast<uint64_t>(tile.task.head) * plane.patterns + number;
  return plane.side + 2 * index * plane.dim;
}

// Returns the remainder of an element: the element minus its pattern.
//   pattern  null if the token has no pattern
CAIRN_DEVICE float LeftOf(const PlaneRecord& plane, const uint8_t* row, const uint8_t* pattern,
                          uint32_t channel) {
  const float value = LoadValue(plane.dtype, row, channel);
  if (pattern == nullptr) return value;
  return codecs::Add(value, -HalfToFloat(LoadGlobal<uint16_t>(pattern + 2 * channel)));
}

// Returns the range (largest minus smallest) of a token's remainders in the channels [first, end).
// Uses `lanes` lanes of a warp: all, or one half.
CAIRN_DEVICE float RangeLeft(const PlaneRecord& plane, const uint8_t* row, const uint8_t* pattern,
                             uint32_t first, uint32_t end, uint32_t lanes) {
  // All lanes start with the first channel. So even a lane without channels has a value.
  float low = LeftOf(plane, row, pattern, first), high = low;
  for (uint32_t c = first + ThreadIndex() % lanes; c < end; c += lanes) {
    const float value = LeftOf(plane, row, pattern, c);
    low = value < low ? value : low;
    high = value > high ? value : high;
  }
  for (uint32_t other = lanes / 2; other > 0; other /= 2) {
    const float other_low = codecs::BitsFloat(ShuffleXor(codecs::FloatBits(low), other));
    const float other_high = codecs::BitsFloat(ShuffleXor(codecs::FloatBits(high), other));
    low = other_low < low ? other_low : low;
    high = other_high > high ? other_high : high;
  }
  return codecs::Add(high, -low);
}

// Returns the squared length of a token's remainder. Uses half a warp, with one partial sum per
// lane.
CAIRN_DEVICE float SquaredLengthLeft(const PlaneRecord& plane, const uint8_t* row,
                                     const uint8_t* pattern) {
  constexpr uint32_t kSums = codecs::kNormSums;
  float sum = 0.0F;
  for (uint32_t c = ThreadIndex() % kSums; c < plane.dim; c += kSums) {
    const float value = LeftOf(plane, row, pattern, c);
    sum = codecs::Add(sum, codecs::Multiply(value, value));
  }
  for (uint32_t other = kSums / 2; other > 0; other /= 2) {
    sum = codecs::Add(sum, codecs::BitsFloat(ShuffleXor(codecs::FloatBits(sum), other)));
  }
  return sum;
}

// Returns the index of the pattern with the lowest cost, the first if there are several. Each half
// of the warp tries every second pattern.
CAIRN_DEVICE uint32_t CheapestPattern(const EncodeTile& tile, const uint8_t* row) {
  constexpr uint32_t kHalf = codecs::kNormSums;
  const PlaneRecord& plane = tile.plane;
  const uint32_t half = ThreadIndex() % kWarpLanes / kHalf;
  uint32_t best = 0;
  float best_cost = 0.0F;
  for (uint32_t first = 0; first < plane.patterns; first += 2) {
    // If the second half has no pattern left, it tries the last one again.
    const uint32_t number = first + half < plane.patterns ? first + half : first;
    const uint8_t* pattern = PatternOf(tile, number);
    const float cost = (tile.task.rules & kRuleNearest) != 0
                           ? SquaredLengthLeft(plane, row, pattern)
                           : RangeLeft(plane, row, pattern, 0, plane.dim, kHalf);
    if (first != 0 && !(cost < best_cost)) continue;
    best = number;
    best_cost = cost;
  }
  const uint32_t other = ShuffleXor(best, kHalf);
  const float other_cost = codecs::BitsFloat(ShuffleXor(codecs::FloatBits(best_cost), kHalf));
  const bool is_other = other_cost < best_cost || (other_cost == best_cost && other < best);
  return is_other ? other : best;
}

// Returns whether a token of V uses its pattern.
CAIRN_DEVICE bool PassesGate(const PlaneRecord& plane, const uint8_t* row, const uint8_t* pattern) {
  codecs::GateSums sums;
  CAIRN_NO_UNROLL
  for (uint32_t first = 0; first < plane.dim; first += plane.group) {
    const uint32_t left = plane.dim - first, count = left < plane.group ? left : plane.group;
    const float raw = RangeLeft(plane, row, nullptr, first, first + count, kWarpLanes);
    const float flat = RangeLeft(plane, row, pattern, first, first + count, kWarpLanes);
    sums = codecs::AddGroup(sums, count, raw, flat);
  }
  return codecs::PassesGate(sums, codecs::kGateLevel);
}

// Chooses the patterns of the tokens that are not rows. A token becomes a row if its remainder
// cannot be coded.
CAIRN_DEVICE void ChoosePatterns(const EncodeTile& tile, PatternedEncodeShared* shared) {
  const PlaneRecord& plane = tile.plane;
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  for (uint32_t token = WarpOfBlock(); token < plane.tokens; token += kBlockWarps) {
    if (IsMarked(shared->tile.is_row, token)) continue;
    const uint8_t* row = shared->tile.places[token];
    const uint32_t number = CheapestPattern(tile, row);
    const uint8_t* pattern = PatternOf(tile, number);
    if (plane.is_v && !PassesGate(plane, row, pattern)) continue;
    bool is_uncodable = false;
    for (uint32_t c = lane; c < plane.dim; c += kWarpLanes) {
      is_uncodable |= codecs::IsRowValue(LeftOf(plane, row, pattern, c));
    }
    uint32_t* marks = Any(is_uncodable) ? shared->tile.is_found : shared->is_predicted;
    if (lane != 0) continue;
    shared->pattern[token] = static_cast<uint8_t>(number);
    AtomicOrShared(&marks[token / 32], 1U << token % 32);
  }
}

// Stores the patterns and gates of the tokens that have a pattern and did not become rows.
CAIRN_DEVICE void StorePatterns(const EncodeTile& tile, const PatternedEncodeShared& shared,
                                uint32_t number_bytes) {
  const PlaneRecord& plane = tile.plane;
  const uint32_t bits = codecs::NumberBits(plane.patterns);
  const auto is_taken = [&](uint32_t token) {
    return token < plane.tokens && IsMarked(shared.is_predicted, token) &&
           !IsMarked(shared.tile.is_row, token);
  };
  uint8_t* numbers = tile.task.slot + tile.map_at;
  for (uint32_t i = ThreadIndex(); i < number_bytes; i += kBlockThreads) {
    uint32_t byte = 0;
    for (uint32_t token = 8 * i / bits; token * bits < 8 * i + 8; ++token) {
      if (!is_taken(token)) continue;
      const uint32_t number = shared.pattern[token], bit = token * bits;
      byte |= bit >= 8 * i ? number << (bit - 8 * i) : number >> (8 * i - bit);
    }
    StoreGlobal(numbers + i, static_cast<uint8_t>(byte));
  }
  for (uint32_t i = ThreadIndex(); number_bytes + i < tile.map_bytes; i += kBlockThreads) {
    uint32_t byte = 0;
    for (uint32_t bit = 0; bit < 8; ++bit) byte |= (is_taken(8 * i + bit) ? 1U : 0U) << bit;
    StoreGlobal(numbers + number_bytes + i, static_cast<uint8_t>(byte));
  }
}

CAIRN_DEVICE bool EncodePatterned(const EncodeReader& reader, EncodeTile* tile,
                                  PatternedEncodeShared* shared) {
  const PlaneRecord& plane = tile->plane;
  const uint32_t number_bytes = (plane.tokens * codecs::NumberBits(plane.patterns) + 7) / 8;
  tile->map_bytes = number_bytes + (plane.is_v ? (plane.tokens + 7) / 8 : 0);
  if (ThreadIndex() < kRowWordsMax) shared->is_predicted[ThreadIndex()] = 0;
  MarkUncodable(*tile, &shared->tile);
  SyncBlock();
  ChoosePatterns(*tile, shared);
  AddFound(&shared->tile);
  const auto value_at = [&](uint32_t token, uint32_t channel) {
    const bool is_predicted = IsMarked(shared->is_predicted, token);
    return LeftOf(plane, shared->tile.places[token],
                  is_predicted ? PatternOf(*tile, shared->pattern[token]) : nullptr, channel);
  };
  if (!EncodeGroups(reader, tile, &shared->tile, value_at)) return false;
  StorePatterns(*tile, *shared, number_bytes);
  return true;
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) EncodePatternedAny(EncodeArgs args) {
  CAIRN_SHARED(PatternedEncodeShared, shared);
  EncodeTiles(args, &shared.tile, [&](const EncodeReader& reader, EncodeTile* tile, Fault*) {
    return EncodePatterned(reader, tile, &shared);
  });
}

}  // namespace cairn::kernels
