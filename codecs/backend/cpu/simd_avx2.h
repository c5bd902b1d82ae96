// SPDX-License-Identifier: Apache-2.0
#pragma once
// The primitives that affine_*.inl use, for AVX2 + F16C + BMI2, with registers of 8 floats.
// simd_avx512.h has the same primitives. Everything has internal linkage: see
// codecs/backend/backend.h. Only codecs/backend/cpu/avx2.cc includes this file, and it is compiled
// with the flags for this ISA.

#include <immintrin.h>

#include <cstdint>

namespace cairn::codecs {
namespace {

struct Simd {
  static constexpr uint32_t kLanes = 8;
  using Float = __m256;
  using Int = __m256i;
  using Mask = __m256;     // each lane has all bits set, or none
  using Halves = __m256i;  // 2 * kLanes of 16 bits

  static Float Set(float value) { return _mm256_set1_ps(value); }
  static Float Add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float Sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float Mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float Div(Float a, Float b) { return _mm256_div_ps(a, b); }
  static Float Min(Float a, Float b) { return _mm256_min_ps(a, b); }
  static Float Max(Float a, Float b) { return _mm256_max_ps(a, b); }
  static Mask Greater(Float a, Float b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
  static Mask NotLess(Float a, Float b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
  static Mask Equal(Float a, Float b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
  static Float Choose(Mask mask, Float yes, Float no) { return _mm256_blendv_ps(no, yes, mask); }
  // Returns a mask with bit i set for lane i.
  static uint32_t Bits(Mask mask) { return static_cast<uint32_t>(_mm256_movemask_ps(mask)); }

  static float FromFp16(uint16_t bits) { return _cvtsh_ss(bits); }
  static float First(Float a) { return _mm256_cvtss_f32(a); }
  static float ReduceMin(Float a) {
    __m128 b = _mm_min_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_min_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_min_ss(b, _mm_movehdup_ps(b)));
  }
  static float ReduceMax(Float a) {
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
  }

  static Int Zero() { return _mm256_setzero_si256(); }
  static Int AddInt(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static Int BitsOf(Float a) { return _mm256_castps_si256(a); }
  // Return the element-wise maximum of `largest` and the magnitudes at source, both as bits. The
  // functions read 2 * kLanes elements of 16 bits, kLanes elements of 32 bits, or 4 * kLanes bytes.
  static Int MaxMagnitude16(Int largest, const uint8_t* source) {
    return _mm256_max_epu16(largest,
                            _mm256_and_si256(LoadHalves(source), _mm256_set1_epi16(0x7FFF)));
  }
  static Int MaxMagnitude32(Int largest, const uint8_t* source) {
    return _mm256_max_epu32(largest,
                            _mm256_and_si256(LoadHalves(source), _mm256_set1_epi32(0x7FFFFFFF)));
  }
  static Int MaxMagnitude8(Int largest, const uint8_t* source) {
    return _mm256_max_epu8(largest, _mm256_and_si256(LoadHalves(source), _mm256_set1_epi8(0x7F)));
  }
  // REQUIRES: lanes are not negative.
  static bool AnyAbove8(Int a, uint32_t bound) {
    const __m256i limit = _mm256_set1_epi8(static_cast<char>(bound));
    return _mm256_movemask_epi8(_mm256_cmpgt_epi8(a, limit)) != 0;
  }
  static bool AnyAbove16(Int a, uint32_t bound) {
    const __m256i limit = _mm256_set1_epi16(static_cast<int16_t>(bound));
    return _mm256_movemask_epi8(_mm256_cmpgt_epi16(a, limit)) != 0;
  }
  static bool AnyAbove32(Int a, uint32_t bound) {
    const __m256i limit = _mm256_set1_epi32(static_cast<int>(bound));
    return _mm256_movemask_epi8(_mm256_cmpgt_epi32(a, limit)) != 0;
  }
  static uint32_t ReduceAdd(Int a) {
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4E));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0xB1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(b));
  }
  // Squares lanes. REQUIRES: their magnitude is below 2^15.
  static Int Square(Int a) {
    const __m256i low = _mm256_and_si256(a, _mm256_set1_epi32(0xFFFF));
    return _mm256_madd_epi16(low, low);
  }
  // Returns all ones in the lanes with a < b, signed, else zeros.
  static Mask LessInt(Int a, Int b) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a)); }
  static Int ChooseInt(Mask mask, Int yes, Int no) {
    return _mm256_blendv_epi8(no, yes, _mm256_castps_si256(mask));
  }

  static Float LoadBf16(const uint8_t* source) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static Float LoadFp16(const uint8_t* source) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  }
  static Float LoadFp32(const uint8_t* source) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(source));
  }
  // Rounds every lane to the nearest bf16, ties to even. The bf16 is in the low half; the high half
  // is 0. REQUIRES: no lane is NaN.
  static Int RoundBf16(Float a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    return _mm256_srli_epi32(rounded, 16);
  }
  static Halves PackBf16(Float a, Float b) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(RoundBf16(a), RoundBf16(b)), 0xD8);
  }
  static Halves PackFp16(Float a, Float b) {
    return _mm256_set_m128i(_mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }
  static void StoreBf16(uint8_t* target, Float a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target), _mm256_castsi256_si128(PackBf16(a, a)));
  }
  static void StoreFp16(uint8_t* target, Float a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target),
                     _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }
  static void StoreFp32(uint8_t* target, Float a) {
    _mm256_storeu_ps(reinterpret_cast<float*>(target), a);
  }

  static Float Fp16Down(Float a) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEG_INF));
  }
  static Float Fp16Up(Float a) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(a, _MM_FROUND_TO_POS_INF));
  }

  // Loads kLanes pairs of fp16: first, second.
  static void LoadPairs(const uint8_t* source, Float* first, Float* second) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
    const __m256i low = _mm256_and_si256(pairs, _mm256_set1_epi32(0xFFFF));
    const __m256i high = _mm256_srli_epi32(pairs, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
    *first = _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
    *second = _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1));
  }
  // REQUIRES: lanes are fp16 values.
  static void StorePairs(uint8_t* target, Float first, Float second) {
    const __m128i a = _mm256_cvtps_ph(first, _MM_FROUND_TO_NEAREST_INT);
    const __m128i b = _mm256_cvtps_ph(second, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target), _mm_unpacklo_epi16(a, b));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + 16), _mm_unpackhi_epi16(a, b));
  }

  // Load and store kLanes codes in kLanes * bits / 8 bytes.
  static Float LoadCodes8(const uint8_t* source) {
    const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(source));
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes));
  }
  static Float LoadCodes4(const uint8_t* source) {
    int word = 0;
    __builtin_memcpy(&word, source, 4);
    const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32(word), shifts);
    return _mm256_cvtepi32_ps(_mm256_and_si256(codes, _mm256_set1_epi32(15)));
  }
  static Float LoadCodes2(const uint8_t* source) {
    uint16_t word = 0;
    __builtin_memcpy(&word, source, 2);
    const __m256i shifts = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    const __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32(word), shifts);
    return _mm256_cvtepi32_ps(_mm256_and_si256(codes, _mm256_set1_epi32(3)));
  }
  static void StoreCodes8(uint8_t* target, Int codes) {
    const __m256i words = _mm256_packus_epi32(codes, codes);
    const __m256i bytes = _mm256_packus_epi16(words, words);
    const __m256i ordered =
        _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(target), _mm256_castsi256_si128(ordered));
  }
  static void StoreCodes4(uint8_t* target, Int codes) {
    const __m256i pairs = _mm256_or_si256(codes, _mm256_srli_epi64(codes, 28));
    const __m256i gathered = _mm256_shuffle_epi8(
        pairs, _mm256_setr_epi8(0, 8, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                0, 8, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    const uint32_t low = static_cast<uint32_t>(_mm256_cvtsi256_si32(gathered));
    const auto high =
        static_cast<uint32_t>(_mm_cvtsi128_si32(_mm256_extracti128_si256(gathered, 1)));
    const uint32_t word = (low & 0xFFFF) | (high << 16);
    __builtin_memcpy(target, &word, 4);
  }
  // Stores kCount * kLanes two-bit codes. The input is positions in 0..255, as affine_encode.inl
  // says. kCount is either 1 or kCodeFloats. REQUIRES: positions are below 2^31 in magnitude.
  static constexpr uint32_t kCodeFloats = 4;
  template <uint32_t kCount>
  static void StoreCodes2(uint8_t* target, const Float* positions) {
    const auto halves = [&](uint32_t i) {
      const __m256i first = _mm256_cvtps_epi32(positions[i % kCount]);
      return _mm256_packs_epi32(first, _mm256_cvtps_epi32(positions[(i + 1) % kCount]));
    };
    // 8-bit codes. The low half has four codes of each register, the high half has the other four.
    const __m256i codes8 = _mm256_packus_epi16(halves(0), halves(2));
    // The top two bits of 3/4 * code + 1/4 * 127 are the 2-bit code.
    const __m256i most = _mm256_avg_epu8(codes8, _mm256_set1_epi8(126));
    const __m256i tops = _mm256_and_si256(_mm256_avg_epu8(codes8, most), _mm256_set1_epi8(-64));
    const __m256i pairs = _mm256_maddubs_epi16(tops, _mm256_set1_epi16(0x1004));
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00100001));  // times 256
    const __m128i both = _mm_or_si128(_mm_srli_epi32(_mm256_castsi256_si128(fours), 8),
                                      _mm256_extracti128_si256(fours, 1));
    const int64_t codes = _mm_cvtsi128_si64(_mm_packus_epi32(both, both));
    __builtin_memcpy(target, &codes, 2 * kCount);
  }
  // Returns (code + 8) / 17 for codes 0..255.
  static Int Narrow8To4(Int code) {
    const __m256i moved = _mm256_add_epi32(code, _mm256_set1_epi32(8));
    return _mm256_srli_epi32(_mm256_mullo_epi16(moved, _mm256_set1_epi32(241)), 12);
  }

  // Loads 2 * kLanes E4M3 codes as 2^-8 times their values. A NaN becomes 1.875.
  static void LoadE4m3(const uint8_t* source, Float* first, Float* second) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    // The sign is in bits 15 and 14. Clearing bit 14 is right, because no such fp16 has that
    // exponent bit set.
    const __m256i moved = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    const __m256i halves = _mm256_and_si256(moved, _mm256_set1_epi16(-0x4001));
    *first = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    *second = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  }
  // Computes FloatToE4m3() of codecs/numbers/fp8.h.
  static Int ToE4m3(Float a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i magnitude = _mm256_min_epi32(
        _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF)), _mm256_set1_epi32(0x43E00000));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 20), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFFF - (120 << 23)));
    const __m256i normal = _mm256_srli_epi32(_mm256_add_epi32(magnitude, up), 20);
    // Near 2^14, the last bit of a float is worth 2^-9, which is the smallest E4M3 value.
    const __m256 base = _mm256_set1_ps(16384.0F);
    const __m256i beside = _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(magnitude), base));
    const __m256i small = _mm256_sub_epi32(beside, _mm256_castps_si256(base));
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(121 << 23), magnitude);
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    return _mm256_or_si256(sign, _mm256_blendv_epi8(normal, small, is_small));
  }

  static Halves LoadHalves(const uint8_t* source) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
  }
  // If kStreams, bypasses the caches. REQUIRES: `target` is aligned to a register; EndStreams() is
  // called afterwards.
  template <bool kStreams>
  static void StoreHalves(uint8_t* target, Halves a) {
    auto* to = reinterpret_cast<__m256i*>(target);
    if constexpr (kStreams) {
      _mm256_stream_si256(to, a);
    } else {
      _mm256_storeu_si256(to, a);
    }
  }
  static void EndStreams() { _mm_sfence(); }
  static Halves SpreadHalf(const uint8_t* source) {
    int16_t value = 0;
    __builtin_memcpy(&value, source, 2);
    return _mm256_set1_epi16(value);
  }
  // Selects 2 * kLanes values, each among four halves, by 2-bit codes in kLanes / 2 bytes. Stores
  // them.
  template <bool kStreams>
  static void StorePicked(uint8_t* target, const uint8_t* codes, const Halves* of) {
    int word = 0;
    __builtin_memcpy(&word, codes, 4);
    // The top bit of byte j of word i is the high bit of code 4 j + i. After a left shift by one,
    // the top bit is the code's low bit.
    const __m256i shifted =
        _mm256_sllv_epi32(_mm256_set1_epi32(word), _mm256_setr_epi32(6, 4, 2, 0, 6, 4, 2, 0));
    const __m256i is_high =
        _mm256_shuffle_epi8(shifted, _mm256_setr_epi8(0, 0, 4, 4, 8, 8, 12, 12,    //
                                                      1, 1, 5, 5, 9, 9, 13, 13,    //
                                                      2, 2, 6, 6, 10, 10, 14, 14,  //
                                                      3, 3, 7, 7, 11, 11, 15, 15));
    const __m256i is_odd = _mm256_add_epi8(is_high, is_high);
    const __m256i below = _mm256_blendv_epi8(of[0], of[1], is_odd);
    const __m256i above = _mm256_blendv_epi8(of[2], of[3], is_odd);
    StoreHalves<kStreams>(target, _mm256_blendv_epi8(below, above, is_high));
  }

  // Converts between the bits of bf16 or fp16 and signed integers of the same order. The function
  // is its own inverse.
  static Halves Ordered(Halves a) {
    return _mm256_xor_si256(a, _mm256_srli_epi16(_mm256_srai_epi16(a, 15), 1));
  }
  static Halves MinHalves(Halves a, Halves b) { return _mm256_min_epi16(a, b); }
  static Halves MaxHalves(Halves a, Halves b) { return _mm256_max_epi16(a, b); }
  static uint16_t ReduceMinHalves(Halves a) {
    const __m128i b = _mm_min_epi16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i moved = _mm_xor_si128(b, _mm_set1_epi16(-0x8000));
    return static_cast<uint16_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(moved)) ^ 0x8000);
  }
  static uint16_t ReduceMaxHalves(Halves a) {
    return static_cast<uint16_t>(~ReduceMinHalves(_mm256_xor_si256(a, _mm256_set1_epi16(-1))));
  }
  // Subtracts b in the lanes whose mask is set. `first` is the mask of the first kLanes lanes,
  // `second` that of the others.
  static Halves SubtractWhere(Mask first, Mask second, Halves a, int16_t b) {
    const __m256i mask =
        _mm256_packs_epi32(_mm256_castps_si256(first), _mm256_castps_si256(second));
    const __m256i ordered = _mm256_permute4x64_epi64(mask, 0xD8);
    return _mm256_sub_epi16(a, _mm256_and_si256(ordered, _mm256_set1_epi16(b)));
  }
  static Halves AddToHalves(Halves a, int16_t b) {
    return _mm256_add_epi16(a, _mm256_set1_epi16(b));
  }
  // Returns, for each lane, how many of the three values are below it.
  static Halves CountBelow(Halves a, const Halves* three) {
    const __m256i first = _mm256_cmpgt_epi16(a, three[0]);
    const __m256i second = _mm256_cmpgt_epi16(a, three[1]);
    const __m256i third = _mm256_cmpgt_epi16(a, three[2]);
    return _mm256_sub_epi16(_mm256_setzero_si256(),
                            _mm256_add_epi16(_mm256_add_epi16(first, second), third));
  }
  // Stores kCount * 2 * kLanes two-bit codes. kCount is either 1 or kCodeHalves.
  static constexpr uint32_t kCodeHalves = 4;
  template <uint32_t kCount>
  static void StoreCodeHalves2(uint8_t* target, const Halves* codes) {
    const __m256i by_4 = _mm256_set1_epi16(0x0401);
    const __m256i by_16 = _mm256_set1_epi32(0x00100001);
    const auto four_each = [&](Halves a, Halves b) {  // makes 8-bit codes, then packs 4 into a word
      return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_packs_epi16(a, b), by_4), by_16);
    };
    const __m256i first = four_each(codes[0], codes[kCount == 1 ? 0 : 1]);
    const __m256i second = kCount == 1 ? first : four_each(codes[kCount - 2], codes[kCount - 1]);
    const __m256i words = _mm256_packs_epi32(first, second);
    const __m256i bytes = _mm256_packus_epi16(words, words);
    const __m128i packed =
        _mm_unpacklo_epi16(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    if constexpr (kCount == 1) {
      const int word = _mm_cvtsi128_si32(packed);
      __builtin_memcpy(target, &word, 4);
    } else {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(target), packed);
    }
  }
};

}  // namespace
}  // namespace cairn::codecs
