// SPDX-License-Identifier: Apache-2.0
#pragma once
// The primitives of simd_avx2.h for AVX-512 F, BW, DQ, VL + BMI2, with registers of 16 floats. Only
// codecs/backend/cpu/avx512.cc includes this file, and it is compiled with the flags for this ISA.

#include <immintrin.h>

#include <cstdint>

namespace cairn::codecs {
namespace {

struct Simd {
  static constexpr uint32_t kLanes = 16;
  using Float = __m512;
  using Int = __m512i;
  using Mask = __mmask16;
  using Halves = __m512i;  // 2 * kLanes of 16 bits

  static Float Set(float value) { return _mm512_set1_ps(value); }
  static Float Add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float Sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float Mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float Div(Float a, Float b) { return _mm512_div_ps(a, b); }
  static Float Min(Float a, Float b) { return _mm512_min_ps(a, b); }
  static Float Max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static Mask Greater(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static Mask NotLess(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
  static Mask Equal(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  static Float Choose(Mask mask, Float yes, Float no) {
    return _mm512_mask_blend_ps(mask, no, yes);
  }
  static uint32_t Bits(Mask mask) { return mask; }

  static float FromFp16(uint16_t bits) { return _cvtsh_ss(bits); }
  static float First(Float a) { return _mm512_cvtss_f32(a); }
  static float ReduceMin(Float a) { return _mm512_reduce_min_ps(a); }
  static float ReduceMax(Float a) { return _mm512_reduce_max_ps(a); }

  static Int Zero() { return _mm512_setzero_si512(); }
  static Int AddInt(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static Int BitsOf(Float a) { return _mm512_castps_si512(a); }
  static Int MaxMagnitude16(Int largest, const uint8_t* source) {
    return _mm512_max_epu16(largest,
                            _mm512_and_si512(LoadHalves(source), _mm512_set1_epi16(0x7FFF)));
  }
  static Int MaxMagnitude32(Int largest, const uint8_t* source) {
    return _mm512_max_epu32(largest,
                            _mm512_and_si512(LoadHalves(source), _mm512_set1_epi32(0x7FFFFFFF)));
  }
  static Int MaxMagnitude8(Int largest, const uint8_t* source) {
    return _mm512_max_epu8(largest, _mm512_and_si512(LoadHalves(source), _mm512_set1_epi8(0x7F)));
  }
  static bool AnyAbove8(Int a, uint32_t bound) {
    return _mm512_cmpgt_epi8_mask(a, _mm512_set1_epi8(static_cast<char>(bound))) != 0;
  }
  static bool AnyAbove16(Int a, uint32_t bound) {
    return _mm512_cmpgt_epi16_mask(a, _mm512_set1_epi16(static_cast<int16_t>(bound))) != 0;
  }
  static bool AnyAbove32(Int a, uint32_t bound) {
    return _mm512_cmpgt_epi32_mask(a, _mm512_set1_epi32(static_cast<int>(bound))) != 0;
  }
  static uint32_t ReduceAdd(Int a) { return static_cast<uint32_t>(_mm512_reduce_add_epi32(a)); }
  static Int Square(Int a) {
    const __m512i low = _mm512_and_si512(a, _mm512_set1_epi32(0xFFFF));
    return _mm512_madd_epi16(low, low);
  }
  static Mask LessInt(Int a, Int b) { return _mm512_cmplt_epi32_mask(a, b); }
  static Int ChooseInt(Mask mask, Int yes, Int no) {
    return _mm512_mask_blend_epi32(mask, no, yes);
  }

  static __m256i Load256(const uint8_t* source) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
  }
  static Float LoadBf16(const uint8_t* source) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(Load256(source)), 16));
  }
  static Float LoadFp16(const uint8_t* source) { return _mm512_cvtph_ps(Load256(source)); }
  static Float LoadFp32(const uint8_t* source) { return _mm512_loadu_ps(source); }
  static __m256i RoundBf16(Float a) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
  }
  static __m256i RoundFp16(Float a) {
    return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Halves Join(__m256i a, __m256i b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
  }
  static Halves PackBf16(Float a, Float b) { return Join(RoundBf16(a), RoundBf16(b)); }
  static Halves PackFp16(Float a, Float b) { return Join(RoundFp16(a), RoundFp16(b)); }
  static void StoreBf16(uint8_t* target, Float a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), RoundBf16(a));
  }
  static void StoreFp16(uint8_t* target, Float a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), RoundFp16(a));
  }
  static void StoreFp32(uint8_t* target, Float a) { _mm512_storeu_ps(target, a); }

  static Float Fp16Down(Float a) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
  }
  static Float Fp16Up(Float a) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC));
  }

  static void LoadPairs(const uint8_t* source, Float* first, Float* second) {
    const __m512i pairs = _mm512_loadu_si512(source);
    *first = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
    *second = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)));
  }
  static void StorePairs(uint8_t* target, Float first, Float second) {
    const int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const __m512i a = _mm512_cvtepu16_epi32(_mm512_cvtps_ph(first, mode));
    const __m512i b = _mm512_cvtepu16_epi32(_mm512_cvtps_ph(second, mode));
    _mm512_storeu_si512(target, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
  }

  static Float LoadCodes8(const uint8_t* source) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes));
  }
  static Float LoadCodes4(const uint8_t* source) {
    int words[2];
    __builtin_memcpy(words, source, 8);
    const __m512i both = _mm512_mask_set1_epi32(_mm512_set1_epi32(words[0]), 0xFF00, words[1]);
    const __m512i shifts =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i codes = _mm512_srlv_epi32(both, shifts);
    return _mm512_cvtepi32_ps(_mm512_and_si512(codes, _mm512_set1_epi32(15)));
  }
  static Float LoadCodes2(const uint8_t* source) {
    int word = 0;
    __builtin_memcpy(&word, source, 4);
    const __m512i shifts =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i codes = _mm512_srlv_epi32(_mm512_set1_epi32(word), shifts);
    return _mm512_cvtepi32_ps(_mm512_and_si512(codes, _mm512_set1_epi32(3)));
  }
  static void StoreCodes8(uint8_t* target, Int codes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target), _mm512_cvtepi32_epi8(codes));
  }
  static void StoreCodes4(uint8_t* target, Int codes) {
    const __m512i pairs = _mm512_or_si512(codes, _mm512_srli_epi64(codes, 28));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(target), _mm512_cvtepi64_epi8(pairs));
  }
  static constexpr uint32_t kCodeFloats = 4;
  template <uint32_t kCount>
  static void StoreCodes2(uint8_t* target, const Float* positions) {
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint32_t past_0 = _mm512_cmp_ps_mask(positions[i], Set(42.5F), _CMP_GT_OQ);
      const uint32_t past_1 = _mm512_cmp_ps_mask(positions[i], Set(127.5F), _CMP_GE_OQ);
      const uint32_t past_2 = _mm512_cmp_ps_mask(positions[i], Set(212.5F), _CMP_GT_OQ);
      const uint32_t word = _pdep_u32(past_0 ^ past_1 ^ past_2, 0x55555555) |  //
                            _pdep_u32(past_1, 0xAAAAAAAA);
      __builtin_memcpy(target + 4 * i, &word, 4);
    }
  }
  static Int Narrow8To4(Int code) {
    const __m512i moved = _mm512_add_epi32(code, _mm512_set1_epi32(8));
    return _mm512_srli_epi32(_mm512_mullo_epi16(moved, _mm512_set1_epi32(241)), 12);
  }

  static void LoadE4m3(const uint8_t* source, Float* first, Float* second) {
    const __m512i moved = _mm512_slli_epi16(_mm512_cvtepi8_epi16(Load256(source)), 7);
    const __m512i halves = _mm512_and_si512(moved, _mm512_set1_epi16(-0x4001));
    *first = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    *second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
  }
  static Int ToE4m3(Float a) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i magnitude = _mm512_min_epi32(
        _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF)), _mm512_set1_epi32(0x43E00000));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, 20), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFFF - (120 << 23)));
    const __m512i normal = _mm512_srli_epi32(_mm512_add_epi32(magnitude, up), 20);
    const __m512 base = _mm512_set1_ps(16384.0F);
    const __m512i beside = _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(magnitude), base));
    const __m512i small = _mm512_sub_epi32(beside, _mm512_castps_si512(base));
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(121 << 23));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    return _mm512_or_si512(sign, _mm512_mask_blend_epi32(is_small, normal, small));
  }

  static Halves LoadHalves(const uint8_t* source) { return _mm512_loadu_si512(source); }
  template <bool kStreams>
  static void StoreHalves(uint8_t* target, Halves a) {
    if constexpr (kStreams) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(target), a);
    } else {
      _mm512_storeu_si512(target, a);
    }
  }
  static void EndStreams() { _mm_sfence(); }
  static Halves SpreadHalf(const uint8_t* source) {
    int16_t value = 0;
    __builtin_memcpy(&value, source, 2);
    return _mm512_set1_epi16(value);
  }
  template <bool kStreams>
  static void StorePicked(uint8_t* target, const uint8_t* codes, const Halves* of) {
    uint64_t word = 0;
    __builtin_memcpy(&word, codes, 8);
    const auto is_odd = static_cast<__mmask32>(_pext_u64(word, 0x5555555555555555));
    const auto is_high = static_cast<__mmask32>(_pext_u64(word, 0xAAAAAAAAAAAAAAAA));
    const __m512i below = _mm512_mask_blend_epi16(is_odd, of[0], of[1]);
    const __m512i above = _mm512_mask_blend_epi16(is_odd, of[2], of[3]);
    StoreHalves<kStreams>(target, _mm512_mask_blend_epi16(is_high, below, above));
  }

  static Halves Ordered(Halves a) {
    return _mm512_xor_si512(a, _mm512_srli_epi16(_mm512_srai_epi16(a, 15), 1));
  }
  static Halves MinHalves(Halves a, Halves b) { return _mm512_min_epi16(a, b); }
  static Halves MaxHalves(Halves a, Halves b) { return _mm512_max_epi16(a, b); }
  static uint16_t ReduceMinHalves(Halves a) {
    const __m256i b = _mm256_min_epi16(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    const __m128i c = _mm_min_epi16(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    const __m128i moved = _mm_xor_si128(c, _mm_set1_epi16(-0x8000));
    return static_cast<uint16_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(moved)) ^ 0x8000);
  }
  static uint16_t ReduceMaxHalves(Halves a) {
    return static_cast<uint16_t>(~ReduceMinHalves(_mm512_xor_si512(a, _mm512_set1_epi16(-1))));
  }
  static Halves SubtractWhere(Mask first, Mask second, Halves a, int16_t b) {
    const auto both = static_cast<__mmask32>(first | (static_cast<uint32_t>(second) << 16));
    return _mm512_mask_sub_epi16(a, both, a, _mm512_set1_epi16(b));
  }
  static Halves AddToHalves(Halves a, int16_t b) {
    return _mm512_add_epi16(a, _mm512_set1_epi16(b));
  }
  static Halves CountBelow(Halves a, const Halves* three) {
    const __m512i one = _mm512_set1_epi16(1);
    Halves count = _mm512_setzero_si512();
    for (uint32_t i = 0; i < 3; ++i) {
      count = _mm512_mask_add_epi16(count, _mm512_cmpgt_epi16_mask(a, three[i]), count, one);
    }
    return count;
  }
  static constexpr uint32_t kCodeHalves = 2;
  template <uint32_t kCount>
  static void StoreCodeHalves2(uint8_t* target, const Halves* codes) {
    for (uint32_t i = 0; i < kCount; ++i) {
      const __m256i bytes = _mm512_cvtepi16_epi8(codes[i]);
      const __m256i pairs = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x0401));
      const __m256i words = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00100001));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(target + 8 * i), _mm256_cvtepi32_epi8(words));
    }
  }
};

}  // namespace
}  // namespace cairn::codecs
