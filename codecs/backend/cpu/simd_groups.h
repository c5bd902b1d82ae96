// SPDX-License-Identifier: Apache-2.0
#pragma once
// More primitives for step_blocks.inl, in addition to those of simd_blocks.h and simd_strips.h.
// They work on 32 tokens of a channel, as floats in four registers of AVX2. Both ISA files use
// them, since AVX-512 includes these instructions. Everything has internal linkage: see
// codecs/backend/backend.h.

#include <immintrin.h>

#include <cstdint>

#include "codecs/backend/cpu/simd_blocks.h"
#include "codecs/backend/cpu/simd_strips.h"

namespace cairn::codecs {
namespace {

// Register k has the tokens 8 k to 8 k + 7.
struct Floats32 {
  __m256 of[4];
};

struct Groups {
  // Orders tokens so that unpacking gives the order of Floats32.
  static Bytes32 Arrange(Bytes32 tokens) {
    return _mm256_permutevar8x32_epi32(tokens, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
  }
  // The token in each lane of Halves32::a, if the Halves32 were made from arranged tokens. In
  // Halves32::b, each lane has the token that is 16 higher.
  static constexpr uint8_t kTokenAt[16] = {0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15};
  // Returns the lane of a token among the 32.
  static uint32_t PlaceOf(uint32_t token) {
    return (token & 16) | (token & 4) << 1 | (token & 8) >> 1 | (token & 3);
  }

  // ---- Tables of 16 values, as planes of their bytes ----

  static void PutPlanes(Floats16 values, uint8_t* planes) {
    const __m256i by_byte = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
                                             0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m256i pairs = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const auto gather = [&](__m256 x) {
      return _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(_mm256_castps_si256(x), by_byte),
                                         pairs);
    };
    const __m256i a = gather(values.a);
    const __m256i b = gather(values.b);
    Strips::StoreTwo(planes, planes + 32, _mm256_unpacklo_epi64(a, b));
    Strips::StoreTwo(planes + 16, planes + 48, _mm256_unpackhi_epi64(a, b));
  }
  static void PutPlanes(Halves16 values, uint8_t* planes) {
    const __m256i by_byte = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15,
                                             0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m256i halves = _mm256_shuffle_epi8(values, by_byte);
    Strips::Store(planes, _mm256_permute4x64_epi64(halves, 0xD8));
  }
  // Looks up entries of such tables. REQUIRES: the symbols are arranged.
  static Floats32 LookUp(const uint8_t* planes, Bytes32 symbols) {
    const Halves32 low = LookUpHalves(planes, symbols);
    const Halves32 high = LookUpHalves(planes + 32, symbols);
    const auto join = [](__m256i x) { return _mm256_castsi256_ps(x); };
    return {{join(_mm256_unpacklo_epi16(low.a, high.a)), join(_mm256_unpackhi_epi16(low.a, high.a)),
             join(_mm256_unpacklo_epi16(low.b, high.b)),
             join(_mm256_unpackhi_epi16(low.b, high.b))}};
  }
  static Halves32 LookUpHalves(const uint8_t* planes, Bytes32 symbols) {
    return Strips::Pair(Strips::LookUp(planes, symbols), Strips::LookUp(planes + 16, symbols));
  }

  // Converts signed halves of arranged tokens.
  static Floats32 ToFloats(Halves32 x) {
    const auto widen = [](__m256i halves, Floats32* floats, uint32_t at) {
      const __m256i sign = _mm256_srai_epi16(halves, 15);
      floats->of[at] = _mm256_cvtepi32_ps(_mm256_unpacklo_epi16(halves, sign));
      floats->of[at + 1] = _mm256_cvtepi32_ps(_mm256_unpackhi_epi16(halves, sign));
    };
    Floats32 floats;
    widen(x.a, &floats, 0);
    widen(x.b, &floats, 2);
    return floats;
  }

  // ---- Arithmetic ----

  static Floats32 Set(float value) {
    const __m256 x = _mm256_set1_ps(value);
    return {{x, x, x, x}};
  }
  // Loads two blocks of 16 tokens.
  static Floats32 Load(const float* first, const float* second) {
    return {{_mm256_loadu_ps(first), _mm256_loadu_ps(first + 8), _mm256_loadu_ps(second),
             _mm256_loadu_ps(second + 8)}};
  }
  static void Store(float* first, float* second, const Floats32& x) {
    Blocks::Store(first, {x.of[0], x.of[1]});
    Blocks::Store(second, {x.of[2], x.of[3]});
  }
  static Floats32 Add(const Floats32& x, const Floats32& y) {
    return ForEach([&](uint32_t i) { return _mm256_add_ps(x.of[i], y.of[i]); });
  }
  static Floats32 Sub(const Floats32& x, const Floats32& y) {
    return ForEach([&](uint32_t i) { return _mm256_sub_ps(x.of[i], y.of[i]); });
  }
  static Floats32 Mul(const Floats32& x, const Floats32& y) {
    return ForEach([&](uint32_t i) { return _mm256_mul_ps(x.of[i], y.of[i]); });
  }

  // Converts as FloatToBf16() does, but does not treat NaNs specially. REQUIRES: each NaN in x is
  // the default NaN. The CPU gives this NaN if the operands of an operation are no NaNs.
  static Halves32 ToBf16(const Floats32& x) {
    return {_mm256_packus_epi32(Bf16(x.of[0]), Bf16(x.of[1])),
            _mm256_packus_epi32(Bf16(x.of[2]), Bf16(x.of[3]))};
  }
  static Halves32 ToFp16(const Floats32& x) {
    const auto pack = [](__m256 first, __m256 second) {
      const __m128i a = _mm256_cvtps_ph(first, _MM_FROUND_TO_NEAREST_INT);
      const __m128i b = _mm256_cvtps_ph(second, _MM_FROUND_TO_NEAREST_INT);
      return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi64(a, b)),
                                     _mm_unpackhi_epi64(a, b), 1);
    };
    return {pack(x.of[0], x.of[1]), pack(x.of[2], x.of[3])};
  }
  static void StoreHalves(uint16_t* target, Halves32 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), x.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + 16), x.b);
  }

 private:
  template <typename Of>
  static Floats32 ForEach(Of of) {
    return {{of(0), of(1), of(2), of(3)}};
  }
  static __m256i Bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF));
    return _mm256_srli_epi32(_mm256_add_epi32(up, odd), 16);
  }
};

}  // namespace
}  // namespace cairn::codecs
