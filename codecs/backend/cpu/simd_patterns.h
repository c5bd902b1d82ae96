// SPDX-License-Identifier: Apache-2.0
#pragma once
// More primitives for patterns.inl, in addition to those of simd_blocks.h. They work on one channel
// of 32 patterns, as integers of 16 bits in two registers of AVX2. Both ISA files use them, since
// AVX-512 includes these instructions. Everything has internal linkage: see
// codecs/backend/backend.h.

#include <immintrin.h>

#include <cstdint>

#include "codecs/backend/cpu/simd_blocks.h"
#include "codecs/backend/cpu/simd_interleave.h"

namespace cairn::codecs {
namespace {

struct Shorts32 {
  __m256i a, b;
};

struct Ranks {
  static constexpr uint32_t kPatterns = 32;

  // Multiplies eight channels of eight patterns by `scale` and rounds them. Stores channel c of
  // pattern i at target[ranks[c] * kPatterns + i].
  static void PutEight(const uint8_t* const (&patterns)[8], float scale, const uint16_t* ranks,
                       int16_t* target) {
    __m128i rows[8];
    for (int i = 0; i < 8; ++i) {
      const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(patterns[i]));
      const __m256i x =
          _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(scale)));
      rows[i] = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    }
    Interleave<3>(
        rows, [](__m128i a, __m128i b) { return _mm_unpacklo_epi16(a, b); },
        [](__m128i a, __m128i b) { return _mm_unpackhi_epi16(a, b); });
    for (uint32_t c = 0; c < 8; ++c) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(target + uint64_t{ranks[c]} * kPatterns),
                       rows[c]);
    }
  }
  // Stores 16 values as rounded multiples of a step, alternating between x.a and x.b. `rounder` is
  // 1.5 * 2^23 steps. Adding it to a value leaves the multiple in the last 16 bits of the sum.
  static void PutValues(Floats16 x, float rounder, int16_t* target) {
    const auto bits = [&](__m256 eight) {
      return _mm256_castps_si256(_mm256_add_ps(eight, _mm256_set1_ps(rounder)));
    };
    const __m256i both = _mm256_blend_epi16(bits(x.a), _mm256_slli_epi32(bits(x.b), 16), 0xAA);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), both);
  }

  static constexpr uint32_t kChannelsAtOnce = 16;

  // The order in which channels are processed. `order` has the index of each channel's value.
  // Channels are processed in groups of kChannelsAtOnce, and `rest` has one bound for each group.
  // The differences in the group and in all later groups are at most as large in magnitude.
  struct Channels {
    const uint16_t* order;
    const int32_t* rest;
    uint32_t count;  // a multiple of kChannelsAtOnce
  };

  // Computes a range for each of two tokens and each pattern. The range is the largest minus the
  // smallest difference over all channels, as an unsigned number of 16 bits.
  //   table   for each channel, in the order of `channels`, the values of kPatterns patterns
  //   values  for each token, its values as PutValues() stores them
  static void FindRanges(const int16_t* table, const int16_t* const (&values)[2],
                         const Channels& channels, Shorts32 (&ranges)[2]) {
    Shorts32 low[2];
    Shorts32 high[2];
    for (uint32_t t = 0; t < 2; ++t) {
      low[t].a = low[t].b = _mm256_set1_epi16(0x7FFF);
      high[t].a = high[t].b = _mm256_set1_epi16(-0x8000);
    }
    for (uint32_t first = 0; first < channels.count; first += kChannelsAtOnce) {
      if (first != 0 && AreWithin(channels.rest[first / kChannelsAtOnce], low, high)) break;
#pragma GCC unroll 4
      for (uint32_t rank = first; rank < first + kChannelsAtOnce; ++rank) {
        const auto* patterns = reinterpret_cast<const __m256i*>(table + uint64_t{rank} * kPatterns);
        const uint32_t c = channels.order[rank];
        for (uint32_t t = 0; t < 2; ++t) {
          const __m256i x = _mm256_set1_epi16(values[t][c]);
          const __m256i a = _mm256_subs_epi16(x, _mm256_load_si256(patterns));
          const __m256i b = _mm256_subs_epi16(x, _mm256_load_si256(patterns + 1));
          low[t] = {_mm256_min_epi16(low[t].a, a), _mm256_min_epi16(low[t].b, b)};
          high[t] = {_mm256_max_epi16(high[t].a, a), _mm256_max_epi16(high[t].b, b)};
        }
      }
    }
    for (uint32_t t = 0; t < 2; ++t) {
      ranges[t] = {_mm256_sub_epi16(high[t].a, low[t].a), _mm256_sub_epi16(high[t].b, low[t].b)};
    }
  }
  // Returns whether values up to `reach` in magnitude cannot widen any of the ranges found so far.
  static bool AreWithin(int32_t reach, const Shorts32 (&low)[2], const Shorts32 (&high)[2]) {
    if (reach > 0x7FFF) return false;
    const __m256i lows = _mm256_max_epi16(_mm256_max_epi16(low[0].a, low[0].b),
                                          _mm256_max_epi16(low[1].a, low[1].b));
    const __m256i highs = _mm256_min_epi16(_mm256_min_epi16(high[0].a, high[0].b),
                                           _mm256_min_epi16(high[1].a, high[1].b));
    const __m256i inside = _mm256_max_epi16(lows, _mm256_subs_epi16(_mm256_setzero_si256(), highs));
    const __m256i limit = _mm256_set1_epi16(static_cast<int16_t>(-reach));
    return _mm256_movemask_epi8(_mm256_cmpgt_epi16(inside, limit)) == 0;
  }
  // Returns a mask whose bit i is set if range i is at most `slack` above the smallest range.
  static uint32_t NearLeast(Shorts32 ranges, uint32_t slack) {
    const __m256i least16 = _mm256_min_epu16(ranges.a, ranges.b);
    const __m128i least = _mm_minpos_epu16(
        _mm_min_epu16(_mm256_castsi256_si128(least16), _mm256_extracti128_si256(least16, 1)));
    const __m256i limit = _mm256_adds_epu16(_mm256_broadcastw_epi16(least),
                                            _mm256_set1_epi16(static_cast<int16_t>(slack)));
    const __m256i zero = _mm256_setzero_si256();
    const __m256i a = _mm256_cmpeq_epi16(_mm256_subs_epu16(ranges.a, limit), zero);
    const __m256i b = _mm256_cmpeq_epi16(_mm256_subs_epu16(ranges.b, limit), zero);
    const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xD8);
    return static_cast<uint32_t>(_mm256_movemask_epi8(both));
  }
};

}  // namespace
}  // namespace cairn::codecs
