// SPDX-License-Identifier: Apache-2.0
// What kernels choose for a tile before they encode it, patterns of tokens and classes of channels,
// is what the CPU chooses.
#include "tests/kernels/encode_fixture.h"

namespace cairn::kernels {
namespace {

constexpr const char* kPatterned[] = {"patternkv:4", "patternkv:2", "patternkv:2:l2"};

using EncodeChoicesTest = EncodeFixture;

TEST_F(EncodeChoicesTest, PatternsOfEveryTail) {
  constexpr uint16_t kTokens[] = {1, 7, 33, 129};
  CheckTails(kPatterned, kTokens, 12, 10);
  EXPECT_GT(coded_, 50U);
}

TEST_F(EncodeChoicesTest, PatternsOfEveryContent) {
  const TileShape kShapes[] = {
      Kv(DType::kBf16, 40, 70),  // two groups in V
      Kv(DType::kFp32, 5, 65),
      Kv(DType::kFp8E4m3, 64, 48),
      {GroupKind::kLatent, DType::kFp16, 96, 0},
  };
  CheckContents(kPatterned, kShapes, 30);
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

constexpr const char* kMixed[] = {"mixkvq", "mixkvq:paper", "mixkvq:paper/7b", "mixkvq:paper/14b",
                                  "mixkvq:paper/32b"};

TEST_F(EncodeChoicesTest, ClassesOfEveryTail) {
  constexpr uint16_t kTokens[] = {1, 16, 33, 64, 127, 128, 129, 200, 300};
  CheckTails(kMixed, kTokens, 41, 8);
  EXPECT_GT(coded_, 100U);
}

TEST_F(EncodeChoicesTest, ClassesOfEveryContent) {
  const TileShape kShapes[] = {
      Kv(DType::kBf16, 70, 40),
      Kv(DType::kFp32, 3, 5),
      {GroupKind::kLatent, DType::kFp16, 300, 0},
  };
  CheckContents(kMixed, kShapes, 150);
  EXPECT_GT(raw_, 5U);
  EXPECT_GT(coded_, 40U);
  EXPECT_GT(with_rows_, 5U);
}

// By magnitudes of queries, of which many are equal, and by what a profile says of them.
TEST_F(EncodeChoicesTest, ClassesByQueries) {
  const TileShape shape = Kv(DType::kBf16, 60, 16);
  for (uint32_t round = 0; round < 12; ++round) {
    ImageOf image = MakeImage(kMixed[round % 5], shape, 70, Content::kFewRows);
    std::vector<float> magnitudes(size_t{4} * shape.k_dim);
    for (float& magnitude : magnitudes) magnitude = static_cast<float>(random_() % 4);
    DeviceBytes on_device(std::as_bytes(std::span(magnitudes)), false);
    EncodeJob job;
    if (round % 3 != 0) {
      image.side = MakeProfile(shape);
      ASSERT_EQ(codecs::SetRecipe(kMixed[round % 5], image.Inputs(), {1}, &image.spec), Error::kOk);
      ASSERT_EQ(image.spec.side_object_count, 1U);
    }
    if (round % 2 == 0) job.query_magnitudes = reinterpret_cast<const float*>(on_device.address());
    Reencode(&image, round % 2 == 0 ? codecs::EncodeInputs{.query_magnitudes = magnitudes}
                                    : codecs::EncodeInputs{});
    CheckImage(image, AnyWholeShape(), job);
    if (HasFailure()) return;
  }
}

TEST_F(EncodeChoicesTest, PlansRefuseProfilesThatAreNone) {
  ImageOf image = MakeImage("mixkvq", Kv(DType::kBf16, 32, 32), 40, Content::kBell);
  image.side = MakeProfile(image.spec.tile);
  ASSERT_EQ(codecs::SetRecipe("mixkvq", image.Inputs(), {1}, &image.spec), Error::kOk);
  PagedCache cache(image.spec, image.spec.slice, CacheShape{}, random_);
  EncodeJob job = JobOf(image, cache);
  EXPECT_EQ(Encode({job}).error, Error::kOk);
  job.side_object += 8;
  EXPECT_EQ(Encode({job}).error, Error::kInvalidShape);
  job = JobOf(image, cache);
  job.side = {};
  EXPECT_EQ(Encode({job}).error, Error::kNoProfile);
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
