// SPDX-License-Identifier: Apache-2.0
// Strips of the recipe `cairn`: what comes back is as near as the page says, for every shape, dtype
// and variant of RoPE; demoting is encoding; strips that no encoder wrote are refused or harmless.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "codecs/backend/reference/reference.h"
#include "codecs/backend/reference/step.h"
#include "codecs/types/bytes.h"
#include "tests/property/codecs/images.h"
#include "tests/support/profile_bytes.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

ProfileShape ShapeNumber(uint32_t i) {
  switch (i % 6) {
    case 0:
      return {.heads = 2, .k_dim = 64, .v_dim = 64, .rope = RopeKind::kHalf, .rotary_dims = 64};
    case 1:
      return {.k_dim = 24, .v_dim = 5, .rope = RopeKind::kInterleaved, .rotary_dims = 24};
    case 2:
      return {
          .k_dim = 80, .v_dim = 80, .rope = RopeKind::kHalf, .rotary_first = 16, .rotary_dims = 20};
    case 3:
      return {.layers = 2, .k_dim = 16, .v_dim = 48};
    case 4:
      return {
          .k_dim = 32, .v_dim = 32, .rope = RopeKind::kHalf, .rotary_dims = 32, .has_basis = true};
    default:
      return {.k_dim = 40,
              .v_dim = 0,
              .rope = RopeKind::kInterleaved,
              .rotary_first = 32,
              .rotary_dims = 8};
  }
}

// A strip of the last layer and head of a random profile, and its elements.
class Case {
 public:
  Case(const ProfileShape& shape, uint32_t plane, uint32_t tokens, DType dtype,
       std::mt19937_64& random)
      : profile_bytes_(ProfileBytes(shape, random).bytes()), tokens(tokens) {
    EXPECT_EQ(ParseProfile(profile_bytes_, &profile), Error::kOk);
    at = {shape.layers - 1U, shape.heads - 1U};
    dim = profile.Dim(plane);
    Make(plane, dtype, 0, tile.get());
    position = random() % 3 == 0 ? 0 : random() % 100000;
    Fill(random);
  }

  void Make(uint32_t plane, DType dtype, uint8_t level, StepTile* made) const {
    MakeStepTile(profile, at, plane, {static_cast<int16_t>(-40), level}, dtype, made);
  }
  [[nodiscard]] StripShape Shape() const { return {tokens, dim, tile->dtype, false}; }
  [[nodiscard]] StepSource Source() const {
    return {tokens, position, source.data(), tile->plane == 1 ? source.data() : nullptr};
  }
  [[nodiscard]] StepStripJob Job(const StepStripParts& parts, const std::vector<uint8_t>& strip,
                                 std::vector<uint8_t>* decoded) const {
    return {tile.get(),   tokens,       position,        parts,
            strip.data(), strip.data(), decoded->data(), false};
  }
  [[nodiscard]] float At(const std::vector<uint8_t>& elements, uint64_t index) const {
    return reference::LoadElement(tile->dtype, elements.data(), index);
  }
  [[nodiscard]] std::vector<uint8_t> Encoded(const StepTile& by, uint32_t* rows) const {
    std::vector<uint8_t> strip(RawStripBytes(Shape()));
    strip.resize(reference::EncodeStepStrip(by, Source(), strip.data(), strip.size(), rows));
    return strip;
  }

 private:
  // Noise of about the spread that the profile expects, some of it far out.
  void Fill(std::mt19937_64& random) {
    std::normal_distribution<float> noise;
    source.resize(ElementCount(Shape()) * ElementBytes(tile->dtype));
    for (uint64_t i = 0; i < ElementCount(Shape()); ++i) {
      const ProfileChannel channel =
          profile.Channel(tile->plane, at, static_cast<uint32_t>(i % dim));
      const float far = random() % 97 == 0 ? 20.0F : 1.0F;
      const float value = channel.mean + far * noise(random) * Exp2(channel.spread_log);
      reference::StoreElement(tile->dtype, source.data(), i, value);
    }
    if (random() % 2 == 0) {
      const uint64_t at_random = random() % ElementCount(Shape());
      reference::StoreElement(tile->dtype, source.data(), at_random, INFINITY);
    }
  }

  std::vector<std::byte> profile_bytes_;

 public:
  uint32_t tokens;
  Profile profile;
  ProfileHead at;
  uint32_t dim = 0;
  uint64_t position = 0;
  std::unique_ptr<StepTile> tile = std::make_unique<StepTile>();
  std::vector<uint8_t> source;
};

// Half a step, and what a reconstruction point is off the middle.
double ErrorOf(const StepTile& tile, uint32_t channel) {
  const float* offsets = OffsetsOf(tile, channel);
  const double off = std::max(std::fabs(offsets[0]), std::fabs(offsets[1]));
  return (0.5 + off) * tile.channels[channel].step * 1.001;
}

// Of each element, by how much it may come back changed; without a basis.
std::vector<double> Bounds(const Case& c) {
  std::vector<double> bounds(c.dim);
  for (uint32_t i = 0; i < c.dim; ++i) bounds[i] = ErrorOf(*c.tile, i);
  for (uint32_t i = 0; i < c.tile->pairs; ++i) {
    double& first = bounds[c.profile.PairFirst(i)];
    double& second = bounds[c.profile.PairSecond(i)];
    first = second = std::hypot(first, second);
  }
  return bounds;
}

double Ulp(DType dtype, float value) {
  const double relative = dtype == DType::kBf16      ? 0x1p-8
                          : dtype == DType::kFp16    ? 0x1p-11
                          : dtype == DType::kFp8E4m3 ? 0x1.1p-4
                          : dtype == DType::kFp8E5m2 ? 0x1.1p-3
                                                     : 0x1p-20;
  return relative * std::fabs(value) + (BytesOf(dtype) == 1 ? 1e-3 : 1e-4);
}

void CheckValues(const Case& c, const std::vector<uint8_t>& decoded, const StripTokens& rows) {
  if (c.tile->has_basis) return;
  const std::vector<double> bounds = Bounds(c);
  for (uint64_t i = 0; i < ElementCount(c.Shape()); ++i) {
    const auto token = static_cast<uint32_t>(i / c.dim);
    const float before = c.At(c.source, i);
    const float after = c.At(decoded, i);
    if (rows.Has(token)) {
      ASSERT_EQ(std::memcmp(&before, &after, 4), 0) << i;
    } else {
      ASSERT_LE(std::fabs(before - after), bounds[i % c.dim] + Ulp(c.tile->dtype, after)) << i;
    }
  }
}

// Counts strips that are not raw.
void CheckRoundTrip(const Case& c, uint32_t* coded) {
  uint32_t row_count = 0;
  const std::vector<uint8_t> strip = c.Encoded(*c.tile, &row_count);
  StepStripParts parts = {};
  ASSERT_TRUE(ParseStepStrip(c.Shape(), strip.data(), strip.size(), &parts));
  ASSERT_EQ(parts.bytes, strip.size());
  ASSERT_EQ(parts.rows, row_count);
  ASSERT_EQ(CheckStepStrip(c.Shape(), strip.data(), parts), StripFault::kNone);
  std::vector<uint8_t> decoded(c.source.size());
  ASSERT_TRUE(reference::DecodeStepStrip(c.Job(parts, strip, &decoded)));
  if (parts.mode == StepStripMode::kRaw) {
    ASSERT_EQ(decoded, c.source);
    return;
  }
  ++*coded;
  StripTokens rows = {};
  for (uint32_t i = 0; i < parts.rows; ++i) rows.Add(strip[parts.position + i]);
  ASSERT_TRUE(rows.Has(0) || c.position != 0);
  CheckValues(c, decoded, rows);
  uint32_t again = 0;
  EXPECT_EQ(c.Encoded(*c.tile, &again), strip);
}

template <typename Visit>
void ForEachCase(uint64_t stream, Visit visit) {
  auto random = SeededRandom(stream);
  for (uint32_t i = 0; i < 72; ++i) {
    const ProfileShape shape = ShapeNumber(i);
    const uint32_t plane = shape.v_dim == 0 ? 0 : i / 6 % 2;
    constexpr std::array kTokens = {128U, 100U, 33U, 1U, 64U};
    const Case c(shape, plane, kTokens[i % kTokens.size()], kDTypes[i % kDTypes.size()], random);
    SCOPED_TRACE(i);
    visit(c, plane, random);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(StepPropertyTest, WhatComesBackIsWithinHalfAStep) {
  uint32_t coded = 0;
  ForEachCase(1, [&](const Case& c, uint32_t, std::mt19937_64&) { CheckRoundTrip(c, &coded); });
  EXPECT_GT(coded, 40U);
}

TEST(StepPropertyTest, DemotingIsEncodingInLargerSteps) {
  uint32_t compared = 0;
  ForEachCase(2, [&](const Case& c, uint32_t plane, std::mt19937_64&) {
    uint32_t rows = 0;
    const std::vector<uint8_t> fine = c.Encoded(*c.tile, &rows);
    StepStripParts parts = {};
    ASSERT_TRUE(ParseStepStrip(c.Shape(), fine.data(), fine.size(), &parts));
    if (parts.mode == StepStripMode::kRaw) return;
    for (uint8_t level = 1; level <= kStepLevelMax; level += 2) {
      const auto coarse = std::make_unique<StepTile>();
      c.Make(plane, c.tile->dtype, level, coarse.get());
      std::vector<uint8_t> demoted(RawStripBytes(c.Shape()));
      bool is_valid = false;
      demoted.resize(reference::DemoteStepStrip(*c.tile, *coarse, c.tokens, parts, fine.data(),
                                                demoted.data(), demoted.size(), &is_valid));
      ASSERT_TRUE(is_valid);
      EXPECT_EQ(demoted, c.Encoded(*coarse, &rows));
      EXPECT_LE(demoted.size(), fine.size());
      ++compared;
    }
  });
  EXPECT_GT(compared, 100U);
}

TEST(StepPropertyTest, DamagedStripsAreRefusedOrHarmless) {
  uint32_t refused = 0;
  uint32_t tried = 0;
  ForEachCase(3, [&](const Case& c, uint32_t, std::mt19937_64& random) {
    uint32_t rows = 0;
    const std::vector<uint8_t> strip = c.Encoded(*c.tile, &rows);
    std::vector<uint8_t> decoded(c.source.size());
    for (uint32_t i = 0; i < 60; ++i) {
      std::vector<uint8_t> damaged = strip;
      const uint64_t where = random() % (i % 2 == 0 ? 16 : damaged.size());
      damaged[where] = static_cast<uint8_t>(damaged[where] ^ 1 << random() % 8);
      if (i % 5 == 0) damaged.resize(damaged.size() - damaged.size() / 3);
      StepStripParts parts = {};
      ++tried;
      const bool is_decoded = ParseStepStrip(c.Shape(), damaged.data(), damaged.size(), &parts) &&
                              reference::DecodeStepStrip(c.Job(parts, damaged, &decoded));
      refused += is_decoded ? 0 : 1;
    }
  });
  EXPECT_GT(refused, tried / 2);
}

TEST(StepPropertyTest, RoomThatIsTooSmallIsNeverPassed) {
  ForEachCase(4, [](const Case& c, uint32_t, std::mt19937_64& random) {
    uint32_t rows = 0;
    const std::vector<uint8_t> strip = c.Encoded(*c.tile, &rows);
    const uint64_t room = random() % strip.size();
    std::vector<uint8_t> target(room + 16, 0xA5);
    EXPECT_EQ(reference::EncodeStepStrip(*c.tile, c.Source(), target.data(), room, &rows), 0U);
    EXPECT_TRUE(std::all_of(target.end() - 16, target.end(), [](uint8_t b) { return b == 0xA5; }));
  });
}

TEST(StepPropertyTest, TurningIsAsExactAsFp32) {
  auto random = SeededRandom(5);
  for (uint32_t i = 0; i < 100000; ++i) {
    const uint64_t turns = random() >> (i % 50);
    const uint64_t position = random() >> (i % 64);
    const Rotation found = RotationAt(turns, position);
    const long double phase = static_cast<long double>(turns * position) * 0x1p-64L;
    const long double angle = 2 * 3.14159265358979323846264338327950288L * phase;
    ASSERT_NEAR(found.cosine, static_cast<double>(std::cos(angle)), 1.5e-7) << turns;
    ASSERT_NEAR(found.sine, static_cast<double>(std::sin(angle)), 1.5e-7) << position;
  }
}

TEST(StepPropertyTest, CoarserCodesNest) {
  for (int32_t code = -32767; code <= 32767; ++code) {
    int32_t nested = code;
    for (uint32_t level = 1; level <= kStepLevelMax; ++level) {
      nested = Coarsen(nested, 1);
      ASSERT_EQ(nested, Coarsen(code, level)) << code;
    }
    for (uint32_t low_bits = 0; low_bits <= kStepLowBitsMax; ++low_bits) {
      const uint32_t symbol = StepSymbol(code, low_bits);
      if (symbol > 14) continue;
      ASSERT_EQ(StepCode(symbol, StepLow(code, low_bits), low_bits), code);
    }
  }
}

TEST(StepPropertyTest, SmallNormsAreTwoAtMost) {
  const StripShape shape = {64, 20, DType::kFp32, false};
  std::vector<float> v(ElementCount(shape), 1.0F);
  const auto set = [&](uint32_t token, float value) {
    std::fill_n(v.begin() + token * 20, 20, value);
  };
  const auto selected = [&] {
    StripTokens rows = {};
    SelectSmallNorms(shape, reinterpret_cast<const uint8_t*>(v.data()), &rows);
    return rows.words[0];
  };
  EXPECT_EQ(selected(), 0U);
  set(9, 0.41F);  // 0.1681 of the middle norm
  EXPECT_EQ(selected(), 0U);
  set(9, 0.39F);
  EXPECT_EQ(selected(), uint64_t{1} << 9);
  set(40, 0.1F);
  set(12, 0.1F);
  set(50, 0.1F);
  EXPECT_EQ(selected(), uint64_t{1} << 12 | uint64_t{1} << 40);
  set(3, 0.01F);
  v[3 * 20] = NAN;
  EXPECT_EQ(selected(), uint64_t{1} << 12 | uint64_t{1} << 40);
}

}  // namespace
}  // namespace cairn::codecs
