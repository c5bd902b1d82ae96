// SPDX-License-Identifier: Apache-2.0
#pragma once
// More primitives for hot*.inl and mixed.inl, in addition to those of simd_blocks.h. They convert
// between bytes and codes whose width differs by channel, and look up the values of codes. Both ISA
// files use them, since AVX-512 includes these instructions. Everything has internal linkage: see
// codecs/backend/backend.h.

#include <immintrin.h>

#include <cstdint>

#include "codecs/backend/cpu/simd_blocks.h"

namespace cairn::codecs {
namespace {

struct Spreads {
  // Deal() moves the lowest bits of `bits` to the set bits of the mask, in order. Collect() is the
  // inverse.
  static uint64_t Deal(uint64_t bits, uint64_t mask) { return _pdep_u64(bits, mask); }
  static uint64_t Collect(uint64_t bits, uint64_t mask) { return _pext_u64(bits, mask); }

  // The low or the high byte of each half.
  static Halves16 LowBytes(Halves16 x) { return _mm256_and_si256(x, _mm256_set1_epi16(0xFF)); }
  static Halves16 HighBytes(Halves16 x) { return _mm256_srli_epi16(x, 8); }
  // Reorders tokens from the order of Groups::kTokenAt to 0, 1, 2, …
  static Ints16 Widen(Halves16 x) {
    const __m256i zero = _mm256_setzero_si256();
    return {_mm256_unpacklo_epi16(x, zero), _mm256_unpackhi_epi16(x, zero)};
  }
  // Packs numbers below 256 into the low and the high bytes of halves.
  static Halves16 Pair(Ints16 low, Ints16 high) {
    return Blocks::Narrow({_mm256_or_si256(low.a, _mm256_slli_epi32(high.a, 8)),
                           _mm256_or_si256(low.b, _mm256_slli_epi32(high.b, 8))});
  }

  // Returns entry index[i] of 16 halves. REQUIRES: 0 <= index[i] <= 15.
  static Halves16 LookUpHalves(const uint8_t* table, Halves16 index) {
    const auto* entries = reinterpret_cast<const __m128i*>(table);
    const __m256i low = _mm256_broadcastsi128_si256(_mm_loadu_si128(entries));
    const __m256i high = _mm256_broadcastsi128_si256(_mm_loadu_si128(entries + 1));
    const __m256i both = _mm256_or_si256(index, _mm256_slli_epi16(index, 8));
    const __m256i at = _mm256_add_epi8(_mm256_add_epi8(both, both), _mm256_set1_epi16(0x100));
    return _mm256_blendv_epi8(_mm256_shuffle_epi8(low, at), _mm256_shuffle_epi8(high, at),
                              _mm256_slli_epi16(at, 3));
  }
  // Returns entry index[i] of a table of eight. REQUIRES: 0 <= index[i] <= 7.
  static Floats16 LookUpEight(const float* table, Ints16 index) {
    const __m256 eight = _mm256_loadu_ps(table);
    return {_mm256_permutevar8x32_ps(eight, index.a), _mm256_permutevar8x32_ps(eight, index.b)};
  }
  // Returns entry index[i] of a table.
  static Floats16 LookUp(const float* table, Ints16 index) {
    return {_mm256_i32gather_ps(table, index.a, 4), _mm256_i32gather_ps(table, index.b, 4)};
  }
  // Sets all bits of lane i if x >= y, and none if either is NaN.
  static Ints16 IsNotLess(Floats16 x, Floats16 y) {
    return {_mm256_castps_si256(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ)),
            _mm256_castps_si256(_mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ))};
  }
};

}  // namespace
}  // namespace cairn::codecs
