// SPDX-License-Identifier: Apache-2.0
#pragma once
// The scalar arithmetic of the recipe `cairn`: quantizer steps, the rotation of K by its position
// (RoPE), the shape of a channel's code, and coarser codes. docs/recipes/cairn.md describes the
// same in words; codecs/numbers/math.h lists the requirements on compilers.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "codecs/numbers/math.h"

namespace cairn::codecs {

inline constexpr uint32_t kStepLevelMax = 5;
inline constexpr float kStepCodeMax = 32767.0F;  // in magnitude, at level 0
inline constexpr uint32_t kStepLowBitsMax = 5;

// Mantissas of 2^(i / 256), rounded to nearest.
// clang-format off
CAIRN_TABLE uint32_t kExp2Mantissas[256] = {
    0x000000, 0x0058D8, 0x00B1ED, 0x010B41, 0x0164D2, 0x01BEA1, 0x0218AF, 0x0272FC,
    0x02CD87, 0x032850, 0x038359, 0x03DEA1, 0x043A29, 0x0495F0, 0x04F1F6, 0x054E3D,
    0x05AAC3, 0x06078A, 0x066491, 0x06C1D9, 0x071F62, 0x077D2B, 0x07DB35, 0x083981,
    0x08980F, 0x08F6DD, 0x0955EE, 0x09B541, 0x0A14D5, 0x0A74AD, 0x0AD4C6, 0x0B3523,
    0x0B95C2, 0x0BF6A4, 0x0C57CA, 0x0CB933, 0x0D1ADF, 0x0D7CD0, 0x0DDF04, 0x0E417D,
    0x0EA43A, 0x0F073B, 0x0F6A81, 0x0FCE0C, 0x1031DC, 0x1095F2, 0x10FA4D, 0x115EED,
    0x11C3D3, 0x122900, 0x128E72, 0x12F42C, 0x135A2B, 0x13C072, 0x1426FF, 0x148DD4,
    0x14F4F0, 0x155C53, 0x15C3FF, 0x162BF2, 0x16942D, 0x16FCB1, 0x17657D, 0x17CE92,
    0x1837F0, 0x18A197, 0x190B88, 0x1975C2, 0x19E046, 0x1A4B13, 0x1AB62B, 0x1B218D,
    0x1B8D3A, 0x1BF931, 0x1C6573, 0x1CD201, 0x1D3EDA, 0x1DABFE, 0x1E196E, 0x1E872A,
    0x1EF532, 0x1F6387, 0x1FD228, 0x204116, 0x20B051, 0x211FD9, 0x218FAF, 0x21FFD2,
    0x227043, 0x22E102, 0x23520F, 0x23C36B, 0x243516, 0x24A70F, 0x251958, 0x258BEF,
    0x25FED7, 0x26720E, 0x26E595, 0x27596C, 0x27CD94, 0x28420C, 0x28B6D5, 0x292BEF,
    0x29A15B, 0x2A1718, 0x2A8D26, 0x2B0387, 0x2B7A3A, 0x2BF13F, 0x2C6897, 0x2CE041,
    0x2D583F, 0x2DD090, 0x2E4934, 0x2EC22D, 0x2F3B79, 0x2FB519, 0x302F0E, 0x30A957,
    0x3123F6, 0x319EE9, 0x321A32, 0x3295D0, 0x3311C4, 0x338E0E, 0x340AAF, 0x3487A6,
    0x3504F3, 0x358298, 0x360094, 0x367EE7, 0x36FD92, 0x377C95, 0x37FBF0, 0x387BA3,
    0x38FBAF, 0x397C14, 0x39FCD2, 0x3A7DEA, 0x3AFF5B, 0x3B8126, 0x3C034A, 0x3C85CA,
    0x3D08A4, 0x3D8BD8, 0x3E0F68, 0x3E9353, 0x3F179A, 0x3F9C3C, 0x40213B, 0x40A695,
    0x412C4D, 0x41B261, 0x4238D2, 0x42BFA1, 0x4346CD, 0x43CE57, 0x44563F, 0x44DE85,
    0x45672A, 0x45F02E, 0x467991, 0x470353, 0x478D75, 0x4817F7, 0x48A2D8, 0x492E1B,
    0x49B9BE, 0x4A45C1, 0x4AD226, 0x4B5EED, 0x4BEC15, 0x4C799F, 0x4D078C, 0x4D95DA,
    0x4E248C, 0x4EB3A1, 0x4F4319, 0x4FD2F4, 0x506334, 0x50F3D7, 0x5184DF, 0x52164C,
    0x52A81E, 0x533A54, 0x53CCF1, 0x545FF3, 0x54F35B, 0x558729, 0x561B5E, 0x56AFFA,
    0x5744FD, 0x57DA67, 0x587039, 0x590673, 0x599D16, 0x5A3421, 0x5ACB94, 0x5B6371,
    0x5BFBB8, 0x5C9468, 0x5D2D82, 0x5DC706, 0x5E60F5, 0x5EFB4E, 0x5F9613, 0x603143,
    0x60CCDF, 0x6168E7, 0x62055B, 0x62A23C, 0x633F89, 0x63DD44, 0x647B6D, 0x651A03,
    0x65B907, 0x665879, 0x66F85B, 0x6798AB, 0x68396A, 0x68DA99, 0x697C38, 0x6A1E47,
    0x6AC0C7, 0x6B63B7, 0x6C0719, 0x6CAAEC, 0x6D4F30, 0x6DF3E7, 0x6E9910, 0x6F3EAB,
    0x6FE4BA, 0x708B3B, 0x713231, 0x71D99A, 0x728177, 0x7329C9, 0x73D290, 0x747BCC,
    0x75257D, 0x75CFA4, 0x767A41, 0x772555, 0x77D0DF, 0x787CE1, 0x79295A, 0x79D64A,
    0x7A83B3, 0x7B3194, 0x7BDFED, 0x7C8EC0, 0x7D3E0C, 0x7DEDD2, 0x7E9E11, 0x7F4ECB,
};
// clang-format on

// Returns 2^(log / 256). REQUIRES: |log| < 126 * 256.
CAIRN_HD float Exp2(int32_t log) {
  const auto exponent = static_cast<uint32_t>((log >> 8) + 127);
  return BitsFloat(exponent << 23 | kExp2Mantissas[log & 255]);
}

CAIRN_HD uint32_t PowerOf3(uint32_t level) {
  uint32_t power = 1;
  for (uint32_t i = 0; i < level; ++i) power *= 3;
  return power;
}

// Converts a code at level 0 to a code at `level`. More generally, raises the level of a code by
// `level`. Rounds to nearest. There are no ties, since the divisor is odd.
CAIRN_HD int32_t Coarsen(int32_t code, uint32_t level) {
  const auto power = static_cast<int32_t>(PowerOf3(level));
  return code < 0 ? -((power / 2 - code) / power) : (code + power / 2) / power;
}

// ---- Rotation by RoPE ----

struct Rotation {
  float cosine;
  float sine;
};

// rest: the angle from the nearest quarter turn, in 2^-32 turn.
CAIRN_HD Rotation RotationInQuarter(int32_t rest) {
  const float x = Multiply(static_cast<float>(rest), 1.46291808e-9F);
  const float z = Multiply(x, x);
  float s = Add(Multiply(-0.00019515295891F, z), 0.0083321608736F);
  s = Add(Multiply(s, z), -0.16666654611F);
  s = Add(Multiply(Multiply(s, z), x), x);
  float c = Add(Multiply(0.00002443315711809948F, z), -0.001388731625493765F);
  c = Add(Multiply(c, z), 0.04166664568298827F);
  c = Add(Add(Multiply(Multiply(c, z), z), -Multiply(0.5F, z)), 1.0F);
  return {c, s};
}

// turns: rotation per token, in 2^-64 turn.
CAIRN_HD Rotation RotationAt(uint64_t turns, uint64_t position) {
  const uint64_t phase = turns * position;
  const uint64_t quarter = (phase + (uint64_t{1} << 61)) >> 62;
  const auto rest = static_cast<int64_t>(phase - (quarter << 62));
  const Rotation by = RotationInQuarter(static_cast<int32_t>(rest >> 32));
  switch (quarter) {
    case 0:
      return by;
    case 1:
      return {-by.sine, by.cosine};
    case 2:
      return {-by.cosine, -by.sine};
    default:
      return {by.sine, -by.cosine};
  }
}

struct Pair {
  float first;
  float second;
};

CAIRN_HD Pair RemoveRope(Pair at, Rotation by) {
  return {Add(Multiply(at.first, by.cosine), Multiply(at.second, by.sine)),
          Add(Multiply(at.second, by.cosine), -Multiply(at.first, by.sine))};
}
CAIRN_HD Pair ApplyRope(Pair at, Rotation by) {
  return {Add(Multiply(at.first, by.cosine), -Multiply(at.second, by.sine)),
          Add(Multiply(at.first, by.sine), Multiply(at.second, by.cosine))};
}

// ---- A basis ----

// Computes one component from all channels, or one channel from all components. The result is a sum
// in the order of `values`.
//   vector_at(i)  returns the basis entry for that component and channel
CAIRN_HD_CALLBACKS
template <typename VectorAt>
CAIRN_HD float BasisSum(uint32_t dim, const float* values, VectorAt vector_at) {
  float sum = 0.0F;
  CAIRN_HD_NO_UNROLL
  for (uint32_t i = 0; i < dim; ++i) sum = Add(sum, Multiply(vector_at(i), values[i]));
  return sum;
}

// ---- Codes ----

// How the codes of a channel are split for the entropy coder.
struct StepShape {
  uint8_t low_bits;  // stored without coding
  uint8_t table;     // number of the table that codes the bits above them
};

// ratio: 256 * log2 of the channel's spread over its step.
CAIRN_HD StepShape StepShapeOf(int32_t ratio) {
  int32_t index = ((ratio + 32) >> 6) + 16;
  index = index < 0 ? 0 : index;
  index = index > 39 ? 39 : index;
  // The code has no branch, since it is unpredictable which channels have low bits.
  const int32_t above = index - 17;
  const int32_t low_bits = (above & ~(above >> 31)) >> 2;
  return {static_cast<uint8_t>(low_bits), static_cast<uint8_t>(index - 4 * low_bits)};
}

// Sets *code to the code of a value from which the mean was subtracted. Returns false if the token
// must be stored as a row.
//   step_inverse  at level 0
CAIRN_HD bool StepCodeAt(float centred, float step_inverse, uint32_t level, int16_t* code) {
  const float position = Multiply(centred, step_inverse);
  const bool is_code = position >= -kStepCodeMax && position <= kStepCodeMax;
  *code = is_code ? static_cast<int16_t>(Coarsen(RoundToInt(position), level)) : int16_t{0};
  return is_code;
}

// Returns the value of a code, in quantizer steps.
//   offsets  corrections of the codes of magnitude 1 and 2
CAIRN_HD float StepCodeOf(int32_t code, const float* offsets) {
  float value = static_cast<float>(code);
  if (code == 1 || code == 2) value = Add(value, offsets[code - 1]);
  if (code == -1 || code == -2) value = Add(value, -offsets[-code - 1]);
  return value;
}

// Returns the offset to add to a code before its low bits are cut off. It makes positive and
// negative codes symmetric.
CAIRN_HD int32_t StepHalf(uint32_t low_bits) { return (1 << low_bits) >> 1; }

// A result above 14 means that the code has no symbol.
CAIRN_HD uint32_t StepSymbol(int32_t code, uint32_t low_bits) {
  return static_cast<uint32_t>(((code + StepHalf(low_bits)) >> low_bits) + 7);
}
CAIRN_HD uint32_t StepLow(int32_t code, uint32_t low_bits) {
  return static_cast<uint32_t>(code + StepHalf(low_bits)) & ((1U << low_bits) - 1);
}
CAIRN_HD int32_t StepCode(uint32_t symbol, uint32_t low, uint32_t low_bits) {
  const int32_t high = (static_cast<int32_t>(symbol) - 7) * (1 << low_bits);
  return high + static_cast<int32_t>(low) - StepHalf(low_bits);
}

}  // namespace cairn::codecs
