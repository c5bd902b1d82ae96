// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the tokens that `ott` stores as source elements (rows): those whose keys have the smallest
// norms of the chain so far. Each group of 128 tokens adds at most three rows.
// codecs/stages/select/min_norm.cc does the same. The block for K and the block for V both compute
// the rows.

#include <cstdint>

#include "codecs/numbers/math.h"
#include "kernels/body/encode_tasks.h"
#include "kernels/body/token_norms.h"

namespace cairn::kernels {

// The smallest norms so far. They are stored as the bits of floats, which have the same order as
// the floats. An unused entry is infinite.
struct NormPool {
  uint32_t first = codecs::kInfinityBits, second = codecs::kInfinityBits,
           third = codecs::kInfinityBits;  // ascending
  uint32_t count = 0, displaced = 0;

  // Returns false if the pool does not take this norm. In that case it takes no larger norm either.
  CAIRN_DEVICE_MEMBER bool Enter(uint32_t norm) {
    if (count == kPoolNorms) {
      if (displaced == kPoolDisplacedMax || norm >= third) return false;
      ++displaced;
    } else {
      ++count;
    }
    third = second > norm ? second : norm;
    if (second <= norm) return true;
    second = first > norm ? first : norm;
    if (first > norm) first = norm;
    return true;
  }
};

// Returns the pool that the previous block of the chain has stored. Returns an empty pool if the
// stored pool is invalid.
CAIRN_DEVICE NormPool LoadPool(const uint8_t* stored) {
  uint32_t norms[kPoolNorms];
  const auto state = LoadGlobal<uint32_t>(stored + 4 * kPoolNorms);
  NormPool pool;
  pool.count = state & 255;
  pool.displaced = state >> 8;  // the other bits must be zero
  bool is_valid = pool.count <= kPoolNorms && pool.displaced <= kPoolDisplacedMax &&
                  (pool.displaced == 0 || pool.count == kPoolNorms);
  uint32_t previous = 0;
  CAIRN_UNROLL
  for (uint32_t i = 0; i < kPoolNorms; ++i) {
    const auto bits = LoadGlobal<uint32_t>(stored + 4 * i);
    const bool is_there = i < pool.count;
    is_valid &= is_there ? bits >= previous && bits < codecs::kInfinityBits : bits == 0;
    norms[i] = is_there ? bits : codecs::kInfinityBits;
    previous = bits;
  }
  if (!is_valid) return {};
  pool.first = norms[0];
  pool.second = norms[1];
  pool.third = norms[2];
  return pool;
}

CAIRN_DEVICE void StorePool(const NormPool& pool, uint8_t* target) {
  const uint32_t norms[kPoolNorms] = {pool.first, pool.second, pool.third};
  CAIRN_UNROLL
  for (uint32_t i = 0; i < kPoolNorms; ++i) {
    StoreGlobal(target + 4 * i, i < pool.count ? norms[i] : 0);
  }
  StoreGlobal(target + 4 * kPoolNorms, pool.count | pool.displaced << 8);
}

CAIRN_DEVICE uint32_t SmallestOfLanes(uint32_t value) {
  for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    const uint32_t other = ShuffleXor(value, lanes);
    value = other < value ? other : value;
  }
  return value;
}

// Updates the pool with up to 128 tokens, and marks the tokens that enter it. Uses one warp, with
// four tokens per lane.
//   norms  the norms of these tokens
CAIRN_DEVICE void TraceGroup(const float* norms, uint32_t first, uint32_t count, NormPool* pool,
                             uint32_t* is_row) {
  constexpr uint32_t kOfLane = kTracedTokens / kWarpLanes;
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  uint32_t of[kOfLane];
  CAIRN_UNROLL
  for (uint32_t i = 0; i < kOfLane; ++i) {
    const uint32_t at = kWarpLanes * i + lane;
    of[i] = at < count ? codecs::FloatBits(norms[at]) : codecs::kInfinityBits;
  }
  for (uint32_t n = 0; n < kPoolNorms; ++n) {
    uint32_t own = of[0];
    CAIRN_UNROLL
    for (uint32_t i = 1; i < kOfLane; ++i) own = of[i] < own ? of[i] : own;
    const uint32_t smallest = SmallestOfLanes(own);
    if (smallest >= codecs::kInfinityBits || !pool->Enter(smallest)) return;
    uint32_t at = kTracedTokens;  // the first token with that norm
    CAIRN_UNROLL
    for (uint32_t i = kOfLane; i-- > 0;) at = of[i] == smallest ? kWarpLanes * i + lane : at;
    at = SmallestOfLanes(at);
    CAIRN_UNROLL
    for (uint32_t i = 0; i < kOfLane; ++i) {
      if (kWarpLanes * i + lane == at) of[i] = codecs::kInfinityBits;  // taken
    }
    if (lane == 0) AtomicOrShared(&is_row[(first + at) / 32], 1U << (first + at) % 32);
  }
}

// The inputs and the result of the search for rows, in shared memory of a thread block.
struct TracedRows {
  float norms[kTileTokensMax];
  NormPool pool;  // the pool after this tile
};

// Marks the rows that the keys of the head determine. Synchronizes the block inside. The block must
// synchronize again before it reads the marks or the pool.
CAIRN_DEVICE void MarkTraced(const EncodeReader& reader, const EncodeTile& tile, TracedRows* traced,
                             uint32_t* is_row, Fault* fault) {
  // The tile of V follows the tile of its K.
  const EncodeTask k = tile.plane.is_v ? reader.Task(tile.number - 1) : tile.task;
  const PlaneRecord plane = tile.plane.is_v ? reader.Plane(k.plane) : tile.plane;
  const auto magnitude = [](float value) {
    return codecs::BitsFloat(codecs::FloatBits(value) & 0x7FFFFFFF);
  };
  const uint32_t each = (plane.tokens + kBlockWarps - 1) / kBlockWarps;
  const uint32_t token_first = WarpOfBlock() * each;
  if (token_first < plane.tokens) {
    const uint32_t left = plane.tokens - token_first;
    FindNorms(plane, k.source, token_first, left < each ? left : each, magnitude,
              traced->norms + token_first, fault);
  }
  SyncBlock();
  if (WarpOfBlock() != 0) return;
  NormPool pool;
  if (k.scores != nullptr) pool = LoadPool(k.scores);
  for (uint32_t first = 0; first < plane.tokens; first += kTracedTokens) {
    const uint32_t left = plane.tokens - first;
    TraceGroup(traced->norms + first, first, left < kTracedTokens ? left : kTracedTokens, &pool,
               is_row);
  }
  if (ThreadIndex() == 0) traced->pool = pool;
}

}  // namespace cairn::kernels
