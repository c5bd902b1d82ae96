// SPDX-License-Identifier: Apache-2.0
#pragma once
// The primitives that step*.inl use: 16 tokens of a channel, or 16 channels of a token, as floats
// in two registers of AVX2. Both ISA files use them, since AVX-512 includes these instructions.
// Everything has internal linkage: see codecs/backend/backend.h.

#include <immintrin.h>

#include <cstdint>

#include "codecs/backend/cpu/simd_interleave.h"

namespace cairn::codecs {
namespace {

// 16 floats: a has the lanes 0..7, b the lanes 8..15.
struct Floats16 {
  __m256 a, b;
};
struct Ints16 {
  __m256i a, b;
};
using Halves16 = __m256i;  // 16 lanes of 16 bits

struct Blocks {
  static Floats16 Set(float value) {
    const __m256 a = _mm256_set1_ps(value);
    return {a, a};
  }
  static Ints16 SetInts(int32_t value) {
    const __m256i a = _mm256_set1_epi32(value);
    return {a, a};
  }
  static Floats16 Load(const float* source) {
    return {_mm256_loadu_ps(source), _mm256_loadu_ps(source + 8)};
  }
  static void Store(float* target, Floats16 x) {
    _mm256_storeu_ps(target, x.a);
    _mm256_storeu_ps(target + 8, x.b);
  }
  static Floats16 Add(Floats16 x, Floats16 y) {
    return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
  }
  static Floats16 Sub(Floats16 x, Floats16 y) {
    return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
  }
  static Floats16 Mul(Floats16 x, Floats16 y) {
    return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
  }
  static Floats16 Min(Floats16 x, Floats16 y) {
    return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
  }
  static Floats16 Max(Floats16 x, Floats16 y) {
    return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
  }
  static float Least(Floats16 x) {
    const __m256 eight = _mm256_min_ps(x.a, x.b);
    const __m128 four = _mm_min_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_min_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_min_ss(two, _mm_movehdup_ps(two)));
  }
  static float Most(Floats16 x) {
    const Floats16 sign = Set(-0.0F);
    return -Least({_mm256_xor_ps(x.a, sign.a), _mm256_xor_ps(x.b, sign.b)});
  }
  // Computes the minimum of a, the maximum of b, the minimum of c and the maximum of d.
  static void Bounds(Floats16 a, Floats16 b, Floats16 c, Floats16 d, float (&bounds)[4]) {
    const __m256 sign = _mm256_set1_ps(-0.0F);
    const __m256 low[2] = {_mm256_min_ps(a.a, a.b), _mm256_min_ps(c.a, c.b)};
    const __m256 high[2] = {_mm256_xor_ps(_mm256_max_ps(b.a, b.b), sign),
                            _mm256_xor_ps(_mm256_max_ps(d.a, d.b), sign)};
    __m256d two[2];
    for (uint32_t i = 0; i < 2; ++i) {
      two[i] = _mm256_castps_pd(
          _mm256_min_ps(_mm256_unpacklo_ps(low[i], high[i]), _mm256_unpackhi_ps(low[i], high[i])));
    }
    const __m256 four = _mm256_min_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(two[0], two[1])),
                                      _mm256_castpd_ps(_mm256_unpackhi_pd(two[0], two[1])));
    const __m128 least = _mm_min_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
    _mm_storeu_ps(bounds, _mm_xor_ps(least, _mm_setr_ps(0.0F, -0.0F, 0.0F, -0.0F)));
  }
  // Returns entry index[i] of a table of 16 entries. REQUIRES: 0 <= index[i] <= 15.
  static Floats16 LookUp(Floats16 table, Ints16 index) {
    return {LookUpOne(table, index.a), LookUpOne(table, index.b)};
  }
  // Returns the larger of `largest` and the bits of x without the sign. As integers, these bits
  // have the order of magnitudes, with NaN above all others.
  static Ints16 MaxMagnitude(Ints16 largest, Floats16 x) {
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    return {_mm256_max_epi32(largest.a, _mm256_and_si256(_mm256_castps_si256(x.a), magnitude)),
            _mm256_max_epi32(largest.b, _mm256_and_si256(_mm256_castps_si256(x.b), magnitude))};
  }

  static Ints16 Add(Ints16 x, Ints16 y) {
    return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
  }
  static Ints16 Sub(Ints16 x, Ints16 y) {
    return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
  }
  static Ints16 And(Ints16 x, Ints16 y) {
    return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
  }
  static Ints16 Or(Ints16 x, Ints16 y) {
    return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
  }
  static Ints16 Xor(Ints16 x, Ints16 y) {
    return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)};
  }
  static Ints16 Equal(Ints16 x, Ints16 y) {
    return {_mm256_cmpeq_epi32(x.a, y.a), _mm256_cmpeq_epi32(x.b, y.b)};
  }
  static Ints16 Above(Ints16 x, Ints16 y) {  // signed
    return {_mm256_cmpgt_epi32(x.a, y.a), _mm256_cmpgt_epi32(x.b, y.b)};
  }
  template <int kBy>
  static Ints16 Left(Ints16 x) {
    return {_mm256_slli_epi32(x.a, kBy), _mm256_slli_epi32(x.b, kBy)};
  }
  static Ints16 Left(Ints16 x, uint32_t by) {
    const __m128i count = _mm_cvtsi32_si128(static_cast<int>(by));
    return {_mm256_sll_epi32(x.a, count), _mm256_sll_epi32(x.b, count)};
  }
  template <int kBy>
  static Ints16 Right(Ints16 x) {
    return {_mm256_srli_epi32(x.a, kBy), _mm256_srli_epi32(x.b, kBy)};
  }
  static Floats16 Choose(Ints16 mask, Floats16 yes, Floats16 no) {
    return {_mm256_blendv_ps(no.a, yes.a, _mm256_castsi256_ps(mask.a)),
            _mm256_blendv_ps(no.b, yes.b, _mm256_castsi256_ps(mask.b))};
  }
  static Ints16 BitsOf(Floats16 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
  static Floats16 OfBits(Ints16 x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
  // Returns a mask whose bit i is the top bit of lane i.
  static uint32_t Bits(Ints16 x) {
    const auto low = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(x.a)));
    return low | static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(x.b))) << 8;
  }
  // Sets all bits of lane i to bit i.
  static Ints16 Spread(uint32_t bits) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
    const __m256i low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i high = _mm256_slli_epi32(low, 8);
    return {_mm256_cmpeq_epi32(_mm256_and_si256(all, low), low),
            _mm256_cmpeq_epi32(_mm256_and_si256(all, high), high)};
  }
  // Returns 0, 1, … 15.
  static Ints16 Indices() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
  }
  static Ints16 FromBytes(const uint8_t* source) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
  }
  static Floats16 ToFloats(Ints16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  // Rounds to nearest, ties to even.
  static Ints16 Round(Floats16 x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }

  // Returns, for i = 0..15, the upper 32 bits of the 64-bit number first + i * by.
  static Ints16 HighOfMultiples(uint64_t first, uint64_t by) {
    // The multiples are stored in the order in which the shuffle below joins the halves of two
    // registers.
    const auto at = [&](uint64_t i) { return static_cast<int64_t>(first + i * by); };
    __m256i x = _mm256_setr_epi64x(at(0), at(1), at(4), at(5));
    const __m256i two = _mm256_set1_epi64x(static_cast<int64_t>(2 * by));
    const __m256i eight = _mm256_set1_epi64x(static_cast<int64_t>(8 * by));
    __m256i y = _mm256_add_epi64(x, two);
    const __m256i low = HighHalves(x, y);
    x = _mm256_add_epi64(x, eight);
    y = _mm256_add_epi64(y, eight);
    return {low, HighHalves(x, y)};
  }

  // ---- 16 bits ----

  static Halves16 LoadHalves(const uint8_t* source) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
  }
  static void StoreHalves(uint8_t* target, Halves16 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), x);
  }
  // Load 16 elements and widen them. The result is that of FromBf16() and FromFp16() on
  // LoadHalves().
  static Floats16 LoadBf16(const uint8_t* source) {
    return OfBits({_mm256_slli_epi32(_mm256_cvtepu16_epi32(LoadEight(source)), 16),
                   _mm256_slli_epi32(_mm256_cvtepu16_epi32(LoadEight(source + 16)), 16)});
  }
  static Floats16 LoadFp16(const uint8_t* source) {
    return {_mm256_cvtph_ps(LoadEight(source)), _mm256_cvtph_ps(LoadEight(source + 16))};
  }
  // If kStreams, bypasses the caches. REQUIRES: `target` is at a multiple of 32.
  template <bool kStreams>
  static void PutHalves(uint8_t* target, Halves16 x) {
    if constexpr (kStreams) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(target), x);
    } else {
      StoreHalves(target, x);
    }
  }
  static Halves16 SetHalves(uint32_t value) {
    return _mm256_set1_epi16(static_cast<int16_t>(value));
  }
  // Returns the larger of `largest` and the bits of x without the sign.
  static Halves16 MaxMagnitude(Halves16 largest, Halves16 x) {
    return _mm256_max_epu16(largest, _mm256_and_si256(x, _mm256_set1_epi16(0x7FFF)));
  }
  // The same for words of 32 bits.
  static Halves16 MaxMagnitudeOfWords(Halves16 largest, Halves16 x) {
    return _mm256_max_epu32(largest, _mm256_and_si256(x, _mm256_set1_epi32(0x7FFFFFFF)));
  }
  // Sets bit i if lane i is above the bound. REQUIRES: lanes are not negative.
  static uint32_t BitsAbove(Halves16 x, uint32_t bound) {
    const __m256i is_above = _mm256_cmpgt_epi16(x, SetHalves(bound));
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(is_above, is_above), 0xD8);
    return static_cast<uint32_t>(_mm256_movemask_epi8(bytes)) & 0xFFFF;
  }
  // REQUIRES: lanes are below 2^15 in magnitude.
  static Halves16 Narrow(Ints16 x) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xD8);
  }
  static Ints16 WidenSigned(Halves16 x) {
    return {_mm256_cvtepi16_epi32(_mm256_castsi256_si128(x)),
            _mm256_cvtepi16_epi32(_mm256_extracti128_si256(x, 1))};
  }
  static Floats16 FromBf16(Halves16 x) {
    return OfBits({_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)), 16),
                   _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1)), 16)});
  }
  // Puts the first of each two lanes in a, the second in b.
  static Floats16 SplitBf16(Halves16 x) {
    return OfBits({_mm256_slli_epi32(x, 16), _mm256_andnot_si256(_mm256_set1_epi32(0xFFFF), x)});
  }
  static Floats16 FromFp16(Halves16 x) {
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(x)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
  }
  // Converts as FloatToBf16() does.
  static Halves16 ToBf16(Floats16 x) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(Bf16(x.a), Bf16(x.b)), 0xD8);
  }
  static Halves16 ToFp16(Floats16 x) {
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT)),
        _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT), 1);
  }
  // Transposes 8 rows of 8 columns, in each half of the registers.
  static void TransposeEights(Halves16 (&rows)[8]) {
    Interleave<3>(
        rows, [](Halves16 a, Halves16 b) { return _mm256_unpacklo_epi16(a, b); },
        [](Halves16 a, Halves16 b) { return _mm256_unpackhi_epi16(a, b); });
  }

  static Floats16 LoadBytes(const uint8_t* source) {
    return OfBits({LoadHalves(source), LoadHalves(source + 32)});
  }
  static int32_t Sum(Ints16 x) {
    const __m256i eight = _mm256_add_epi32(x.a, x.b);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
  }

  // ---- 32 codes of 16 bits ----

  // Packs to signed, saturated 16 bits, in the lane order that packing leaves: 0..3, 8..11, 4..7,
  // 12..15.
  static Halves16 Pack(Ints16 x) { return _mm256_packs_epi32(x.a, x.b); }
  // Compute FromBf16() and FromFp16() of halves in that order.
  static Floats16 UnpackBf16(Halves16 x) {
    const __m256i zero = _mm256_setzero_si256();
    return OfBits({_mm256_unpacklo_epi16(zero, x), _mm256_unpackhi_epi16(zero, x)});
  }
  static Floats16 UnpackFp16(Halves16 x) { return FromFp16(_mm256_permute4x64_epi64(x, 0xD8)); }
  // Return StepSymbol() of packed codes, in the order of the tokens, capped at 15. The overload
  // with `low_bits` also sets *low to the low byte of the part that StepLow() cuts off.
  static __m256i SymbolsOf(Halves16 first, Halves16 second) {
    // A value that has no symbol still has none after saturation.
    const __m256i v = InOrder(_mm256_packs_epi16(first, second));
    return _mm256_min_epu8(_mm256_add_epi8(v, _mm256_set1_epi8(7)), _mm256_set1_epi8(15));
  }
  static __m256i SymbolsOf(Halves16 first, Halves16 second, uint32_t low_bits, __m256i* low) {
    const __m256i half = _mm256_set1_epi16(static_cast<int16_t>((1 << low_bits) >> 1));
    const __m128i by = _mm_cvtsi32_si128(static_cast<int>(low_bits));
    const __m256i a = _mm256_adds_epi16(first, half);
    const __m256i b = _mm256_adds_epi16(second, half);
    const __m256i mask = _mm256_set1_epi16(0xFF);
    *low = InOrder(_mm256_packus_epi16(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)));
    return SymbolsOf(_mm256_sra_epi16(a, by), _mm256_sra_epi16(b, by));
  }
  // Returns a mask whose bit i is bit `bit` of byte i.
  static uint32_t BitsAt(__m256i bytes, uint32_t bit) {
    const __m128i by = _mm_cvtsi32_si128(static_cast<int>(7 - bit));
    return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_sll_epi16(bytes, by)));
  }

  // Adds 16 lanes, in the order that docs/recipes/cairn.md gives.
  static float Fold(Floats16 x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

 private:
  static __m128i LoadEight(const void* source) {
    return _mm_loadu_si128(static_cast<const __m128i*>(source));
  }
  // Reorders bytes that two packs have mixed. Afterwards they are in the order of their tokens.
  static __m256i InOrder(__m256i bytes) {
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  static __m256 LookUpOne(Floats16 table, __m256i index) {
    const __m256 low = _mm256_permutevar8x32_ps(table.a, index);
    const __m256 high = _mm256_permutevar8x32_ps(table.b, index);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
  }
  static __m256i HighHalves(__m256i x, __m256i y) {
    return _mm256_castps_si256(
        _mm256_shuffle_ps(_mm256_castsi256_ps(x), _mm256_castsi256_ps(y), 0xDD));
  }
  static __m256i Bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(up, odd), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, is_nan);
  }
};

}  // namespace
}  // namespace cairn::codecs
