// SPDX-License-Identifier: Apache-2.0
#pragma once
// The scalar arithmetic of the format. It is the definition of rounding, scale, clamp and code.
// Backends and kernels rearrange the operations, but must produce the same bits.
// docs/internals/formats/image.md describes the same in words.
//
// g++, clang and nvcc compile it. It needs integers, and IEEE fp32 + - * / that round to nearest
// even and are never fused (-ffp-contract=off, -fmad=false -prec-div=true -ftz=false). Everything
// has internal linkage, so that no file links to a copy that was compiled for another ISA.

#include <cstdint>

#if defined(__FAST_MATH__) || defined(__USE_FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || \
    defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__) ||                          \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "codecs/ defines its bytes by IEEE arithmetic: compile it without -ffast-math and its parts"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0 && __FLT_EVAL_METHOD__ != 16
#error "codecs/ needs fp32 operations that are rounded to fp32: compile with -mfpmath=sse"
#endif

// CAIRN_HD            a function for hosts and devices
// CAIRN_HD_MEMBER     a member function, which cannot be static: always inlined, so that no object
//                     has a copy that others could link to
// CAIRN_HD_CALLBACKS  stands before a template that calls a function passed to it. That function
//                     may be for hosts only or for devices only
// CAIRN_HD_NO_UNROLL  stands before a loop that a device should not unroll
// CAIRN_TABLE         a constant array that CAIRN_HD functions index: host and device have a copy
//                     each
#if defined(__CUDACC__)
#define CAIRN_HD static inline __host__ __device__
#define CAIRN_HD_MEMBER __host__ __device__
#define CAIRN_HD_CALLBACKS _Pragma("nv_exec_check_disable")
#else
#define CAIRN_HD [[maybe_unused]] static inline
#define CAIRN_HD_MEMBER [[gnu::always_inline]]
#define CAIRN_HD_CALLBACKS
#endif
#if defined(__CUDA_ARCH__)
#define CAIRN_TABLE static constexpr __device__
#define CAIRN_HD_NO_UNROLL _Pragma("unroll 1")
#else
#define CAIRN_TABLE [[maybe_unused]] static constexpr
#define CAIRN_HD_NO_UNROLL
#endif

namespace cairn::codecs {

// Larger values do not fit the fp16 params. A token with a larger value is stored at full
// precision, as a row (image.md). Twice this value is the largest finite fp16, so no range
// overflows.
inline constexpr float kMagnitudeMax = 32752.0F;
inline constexpr uint32_t kMagnitudeMaxBits = 0x46FFE000;  // bits of that float

CAIRN_HD uint32_t FloatBits(float value) { return __builtin_bit_cast(uint32_t, value); }
CAIRN_HD float BitsFloat(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// Returns true if the value is NaN, infinite, or too large to be coded.
CAIRN_HD bool IsRowValue(float value) {
  return (FloatBits(value) & 0x7FFFFFFF) > kMagnitudeMaxBits;
}

// ---- 16-bit formats ----

CAIRN_HD float Bf16ToFloat(uint16_t bits) { return BitsFloat(static_cast<uint32_t>(bits) << 16); }

// Rounds to nearest even; keeps denormals. A NaN becomes a quiet NaN of the same sign.
CAIRN_HD uint16_t FloatToBf16(float value) {
  const uint32_t bits = FloatBits(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((bits >> 16) | 0x0040);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

CAIRN_HD float Fp16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0x1F) {  // infinity or NaN; a NaN becomes quiet
    return BitsFloat(sign | 0x7F800000 | (mantissa << 13) | (mantissa != 0 ? 0x400000U : 0U));
  }
  if (exponent != 0) return BitsFloat(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // mantissa * 2^-24 is exact, because both factors and the product are.
  return BitsFloat(sign | FloatBits(static_cast<float>(mantissa) * 5.9604644775390625e-8F));
}

// A magnitude, rounded towards zero to a format of fewer bits, and the bits that were cut off.
struct Truncated {
  uint32_t value;
  uint32_t rest;
  uint32_t half;  // half of the last place, in units of `rest`
};

// Ties round to even.
CAIRN_HD bool IsNearerUp(Truncated cut) {
  return cut.rest > cut.half || (cut.rest == cut.half && (cut.value & 1) != 0);
}

// Truncates `magnitude`, which has the bits of a finite float without its sign. The target format
// has `dropped` fewer bits of mantissa. `least` is the exponent, as in a float, of the target's
// smallest normal number.
CAIRN_HD Truncated TruncateMagnitude(uint32_t magnitude, uint32_t dropped, uint32_t least) {
  const uint32_t exponent = magnitude >> 23;
  if (exponent >= least) {
    return {(magnitude - ((least - 1) << 23)) >> dropped, magnitude & ((1U << dropped) - 1),
            1U << (dropped - 1)};
  }
  // A result below the smallest normal number is in units of the smallest denormal.
  const uint32_t mantissa = (magnitude & 0x7FFFFF) | (exponent != 0 ? 0x800000U : 0U);
  const uint32_t shift = least + dropped > exponent + 31 ? 31 : least + dropped - exponent;
  return {mantissa >> shift, mantissa & ((1U << shift) - 1), 1U << (shift - 1)};
}

// The direction in which a value between two fp16 is rounded. kDown of a negative value increases
// its magnitude.
enum class Fp16Rounding : uint8_t { kNearestEven, kDown, kUp };

CAIRN_HD uint16_t FloatToFp16(float value, Fp16Rounding rounding) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) {
    return static_cast<uint16_t>(sign | 0x7E00 | ((magnitude >> 13) & 0x3FF));
  }
  if (magnitude == 0x7F800000) return static_cast<uint16_t>(sign | 0x7C00);
  const Truncated cut = TruncateMagnitude(magnitude, 13, 113);
  const bool is_negative = sign != 0;
  bool goes_up = false;  // whether the magnitude is rounded up
  switch (rounding) {
    case Fp16Rounding::kNearestEven:
      goes_up = IsNearerUp(cut);
      break;
    case Fp16Rounding::kDown:
      goes_up = cut.rest != 0 && is_negative;
      break;
    case Fp16Rounding::kUp:
      goes_up = cut.rest != 0 && !is_negative;
      break;
  }
  if (cut.value > 0x7BFF) {  // past the largest finite fp16
    const bool is_infinite =
        rounding == Fp16Rounding::kNearestEven || (rounding == Fp16Rounding::kDown) == is_negative;
    return static_cast<uint16_t>(sign | (is_infinite ? 0x7C00 : 0x7BFF));
  }
  return static_cast<uint16_t>(sign | (cut.value + (goes_up ? 1 : 0)));
}

CAIRN_HD uint16_t Fp16RoundDown(float value) { return FloatToFp16(value, Fp16Rounding::kDown); }
CAIRN_HD uint16_t Fp16RoundUp(float value) { return FloatToFp16(value, Fp16Rounding::kUp); }

// ---- Group parameters ----

// fp32 operations that no compiler can fuse.
#if defined(__CUDA_ARCH__)
CAIRN_HD float Add(float a, float b) { return __fadd_rn(a, b); }
CAIRN_HD float Multiply(float a, float b) { return __fmul_rn(a, b); }
CAIRN_HD float Divide(float a, float b) { return __fdiv_rn(a, b); }
#else
CAIRN_HD float Add(float a, float b) { return a + b; }
CAIRN_HD float Multiply(float a, float b) { return a * b; }
CAIRN_HD float Divide(float a, float b) { return a / b; }
#endif

// Returns the largest code: 255, 15 or 3.
CAIRN_HD float Levels(uint32_t bits) { return static_cast<float>((1U << bits) - 1); }

// The recipe kivi:b+ multiplies the range of a group by each of several factors f, and keeps the
// factor with the smallest error. ClipInset() is (1 - f) / 2, the fraction of the range that is cut
// off at each end. At 2 bits the factors are 1, .9, .8 and, for K, also .7 and .62; at 4 bits they
// are 1, .95, .9; at 8 bits only 1.
CAIRN_HD constexpr uint32_t ClipCount(uint32_t bits, bool is_per_channel) {
  if (bits == 8) return 1;
  return bits == 2 && is_per_channel ? 5 : 3;
}
CAIRN_HD float ClipInset(uint32_t bits, uint32_t index) {
  if (index == 0) return 0.0F;
  if (bits == 4) return index == 1 ? 0.025F : 0.05F;
  return index == 1 ? 0.05F : index == 2 ? 0.1F : index == 3 ? 0.15F : 0.19F;
}

struct AffineParams {
  uint16_t min = 0;    // fp16 bits
  uint16_t range = 0;  // fp16 bits, >= +0
};

// Returns the params of a group whose values lie in [low, high]. The fraction `inset` of high - low
// is cut off at each end. With inset 0 the params cover all values: min <= low, and min + range >=
// high except for the rounding of one fp32 subtraction. REQUIRES: -kMagnitudeMax <= low <= high <=
// kMagnitudeMax, and a zero is +0.
CAIRN_HD AffineParams MakeParams(float low, float high, float inset) {
  const float cut = Multiply(Add(high, -low), inset);
  AffineParams params;
  params.min = Fp16RoundDown(Add(low, cut));
  if (params.min == 0x8000) params.min = 0;
  params.range = Fp16RoundUp(Add(Add(high, -cut), -Fp16ToFloat(params.min)));
  return params;
}

// Returns true if low == high and no code restores this value. The caller then stores the source
// elements.
CAIRN_HD bool IsInexactConstant(float low, float high) {
  return low == high && Fp16ToFloat(Fp16RoundDown(low)) != low;
}

// ---- Codes ----

// Rounds to nearest even. REQUIRES: |value| < 2^22.
CAIRN_HD int32_t RoundToInt(float value) {
  return static_cast<int32_t>(FloatBits(Add(value, 12582912.0F)) - 0x4B400000);
}

CAIRN_HD float Clamp(float value, float high) {
  const float positive = value > 0.0F ? value : 0.0F;
  return positive < high ? positive : high;
}

// Returns the inverse of the quantizer step for codes of `bits` bits. Code8() needs the inverse for
// 8 bits. Returns 0 if the range is 0, so that all codes are 0.
CAIRN_HD float InverseStep(uint32_t bits, float range) {
  return range > 0.0F ? Divide(Levels(bits), range) : 0.0F;
}

CAIRN_HD uint8_t Code8(float value, float min, float inverse_step8) {
  const float position = Multiply(Add(value, -min), inverse_step8);
  return static_cast<uint8_t>(RoundToInt(Clamp(position, 255.0F)));
}

// These functions compute codes of fewer bits from codes of more bits. The result is exact, because
// 255 = 15 * 17 and 15 = 3 * 5, and the quotients are odd. So a fine level never lies midway
// between two coarse levels. Rounding a value to a fine level, and that level to a coarse one,
// gives the same coarse level as rounding the value directly.
CAIRN_HD uint8_t Narrow8To4(uint8_t code) { return static_cast<uint8_t>((code + 8U) / 17U); }
CAIRN_HD uint8_t Narrow4To2(uint8_t code) { return static_cast<uint8_t>((code + 2U) / 5U); }
CAIRN_HD uint8_t Narrow(uint8_t code8, uint32_t bits) {
  if (bits == 8) return code8;
  const uint8_t code4 = Narrow8To4(code8);
  return bits == 4 ? code4 : Narrow4To2(code4);
}

// Returns the quantizer step of a range: the factor by which codes are multiplied.
CAIRN_HD float Step(uint32_t bits, float range) { return Divide(range, Levels(bits)); }

CAIRN_HD float Dequantize(uint8_t code, float step, float min) {
  return Add(Multiply(static_cast<float>(code), step), min);
}

// ---- The error of a clipped range, in integers, so that the order of sums does not matter ----

// Returns the weight for ClipDistance(). It is the size of one code step, in units of 1/4096 of the
// covering range (the range with inset 0).
CAIRN_HD float ClipWeight(uint32_t bits, float range, float covering_range) {
  const float levels = Levels(bits);
  return covering_range > 0.0F ? Divide(Multiply(range, 4096.0F), Multiply(levels, covering_range))
                               : 0.0F;
}

// |result| < 1024 for a value inside the covering range.
CAIRN_HD int32_t ClipDistance(float value, float min, float inverse_step, float levels,
                              float weight) {
  const float position = Multiply(Add(value, -min), inverse_step);
  const float nearest = static_cast<float>(RoundToInt(Clamp(position, levels)));
  return RoundToInt(Multiply(Add(position, -nearest), weight));
}

}  // namespace cairn::codecs
