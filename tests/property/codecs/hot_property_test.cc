// SPDX-License-Identifier: Apache-2.0
// The recipe `cairn-hot`: codes stand for the nearest level, widths keep to the target and fill
// their bytes, sizes follow from shape and rows alone, a strip's own scale follows its content,
// more bits lose less, headers say nothing else.

#include <algorithm>
#include <string>

#include "codecs/backend/hot_multiplier.h"
#include "codecs/backend/hot_tile.h"
#include "codecs/backend/step_token.h"
#include "codecs/forms/hot.h"
#include "codecs/transform/demote.h"
#include "tests/property/codecs/profiled_images.h"

namespace cairn::codecs {
namespace {

TEST(HotLevelsTest, CodesStandForTheNearestLevelAndAscend) {
  std::mt19937_64 random = SeededRandom();
  std::normal_distribution<float> bell;
  for (uint32_t width = 1; width <= kHotWidthMax; ++width) {
    const uint32_t count = 1U << width;
    for (uint32_t code = 0; code < count; ++code) {
      EXPECT_EQ(HotCode(HotLevel(code, width), width), code);
      EXPECT_EQ(HotLevel(count - 1 - code, width), -HotLevel(code, width));
      if (code == 0) continue;
      EXPECT_GT(HotLevel(code, width), HotLevel(code - 1, width));
    }
    for (int i = 0; i < 2000; ++i) {
      const float value = 2 * bell(random);
      const float chosen = HotLevel(HotCode(value, width), width);
      for (uint32_t code = 0; code < count; ++code) {
        EXPECT_LE(std::abs(chosen - value), std::abs(HotLevel(code, width) - value) + 1e-6F);
      }
    }
    EXPECT_EQ(HotCode(INFINITY, width), count - 1);
    EXPECT_EQ(HotCode(-INFINITY, width), 0U);
    EXPECT_EQ(HotCode(-0.0F, width), count / 2);
  }
}

// The thresholds are what a bit takes off the error of a bell, and so descend in worth.
TEST(HotLevelsTest, ThresholdsAreTheGainsOfTheLevels) {
  double error_before = 1;
  for (uint32_t width = 1; width <= kHotWidthMax; ++width) {
    double error = 0;
    for (int i = -80000; i <= 80000; ++i) {
      const double x = i / 10000.0;
      const double level = HotLevel(HotCode(static_cast<float>(x), width), width);
      error += (x - level) * (x - level) * std::exp(-x * x / 2) / std::sqrt(2 * M_PI) / 10000;
    }
    EXPECT_NEAR(kHotThresholds[width - 1], -128 * std::log2(error_before - error), 0.6) << width;
    error_before = error;
  }
}

TEST(HotLevelsTest, CorrectionsAreQuarterOctavesToNearest) {
  for (int32_t e = -12; e <= 12; ++e) {
    const int32_t expected = std::clamp(e, kHotCorrectionMin, kHotCorrectionMax);
    EXPECT_EQ(HotCorrection(std::exp2(static_cast<float>(e) / 2)), expected);
    EXPECT_EQ(HotCorrection(std::exp2((static_cast<float>(e) + 0.49F) / 2)), expected);
    EXPECT_EQ(HotCorrection(std::exp2((static_cast<float>(e) - 0.49F) / 2)), expected);
  }
  EXPECT_EQ(HotCorrection(0), kHotCorrectionMin);
  EXPECT_EQ(HotCorrection(INFINITY), kHotCorrectionMax);
}

class HotPropertyTest : public testing::Test, protected ProfiledImages {
 protected:
  HotPropertyTest() : ProfiledImages("cairn-hot:2.4") {}

  // Of V, in steps of the profile; of what is not far out.
  [[nodiscard]] double SquaredError(const Bytes& image) const {
    const Bytes decoded = Decoded(image, kWhole);
    double error = 0;
    size_t at = 0;
    for (uint32_t tile = 0; tile < Tiling(spec_.tile.kind, kWhole, spec_.unit).count(); ++tile) {
      const TileGeometry geometry = GeometryOf(spec_, tile % 2);
      for (uint32_t i = 0; i < geometry.rows * geometry.dim; ++i, ++at) {
        if (geometry.plane == Plane::kK) continue;
        const ProfileChannel known = profile_.Channel(1, HeadOf(spec_, tile), i % geometry.dim);
        const double x = LoadValue(DType::kBf16, source_.data(), at);
        if (std::abs(x - known.mean) > 4 * Exp2(known.spread_log)) continue;
        const double d = (LoadValue(DType::kBf16, decoded.data(), at) - x) / Exp2(known.step_log);
        error += d * d;
      }
    }
    return error;
  }
};

TEST_F(HotPropertyTest, WidthsFillTheirBytesAndKeepToTheTarget) {
  for (uint32_t bits = kHotBitsMin; bits <= 40; bits += 6) {
    const auto multiplier = HotMultiplierOf(profile_, bits);
    ASSERT_TRUE(multiplier.has_value());
    const auto total_at = [&](int16_t at) {
      uint64_t total = 0;
      HotTile tile;
      for (uint32_t i = 0; i < 4 * 4 * 2; ++i) {
        MakeHotTile(profile_, {i / 8, i / 2 % 4}, i % 2, at, DType::kBf16, &tile);
        uint32_t sum = 0;
        for (uint32_t c = 0; c < tile.step.dim; ++c) {
          EXPECT_EQ(tile.channels[c].bit_offset, sum);
          EXPECT_LE(tile.channels[c].width, kHotWidthMax);
          sum += tile.channels[c].width;
        }
        EXPECT_EQ(sum, 8 * tile.row_bytes);
        total += sum;
      }
      return total;
    };
    const uint64_t channels = uint64_t{4} * 4 * (32 + 24);
    EXPECT_LE(100 * total_at(*multiplier), (10 * bits - 12) * channels);
    EXPECT_GT(100 * total_at(static_cast<int16_t>(*multiplier - 1)), (10 * bits - 12) * channels);
  }
}

TEST_F(HotPropertyTest, AMultiplierIsSearchedForOnceAndStaysTheSame) {
  Profile fresh;
  ASSERT_EQ(ParseProfile(profile_bytes_, &fresh), Error::kOk);
  const Profile copied_before = fresh;
  std::vector<std::optional<int16_t>> searched;
  for (uint32_t bits = kHotBitsMin; bits <= kHotBitsMax; ++bits) {
    searched.push_back(SearchHotMultiplier(profile_, bits));
    EXPECT_EQ(HotMultiplierOf(fresh, bits), searched.back());
  }
  const Profile copied_after = fresh;
  for (uint32_t bits = kHotBitsMin; bits <= kHotBitsMax; ++bits) {
    const auto expected = searched[bits - kHotBitsMin];
    EXPECT_EQ(HotMultiplierOf(copied_before, bits), expected);
    for (const HotRates& known : {fresh.hot_rates(), copied_after.hot_rates()}) {
      const auto found = HotRates(known).Get(bits, []() -> std::optional<int16_t> {
        ADD_FAILURE() << "searched for again";
        return std::nullopt;
      });
      EXPECT_EQ(found, expected);
    }
  }
}

TEST_F(HotPropertyTest, SizesFollowFromShapeAndRowsAlone) {
  const ImageView view = ParseOrFail(image_);
  Bytes other_source(source_.size());
  for (size_t i = 0; i < source_.size() / 2; ++i) {
    StoreValue(DType::kBf16, other_source.data(), i, 1.0F + static_cast<float>(random_() % 9));
  }
  const Bytes other_image = Encoded(spec_, other_source);
  const ImageView other = ParseOrFail(other_image);
  for (uint32_t i = 0; i < view.tile_count(); ++i) {
    ASSERT_EQ(view.Tile(i).form, kHotForm);
    const TileGeometry geometry = GeometryOf(spec_, i % 2);
    for (const ImageView* each : {&view, &other}) {
      HotTile tile;
      MakeHotTile(profile_, HeadOf(spec_, i), i % 2, spec_.recipe.multiplier, DType::kBf16, &tile);
      const auto layout = HotLayoutOf(geometry, tile.row_bytes, each->Tile(i).rows);
      ASSERT_TRUE(layout.has_value());
      EXPECT_EQ(each->Tile(i).bytes, layout->bytes);
    }
  }
}

TEST_F(HotPropertyTest, MoreBitsLoseLess) {
  double before = INFINITY;
  for (const uint32_t bits : {12, 18, 24, 33}) {
    ImageSpec spec = spec_;
    ASSERT_EQ(SetCairnHot(profile_, kId, bits, &spec), Error::kOk);
    EXPECT_EQ(FormatRecipe(spec.recipe),
              "cairn-hot:" + std::to_string(bits / 10) + "." + std::to_string(bits % 10));
    const double error = SquaredError(Encoded(spec, source_));
    EXPECT_LT(error, before * 0.8) << bits;
    before = error;
  }
}

// K whose spread is not the profile's loses no more, in its own measure, than K whose spread is.
TEST_F(HotPropertyTest, AStripHasItsOwnScale) {
  const TileGeometry geometry = GeometryOf(spec_, 0);
  std::normal_distribution<float> bell;
  const auto loss_at = [&](float factor) {
    Bytes source = source_;
    HotTile tile;
    MakeHotTile(profile_, HeadOf(spec_, 0), 0, spec_.recipe.multiplier, DType::kBf16, &tile);
    double power = 0;
    std::vector<float> y(geometry.dim);
    std::vector<float> x(geometry.dim);
    std::mt19937_64 random(1);
    bell.reset();
    for (uint32_t t = 0; t < geometry.rows; ++t) {
      for (uint32_t c = 0; c < geometry.dim; ++c) {
        y[c] = factor * bell(random) * Exp2(tile.channels[c].spread_log);
      }
      StepBack(tile.step, spec_.first_position + t, y.data(), x.data());
      for (uint32_t c = 0; c < geometry.dim; ++c) {
        StoreValue(DType::kBf16, source.data(), size_t{t} * geometry.dim + c, x[c]);
        power += double{y[c]} * y[c];
      }
    }
    const Bytes decoded = Decoded(Encoded(spec_, source), kWhole);
    double error = 0;
    for (size_t i = 0; i < size_t{geometry.rows} * geometry.dim; ++i) {
      const double d =
          LoadValue(DType::kBf16, decoded.data(), i) - LoadValue(DType::kBf16, source.data(), i);
      error += d * d;
    }
    return error / power;
  };
  const double plain = loss_at(1);
  EXPECT_LT(loss_at(2), 1.1 * plain);
  EXPECT_LT(loss_at(0.5), 1.3 * plain);
  EXPECT_GT(loss_at(8), 1.2 * plain);  // past the last correction
}

TEST_F(HotPropertyTest, HeadersSayNothingElse) {
  EXPECT_EQ(ParsedWith<int16_t>(header::kMultiplier, 4096), Error::kOk);
  EXPECT_EQ(ParsedWith<int16_t>(header::kMultiplier, -4097), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kLevel, 1), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kRecipeBits, 9), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kRecipeBits, 61), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kRecipeFlags, 1), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint16_t>(header::kKGroupTokens, 1), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint16_t>(PrefixBytes(0) + directory::kForm, 0x0108), Error::kBadDirectory);
  EXPECT_EQ(ParsedWith<uint16_t>(PrefixBytes(0) + directory::kRows, 201), Error::kBadDirectory);
  // One row more: section 1 is then no whole number of bytes a token.
  const uint16_t rows = ParseOrFail(image_).Tile(0).rows;
  EXPECT_EQ(ParsedWith<uint16_t>(PrefixBytes(0) + directory::kRows, rows + 1),
            Error::kBadDirectory);
}

TEST_F(HotPropertyTest, OtherMultipliersAreRefusedOrHarmless) {
  Bytes target(source_.size());
  uint32_t refused = 0;
  for (int32_t multiplier = -4096; multiplier <= 4096; multiplier += 64) {
    Bytes changed = image_;
    Store(changed.data() + header::kMultiplier, static_cast<int16_t>(multiplier));
    FixCrc(changed);
    ImageView view;
    ASSERT_EQ(ParseImage(changed, &view), Error::kOk);
    ASSERT_EQ(VerifyTiles(view), Error::kOk);
    const Error error = Decode(BestBackend(), view, kWhole, target, {.profile = &profile_});
    EXPECT_TRUE(error == Error::kOk || error == Error::kBadTile);
    refused += error == Error::kBadTile ? 1 : 0;
  }
  EXPECT_GT(refused, 100U);
}

TEST_F(HotPropertyTest, ShortBlocksAreRaw) {
  ImageSpec spec = spec_;
  for (const uint16_t tokens : {uint16_t{15}, uint16_t{16}}) {
    spec.tokens = tokens;
    const Bytes source(source_.begin(),
                       source_.begin() + static_cast<ptrdiff_t>(SourceBytesOf(spec)));
    const Bytes image = Encoded(spec, source);
    const uint16_t form = ParseOrFail(image).Tile(1).form;
    EXPECT_EQ(form == kRawForm, tokens == 15);
  }
}

// V of narrow channels behind a low target: no widths, no rows, no bytes.
TEST_F(HotPropertyTest, ATileOfNoBytesIsATile) {
  ProfileShape shape = kShape;
  shape.v_dim = 2;
  profile_bytes_ = ProfileBytes(shape, SeededRandom()).bytes();
  ASSERT_EQ(ParseProfile(profile_bytes_, &profile_), Error::kOk);
  spec_ = MakeSpec(DType::kBf16, {0, 4, 0, 4}, 64, 32, 2, Recipe{});
  spec_.first_position = 128;
  ASSERT_EQ(SetCairnHot(profile_, kId, kHotBitsMin, &spec_), Error::kOk);
  Bytes source(SourceBytesOf(spec_));
  for (size_t i = 0; i < source.size() / 2; ++i) {
    StoreValue(DType::kBf16, source.data(), i, 1.0F);
  }
  const Bytes image = Encoded(spec_, source);
  const ImageView view = ParseOrFail(image);
  ASSERT_EQ(VerifyTiles(view), Error::kOk);
  uint32_t empty = 0;
  for (uint32_t i = 1; i < view.tile_count(); i += 2) empty += view.Tile(i).bytes == 0 ? 1 : 0;
  EXPECT_GT(empty, 0U);
  const Bytes whole = Decoded(image, spec_.slice);
  const Slice last{3, 1, 0, 4};
  const Bytes part = Decoded(image, last);
  EXPECT_TRUE(std::equal(part.rbegin(), part.rend(), whole.rbegin()));
  Bytes gathered(image.size());
  size_t bytes = 0;
  ASSERT_EQ(Gather({&view, 1}, last, gathered, &bytes), Error::kOk);
  gathered.resize(bytes);
  EXPECT_EQ(Decoded(gathered, last), part);
}

TEST_F(HotPropertyTest, NothingElseComesOfIt) {
  const ImageView view = ParseOrFail(image_);
  Bytes target(DemoteBytesMax(view, Recipe{}));
  size_t bytes = 0;
  for (const Recipe& recipe : AllRecipes()) {
    EXPECT_EQ(Demote(BestBackend(), view, recipe, target, &bytes), Error::kNotDemotable);
  }
  EXPECT_EQ(DemoteSteps(view, profile_, 1, target, &bytes), Error::kNotDemotable);
  ASSERT_EQ(Demote(BestBackend(), view, spec_.recipe, target, &bytes), Error::kOk);
  target.resize(bytes);
  EXPECT_EQ(target, image_);
}

}  // namespace
}  // namespace cairn::codecs
