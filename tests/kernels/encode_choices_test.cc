// SPDX-License-Identifier: Apache-2.0
// What kernels choose for a tile before they encode it, patterns of tokens and classes of channels,
// is what the CPU chooses.
#include "tests/kernels/encode_fixture.h"

namespace cairn::kernels {
namespace {

constexpr const char* kPatterned[] = {"patternkv:4", "patternkv:2", "patternkv:2:l2"};
constexpr DType kDTypes[] = {DType::kBf16, DType::kFp16, DType::kFp32};

using EncodeChoicesTest = EncodeFixture;

TEST_F(EncodeChoicesTest, PatternsOfEveryTail) {
  constexpr uint16_t kTokens[] = {1, 7, 33, 129};
  uint32_t trial = 0;
  for (const char* recipe : kPatterned) {
    for (const uint16_t tokens : kTokens) {
      const DType dtype = kDTypes[trial++ % std::size(kDTypes)];
      SCOPED_TRACE(testing::Message()
                   << recipe << " of " << tokens << " tokens, dtype " << static_cast<int>(dtype));
      CheckImage(MakeImage(recipe, Kv(dtype, 12, 10), tokens, Content::kBell), AnyWholeShape());
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(coded_, 50U);
}

TEST_F(EncodeChoicesTest, PatternsOfEveryContent) {
  const TileShape kShapes[] = {
      Kv(DType::kBf16, 40, 70),  // two groups in V
      Kv(DType::kFp32, 5, 65),
      {GroupKind::kLatent, DType::kFp16, 96, 0},
  };
  uint32_t trial = 0;
  for (const TileShape& shape : kShapes) {
    for (uint32_t content = 0; content < static_cast<uint32_t>(Content::kCount); ++content) {
      const char* recipe = kPatterned[trial++ % std::size(kPatterned)];
      const auto tokens = static_cast<uint16_t>(1 + random_() % 30);
      SCOPED_TRACE(testing::Message() << recipe << " of " << tokens << " tokens, dim "
                                      << shape.k_dim << ", content " << content);
      CheckImage(MakeImage(recipe, shape, tokens, static_cast<Content>(content)), AnyWholeShape());
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(raw_, 5U);
  EXPECT_GT(coded_, 40U);
  EXPECT_GT(with_rows_, 10U);
}

// Values that have codes, but not without a pattern.
TEST_F(EncodeChoicesTest, PatternsThatLeaveTooMuch) {
  for (const char* recipe : kPatterned) {
    ImageOf image = MakeImage(recipe, Kv(DType::kFp32, 16, 16), 24, Content::kBell);
    for (const uint32_t plane : {0U, 1U}) {
      SetPlane(
          plane,
          [](uint32_t token, uint32_t channel, float value) {
            if (token % 8 != 3 || channel % 7 != 2) return value;
            return channel % 2 == 0 ? 32752.0F : -32752.0F;
          },
          &image);
    }
    CheckImage(image, AnyWholeShape());
    if (HasFailure()) return;
  }
  EXPECT_GT(with_rows_, 3U);
}

// Patterns that are alike, so that the first is taken: 1 and -1 in turns in the first group of V,
// and 4 in the second. By tokens it would pay where it does not by groups, and one group may spoil
// what the other gains; what is left of a group may be a constant that has no code.
TEST_F(EncodeChoicesTest, GatesOfGroups) {
  constexpr uint32_t kDim = 70, kGroup = 64;
  const auto pattern = [](uint32_t channel) {
    return channel >= kGroup ? 4.0F : channel % 2 == 0 ? 1.0F : -1.0F;
  };
  for (const char* recipe : kPatterned) {
    ImageOf image = MakeImage(recipe, Kv(DType::kFp32, 16, kDim), 40, Content::kBell);
    SideObject* side = image.side.get();
    const uint8_t* first = side->bank.PatternsOf(1, {});
    std::byte* at = side->bytes.data() + (first - codecs::U8(side->bytes.data()));
    for (uint32_t i = 0; i < 5 * 3 * side->bank.patterns() * kDim; ++i) {
      codecs::Store(at + 2 * i,
                    codecs::FloatToFp16(pattern(i % kDim), codecs::Fp16Rounding::kNearestEven));
    }
    side->on_device = std::make_unique<DeviceBytes>(side->bytes, false);
    SetPlane(
        1,
        [&](uint32_t token, uint32_t channel, float) {
          const float noise = static_cast<float>(random_() % 100) / 1000;
          if (token % 4 == 0 && channel >= kGroup) return 0.1F;
          if (token % 4 == 1 && channel < kGroup) return noise;
          if (token % 4 == 2 && channel >= kGroup) return 1000 * noise;
          return pattern(channel) + noise;
        },
        &image);
    CheckImage(image, AnyWholeShape());
    if (HasFailure()) return;
  }
  EXPECT_GT(with_rows_, 11U);
}

TEST_F(EncodeChoicesTest, PlansRefuseBanksThatAreNone) {
  ImageOf image = MakeImage("patternkv:2", Kv(DType::kBf16, 32, 32), 40, Content::kBell);
  PagedCache cache(image.spec, image.spec.slice, CacheShape{}, random_);
  EncodeJob job = JobOf(image, cache);
  EXPECT_EQ(Encode({job}).error, Error::kOk);
  job.side_object += 8;
  EXPECT_EQ(Encode({job}).error, Error::kInvalidShape);
  job = JobOf(image, cache);
  job.side = {};
  EXPECT_EQ(Encode({job}).error, Error::kNoBank);
}

}  // namespace
}  // namespace cairn::kernels
