// SPDX-License-Identifier: Apache-2.0
// The scalar arithmetic against its definition, exhaustively where 16 bits allow it.
#include "codecs/numbers/math.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace cairn::codecs {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// By the formats' definition, in double.
double Fp16Value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double mantissa = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(MathTest, EveryFp16WidensExactlyAndComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if ((half & 0x7C00) == 0x7C00) continue;
    const float value = Fp16ToFloat(half);
    ASSERT_EQ(double{value}, Fp16Value(half)) << bits;
    ASSERT_EQ(std::signbit(value), (half & 0x8000) != 0);
    for (const auto rounding :
         {Fp16Rounding::kNearestEven, Fp16Rounding::kDown, Fp16Rounding::kUp}) {
      ASSERT_EQ(FloatToFp16(value, rounding), half) << bits;
    }
  }
}

// Between each two neighbours: just above the lower, the middle and its neighbours, just below the
// upper.
TEST(MathTest, EveryFp16GapRoundsAsItSays) {
  for (uint16_t low = 0; low < 0x7BFF; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const float below = Fp16ToFloat(low);
    const float above = Fp16ToFloat(high);
    const auto middle = static_cast<float>((double{below} + double{above}) / 2);
    const uint16_t even = (low & 1) == 0 ? low : high;
    const auto expect = [&](float value, uint16_t nearest) {
      ASSERT_EQ(FloatToFp16(value, Fp16Rounding::kNearestEven), nearest) << value;
      ASSERT_EQ(FloatToFp16(-value, Fp16Rounding::kNearestEven), nearest | 0x8000) << value;
      ASSERT_EQ(Fp16RoundDown(value), low) << value;
      ASSERT_EQ(Fp16RoundUp(value), high) << value;
      ASSERT_EQ(Fp16RoundDown(-value), high | 0x8000) << value;
      ASSERT_EQ(Fp16RoundUp(-value), low | 0x8000) << value;
    };
    expect(std::nextafter(below, kInfinity), low);
    expect(std::nextafter(middle, 0.0F), low);
    expect(middle, even);
    expect(std::nextafter(middle, kInfinity), high);
    expect(std::nextafter(above, 0.0F), high);
  }
}

TEST(MathTest, Fp16EndsOfTheScale) {
  EXPECT_EQ(FloatToFp16(65519.0F, Fp16Rounding::kNearestEven), 0x7BFF);
  EXPECT_EQ(FloatToFp16(65520.0F, Fp16Rounding::kNearestEven), 0x7C00);
  EXPECT_EQ(Fp16RoundDown(1e9F), 0x7BFF);
  EXPECT_EQ(Fp16RoundUp(65505.0F), 0x7C00);
  EXPECT_EQ(Fp16RoundUp(-1e9F), 0xFBFF);
  EXPECT_EQ(Fp16RoundDown(-65505.0F), 0xFC00);
  EXPECT_EQ(Fp16RoundUp(kInfinity), 0x7C00);
  EXPECT_EQ(FloatToFp16(-kInfinity, Fp16Rounding::kNearestEven), 0xFC00);
  EXPECT_EQ(FloatToFp16(0x1p-149F, Fp16Rounding::kNearestEven), 0);
  EXPECT_EQ(Fp16RoundUp(0x1p-149F), 1);
  EXPECT_EQ(Fp16RoundDown(-0x1p-149F), 0x8001);
  EXPECT_EQ(Fp16RoundUp(-0x1p-149F), 0x8000);
  EXPECT_EQ(FloatToFp16(NAN, Fp16Rounding::kNearestEven) & 0x7E00, 0x7E00);
  EXPECT_TRUE(std::isnan(Fp16ToFloat(0x7C01)));
}

TEST(MathTest, EveryBf16GapRoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const auto low = static_cast<uint16_t>(bits);
    const auto high = static_cast<uint16_t>(bits + 1);
    const uint32_t base = bits << 16;
    ASSERT_EQ(FloatToBf16(BitsFloat(base)), low);
    ASSERT_EQ(FloatToBf16(BitsFloat(base | 0x7FFF)), low);
    ASSERT_EQ(FloatToBf16(BitsFloat(base | 0x8000)), (low & 1) == 0 ? low : high);
    ASSERT_EQ(FloatToBf16(BitsFloat(base | 0x8001)), high);
    ASSERT_EQ(FloatToBf16(BitsFloat(base | 0x80008001)), high | 0x8000);
    ASSERT_EQ(FloatBits(Bf16ToFloat(low)), base);
  }
  EXPECT_EQ(FloatToBf16(BitsFloat(0x7F800001)), 0x7FC0);
}

TEST(MathTest, RowValues) {
  EXPECT_FALSE(IsRowValue(0.0F));
  EXPECT_FALSE(IsRowValue(-kMagnitudeMax));
  EXPECT_EQ(FloatBits(kMagnitudeMax), kMagnitudeMaxBits);
  EXPECT_TRUE(IsRowValue(std::nextafter(kMagnitudeMax, kInfinity)));
  EXPECT_TRUE(IsRowValue(-kInfinity));
  EXPECT_TRUE(IsRowValue(NAN));
  EXPECT_EQ(MakeParams(-kMagnitudeMax, kMagnitudeMax, 0.0F).range, 0x7BFF);
}

TEST(MathTest, RoundsHalvesToEven) {
  EXPECT_EQ(RoundToInt(0.5F), 0);
  EXPECT_EQ(RoundToInt(1.5F), 2);
  EXPECT_EQ(RoundToInt(254.5F), 254);
  EXPECT_EQ(RoundToInt(-0.5F), 0);
  EXPECT_EQ(RoundToInt(-1.5F), -2);
  EXPECT_EQ(RoundToInt(-2.4999F), -2);
  EXPECT_EQ(RoundToInt(1000000.0F), 1000000);
}

TEST(MathTest, ClampPutsNanAndNegativesAtZero) {
  EXPECT_EQ(Clamp(-3.0F, 255.0F), 0.0F);
  EXPECT_EQ(Clamp(256.0F, 255.0F), 255.0F);
  EXPECT_EQ(Clamp(NAN, 255.0F), 0.0F);
}

// 255 = 15 x 17 and 15 = 3 x 5: narrowing is rounding.
TEST(MathTest, CodesNest) {
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(Narrow8To4(static_cast<uint8_t>(code)), std::lround(code / 17.0)) << code;
  }
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(Narrow4To2(static_cast<uint8_t>(code)), std::lround(code / 5.0)) << code;
  }
  for (int i = 0; i <= 100000; ++i) {
    const double position = i / 100000.0;
    const double fine = position * 255;
    if (fine - std::floor(fine) == 0.5) continue;
    const auto code8 = static_cast<uint8_t>(std::lround(fine));
    ASSERT_LE(std::fabs(Narrow(code8, 4) - position * 15), 0.5 + 1e-9) << position;
    ASSERT_LE(std::fabs(Narrow(code8, 2) - position * 3), 0.5 + 1e-9) << position;
  }
}

TEST(MathTest, CoveringParamsCover) {
  for (int i = 1; i < 20000; ++i) {
    const float low = std::sin(static_cast<float>(i)) * static_cast<float>(i % 977);
    const float high = low + std::ldexp(1.0F + static_cast<float>(i % 7) / 7.0F, i % 40 - 26);
    if (high <= low) continue;
    const AffineParams params = MakeParams(low, high, 0.0F);
    const float min = Fp16ToFloat(params.min);
    const float range = Fp16ToFloat(params.range);
    ASSERT_LE(min, low);
    ASSERT_GT(range, 0.0F);
    ASSERT_GE(double{min} + double{range}, double{high} - 0x1p-24 * double{range})
        << low << " " << high;
  }
}

TEST(MathTest, ConstantsThatFp16HoldsAreExact) {
  EXPECT_FALSE(IsInexactConstant(0.25F, 0.25F));
  EXPECT_FALSE(IsInexactConstant(0.1F, 0.2F));
  EXPECT_TRUE(IsInexactConstant(0.1F, 0.1F));
  EXPECT_TRUE(IsInexactConstant(-0x1p-30F, -0x1p-30F));
  const AffineParams params = MakeParams(0.25F, 0.25F, 0.19F);
  EXPECT_EQ(params.range, 0);
  EXPECT_EQ(Dequantize(0, Step(2, 0.0F), Fp16ToFloat(params.min)), 0.25F);
  EXPECT_EQ(MakeParams(0.0F, 1.0F, 0.0F).min, 0);
}

}  // namespace
}  // namespace cairn::codecs
