// SPDX-License-Identifier: Apache-2.0
// The recipe `mixkvq`: classes follow salience, the published thresholds of 14B leave 4 bits empty,
// what needs no bits gets none, source bits stay, sizes are a budget's, maps that lie are refused.

#include <algorithm>

#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "codecs/image/settle.h"
#include "codecs/numbers/mixed.h"
#include "codecs/numbers/static_step.h"
#include "codecs/pack/dense.h"
#include "codecs/transform/demote.h"
#include "codecs/types/bytes.h"
#include "tests/property/codecs/images.h"
#include "tests/support/profile_bytes.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kMixDim = 48;
constexpr uint16_t kMixTokens = 150;
constexpr const char* kPapers[] = {"mixkvq:paper", "mixkvq:paper/7b", "mixkvq:paper/14b",
                                   "mixkvq:paper/32b"};

class MixKvqPropertyTest : public testing::Test {
 protected:
  [[nodiscard]] static ImageSpec SpecOf(std::string_view recipe) {
    return MakeSpec(DType::kBf16, {1, 2, 0, 2}, kMixTokens, kMixDim, 24, RecipeNamed(recipe));
  }

  static Bytes Encoded(const ImageSpec& spec, const Bytes& source, const EncodeInputs& inputs) {
    return EncodeOrFail(BestBackend(), spec, source, inputs);
  }

  // Of the K of head `index`.
  static std::vector<ChannelClass> ClassesOf(const ImageView& view, uint32_t index) {
    EXPECT_EQ(view.Tile(2 * index).form, kMixedForm);
    std::vector<ChannelClass> classes(view.spec().tile.k_dim);
    for (uint32_t c = 0; c < classes.size(); ++c) {
      const auto* map = reinterpret_cast<const uint8_t*>(view.TileContent(2 * index).data());
      classes[c] = static_cast<ChannelClass>(UnpackCode(map, c, 2));
    }
    return classes;
  }

  [[nodiscard]] std::vector<float> RandomMagnitudes() {
    std::vector<float> magnitudes(size_t{4} * kMixDim);
    std::lognormal_distribution<float> spread(-3.5F, 1);
    for (float& magnitude : magnitudes) magnitude = spread(random_);
    return magnitudes;
  }

  std::mt19937_64 random_ = SeededRandom();
  Bytes source_ = RandomValues(SpecOf("mixkvq"), random_);
};

TEST_F(MixKvqPropertyTest, ClassesFollowSalience) {
  const std::vector<float> magnitudes = RandomMagnitudes();
  for (const char* name : {"mixkvq", kPapers[0], kPapers[1], kPapers[2], kPapers[3]}) {
    const Bytes image = Encoded(SpecOf(name), source_, {.query_magnitudes = magnitudes});
    const ImageView view = ParseOrFail(image);
    for (uint32_t head = 0; head < 4; ++head) {
      const std::vector<ChannelClass> classes = ClassesOf(view, head);
      const size_t first = size_t{head} * kMixTokens * (kMixDim + 24);
      float least[kChannelClasses] = {INFINITY, INFINITY, INFINITY};
      float most[kChannelClasses] = {-1, -1, -1};
      for (uint32_t c = 0; c < kMixDim; ++c) {
        float low = INFINITY;
        float high = -INFINITY;
        for (uint32_t t = 0; t < kMixTokens; ++t) {
          const float x = LoadValue(DType::kBf16, source_.data(), first + size_t{t} * kMixDim + c);
          low = std::min(low, x);
          high = std::max(high, x);
        }
        const float salience = Salience(magnitudes[size_t{head} * kMixDim + c], low, high);
        const auto of = static_cast<uint8_t>(classes[c]);
        least[of] = std::min(least[of], salience);
        most[of] = std::max(most[of], salience);
      }
      EXPECT_LE(most[0], least[1]) << name;
      EXPECT_LE(std::max(most[0], most[1]), least[2]) << name;
    }
  }
}

TEST_F(MixKvqPropertyTest, ThresholdsOf14BLeaveFourBitsEmpty) {
  uint32_t four_bits[5] = {};
  uint32_t source_bits[5] = {};
  for (int round = 0; round < 5; ++round) {
    const std::vector<float> magnitudes = RandomMagnitudes();
    for (uint32_t i = 0; i < 4; ++i) {
      const Bytes image = Encoded(SpecOf(kPapers[i]), source_, {.query_magnitudes = magnitudes});
      const ImageView view = ParseOrFail(image);
      for (uint32_t head = 0; head < 4; ++head) {
        for (const ChannelClass of : ClassesOf(view, head)) {
          four_bits[i] += of == ChannelClass::kFourBits ? 1 : 0;
          source_bits[i] += of == ChannelClass::kSourceBits ? 1 : 0;
        }
      }
    }
  }
  EXPECT_EQ(four_bits[2], 0U);
  for (const uint32_t i : {0, 1, 3}) EXPECT_GT(four_bits[i], 0U) << kPapers[i];
  for (const uint32_t i : {0, 1, 2, 3}) EXPECT_GT(source_bits[i], 0U) << kPapers[i];
  const MixedThresholds of_14b = ThresholdsOf(MixedVariant::kQwen14b);
  EXPECT_EQ(ClassAbove(1.52F, of_14b), ChannelClass::kTwoBits);  // strictly above
  EXPECT_EQ(ClassAbove(1.53F, of_14b), ChannelClass::kSourceBits);
}

TEST_F(MixKvqPropertyTest, WhatNeedsNoBitsGetsNone) {
  std::vector<float> magnitudes(size_t{4} * kMixDim, 0.06F);
  magnitudes[5] = 0;  // queries that never look there
  for (uint32_t t = 0; t < kMixTokens; ++t) {
    StoreValue(DType::kBf16, source_.data(), size_t{t} * kMixDim + 7,
               -2.75F);  // a constant channel
  }
  for (const char* name : {"mixkvq", kPapers[0]}) {
    const Bytes image = Encoded(SpecOf(name), source_, {.query_magnitudes = magnitudes});
    const ImageView view = ParseOrFail(image);
    const std::vector<ChannelClass> classes = ClassesOf(view, 0);
    EXPECT_EQ(classes[5], ChannelClass::kTwoBits);
    EXPECT_EQ(classes[7], ChannelClass::kTwoBits);
    const Bytes decoded = DecodeOrFail(BestBackend(), view, view.spec().slice);
    for (uint32_t t = 0; t < kMixTokens; ++t) {
      EXPECT_EQ(LoadValue(DType::kBf16, decoded.data(), size_t{t} * kMixDim + 7), -2.75F);
    }
  }
}

TEST_F(MixKvqPropertyTest, SourceBitsStayAndMoreBitsLoseLess) {
  std::vector<float> magnitudes(size_t{4} * kMixDim);
  for (uint32_t i = 0; i < magnitudes.size(); ++i) {
    magnitudes[i] = i % 3 == 0 ? 1000.0F : i % 3 == 1 ? 0.0F : 0.02F;
  }
  const Bytes image = Encoded(SpecOf(kPapers[0]), source_, {.query_magnitudes = magnitudes});
  const ImageView view = ParseOrFail(image);
  const Bytes decoded = DecodeOrFail(BestBackend(), view, view.spec().slice);
  const std::vector<ChannelClass> classes = ClassesOf(view, 0);
  double error[kChannelClasses] = {};
  for (uint32_t i = 0; i < uint32_t{kMixTokens} * kMixDim; ++i) {
    const double x = LoadValue(DType::kBf16, source_.data(), i);
    const double d = LoadValue(DType::kBf16, decoded.data(), i) - x;
    const auto of = static_cast<uint8_t>(classes[i % kMixDim]);
    const double scale = i % kMixDim % 13;  // of the source's channels
    if (scale > 0) error[of] += d * d / scale / scale;
  }
  EXPECT_EQ(error[2], 0);
  EXPECT_GT(error[0], 0);
  EXPECT_LT(error[1], error[0]);
}

TEST_F(MixKvqPropertyTest, ABudgetMakesTilesOfOneSize) {
  const ImageSpec spec = SpecOf("mixkvq");
  const Bytes first = Encoded(spec, source_, {});
  const Bytes second = Encoded(spec, RandomValues(spec, random_), {});
  EXPECT_EQ(first.size(), second.size());
  const std::vector<ChannelClass> classes = ClassesOf(ParseOrFail(first), 3);
  EXPECT_EQ(std::count(classes.begin(), classes.end(), ChannelClass::kFourBits), kMixDim / 4);
  // K: 2.5 bits, params of 0.5 (two groups of 128 and 22 tokens), a map. V: 2.5 and padding.
  const double bits = 8.0 * static_cast<double>(first.size() - PrefixBytes(8)) /
                      static_cast<double>(source_.size() / 2);
  EXPECT_LT(bits, 3.1);
}

TEST_F(MixKvqPropertyTest, AProfileStandsInForMagnitudes) {
  const ProfileShape shape = {.layers = 3, .heads = 2, .k_dim = kMixDim, .v_dim = 24};
  const Bytes profile_bytes = ProfileBytes(shape, SeededRandom(1)).bytes();
  Profile profile;
  ASSERT_EQ(ParseProfile(profile_bytes, &profile), Error::kOk);
  ImageSpec spec = SpecOf("raw");
  const Digest id = {9, 8, 7};
  ASSERT_EQ(SetRecipe("mixkvq", {.profile = &profile}, id, &spec), Error::kOk);
  ASSERT_EQ(spec.side_object_count, 1);
  EXPECT_EQ(spec.side_objects[0], id);
  const Bytes image = Encoded(spec, source_, {.profile = &profile});
  const ImageView view = ParseOrFail(image);
  EXPECT_EQ(view.spec(), spec);
  std::vector<float> magnitudes;
  for (uint32_t head = 0; head < 4; ++head) {
    for (uint32_t c = 0; c < kMixDim; ++c) {
      const ProfileChannel known = profile.Channel(0, HeadOf(spec, 2 * head), c);
      magnitudes.push_back(Exp2(-known.step_log));
    }
  }
  const Bytes other = Encoded(SpecOf("mixkvq"), source_, {.query_magnitudes = magnitudes});
  for (uint32_t i = 0; i < view.tile_count(); ++i) {
    EXPECT_TRUE(std::ranges::equal(view.TileContent(i), ParseOrFail(other).TileContent(i)));
  }
  // Decoding has no use for it.
  EXPECT_EQ(DecodeOrFail(BestBackend(), view, spec.slice),
            DecodeOrFail(BestBackend(), ParseOrFail(other), spec.slice));
  Bytes target(image.size() + source_.size());
  size_t bytes = 0;
  EXPECT_EQ(Encode(BestBackend(), spec, source_, target, &bytes), Error::kNoProfile);
  EXPECT_EQ(Encode(BestBackend(), SpecOf("mixkvq"), source_, target, &bytes,
                   {.query_magnitudes = std::span(magnitudes).first(kMixDim)}),
            Error::kSourceSize);
}

TEST_F(MixKvqPropertyTest, MapsThatLieAreRefused) {
  const Bytes image = Encoded(SpecOf("mixkvq"), source_, {});
  const size_t tile = PrefixBytes(8);
  const auto error_with = [&](size_t offset, uint8_t value) {
    Bytes changed = image;
    changed[tile + offset] = std::byte{value};
    FixTileCrc(changed, 0);
    ImageView view;
    EXPECT_EQ(ParseImage(changed, &view), Error::kOk);
    Bytes decoded(source_.size());
    const Error verified = VerifyTile(view, 0);
    const Error error = Decode(BestBackend(), view, view.spec().slice, decoded);
    EXPECT_TRUE(verified == Error::kBadTile || error == Error::kOk);
    return verified;
  };
  const auto map0 = static_cast<uint8_t>(image[tile]);
  EXPECT_EQ(error_with(0, map0), Error::kOk);
  EXPECT_EQ(error_with(0, 0xFF), Error::kBadTile);                        // class 3
  EXPECT_EQ(error_with(0, 0xAA), Error::kBadTile);                        // source bits
  EXPECT_EQ(error_with(0, map0 == 0x55 ? 0x00 : 0x55), Error::kBadTile);  // too many, or few
  EXPECT_EQ(error_with(kMixDim / 4, 1), Error::kBadTile);                 // behind the map
}

TEST_F(MixKvqPropertyTest, HeadersSayNothingElse) {
  const Bytes image = Encoded(SpecOf("mixkvq"), source_, {});
  const auto parsed_with = [&](size_t offset, uint8_t value) {
    Bytes changed = image;
    changed[offset] = std::byte{value};
    FixPrefixCrc(changed, 8);
    ImageView view;
    return ParseImage(changed, &view);
  };
  EXPECT_EQ(parsed_with(header::kVariant, 5), Error::kBadHeader);
  EXPECT_EQ(parsed_with(header::kVariant, 1), Error::kBadHeader);  // whose groups are others
  EXPECT_EQ(parsed_with(header::kParamsTail, 1), Error::kBadPadding);
  EXPECT_EQ(parsed_with(header::kLevel, 1), Error::kBadPadding);
  EXPECT_EQ(parsed_with(header::kSideObjectCount, 1), Error::kOk);  // of zeros, but a name
  EXPECT_EQ(parsed_with(header::kSideObjectCount, 2), Error::kBadHeader);
  EXPECT_EQ(parsed_with(header::kDomain, 1), Error::kBadHeader);
  Bytes target(image.size());
  size_t bytes = 0;
  EXPECT_EQ(Demote(BestBackend(), ParseOrFail(image), RecipeNamed("kivi:2"), target, &bytes),
            Error::kNotDemotable);
}

}  // namespace
}  // namespace cairn::codecs
