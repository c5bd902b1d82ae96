// SPDX-License-Identifier: Apache-2.0
#include "codecs/side/profile.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "codecs/types/bytes.h"
#include "gtest/gtest.h"
#include "tests/support/profile_bytes.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

using Bytes = std::vector<std::byte>;

// Offsets of the parts of a profile of kShape.
constexpr ProfileShape kShape = {.layers = 2,
                                 .heads = 3,
                                 .k_dim = 10,
                                 .v_dim = 6,
                                 .rope = RopeKind::kHalf,
                                 .rotary_first = 2,
                                 .rotary_dims = 8};
constexpr size_t kTurns = 64;
constexpr size_t kRates = kTurns + 32;
constexpr size_t kTablesOfK = kRates + 16;
constexpr size_t kOffsetsOfK = kTablesOfK + 336;
constexpr size_t kTablesOfV = kOffsetsOfK + 48;
constexpr size_t kChannelsOfK = kTablesOfV + 336 + 48;
constexpr size_t kEnd = kChannelsOfK + 480 + 288;

Bytes Made(const ProfileShape& shape = kShape) {
  return ProfileBytes(shape, SeededRandom()).bytes();
}

Error Parsed(const Bytes& bytes) {
  Profile profile;
  return ParseProfile(bytes, &profile);
}

template <typename Value>
Bytes With(size_t offset, Value value, Bytes bytes = Made()) {
  Store(bytes.data() + offset, value);
  return bytes;
}

TEST(ProfileTest, ReadsWhatThePageDraws) {
  const Bytes bytes = Made();
  ASSERT_EQ(bytes.size(), kEnd);
  Profile profile;
  ASSERT_EQ(ParseProfile(bytes, &profile), Error::kOk);
  EXPECT_EQ(profile.planes(), 2U);
  EXPECT_EQ(profile.layers(), 2U);
  EXPECT_EQ(profile.heads(), 3U);
  EXPECT_EQ(profile.Dim(0), 10U);
  EXPECT_EQ(profile.Dim(1), 6U);
  ASSERT_EQ(profile.PairCount(), 4U);
  EXPECT_EQ(profile.PairFirst(1), 3U);
  EXPECT_EQ(profile.PairSecond(1), 7U);
  EXPECT_EQ(profile.PairTurns(3), Load<uint64_t>(bytes.data() + kTurns + 24));
  EXPECT_EQ(profile.MultiplierOf(43), -500);
  EXPECT_EQ(profile.MultiplierOf(24), std::nullopt);
  EXPECT_EQ(profile.Offsets(0)[3][1], -7.0F / 256);
  const size_t at = kChannelsOfK + 8 * ((1 * 3 + 2) * 10 + 4);
  const ProfileChannel channel = profile.Channel(0, {1, 2}, 4);
  EXPECT_EQ(channel.mean, Load<float>(bytes.data() + at));
  EXPECT_EQ(channel.step_log, Load<int16_t>(bytes.data() + at + 4));
  EXPECT_EQ(channel.spread_log, Load<int16_t>(bytes.data() + at + 6));
  uint32_t sum = 0;
  for (const uint8_t frequency : profile.Table(1, 20).frequency) sum += frequency;
  EXPECT_EQ(sum, 256U);
}

TEST(ProfileTest, ReadsABasis) {
  const Bytes bytes = Made({.heads = 2, .k_dim = 5, .v_dim = 0, .has_basis = true});
  Profile profile;
  ASSERT_EQ(ParseProfile(bytes, &profile), Error::kOk);
  EXPECT_TRUE(profile.HasBasis());
  EXPECT_EQ(profile.PairCount(), 0U);
  const size_t vectors = bytes.size() - AlignSection(size_t{2} * 5 * 5 * 2);
  EXPECT_EQ(profile.Vector({0, 1}, 2, 3),
            Fp16ToFloat(Load<uint16_t>(bytes.data() + vectors + 2 * ((5 + 2) * 5 + 3))));
  EXPECT_NEAR(profile.Scale({0, 1}, 4) * profile.ScaleInverse({0, 1}, 4), 1, 1e-6);
}

TEST(ProfileTest, FitsTheGroupItWasMadeFor) {
  const Bytes bytes = Made();
  Profile profile;
  ASSERT_EQ(ParseProfile(bytes, &profile), Error::kOk);
  const TileShape shape = {GroupKind::kKv, DType::kFp16, 10, 6};
  EXPECT_TRUE(profile.Fits(shape, {1, 1, 0, 3}));
  EXPECT_FALSE(profile.Fits(shape, {1, 2, 0, 3}));
  EXPECT_FALSE(profile.Fits(shape, {0, 2, 1, 3}));
  EXPECT_FALSE(profile.Fits({GroupKind::kKv, DType::kFp16, 10, 10}, {0, 1, 0, 1}));
  EXPECT_FALSE(profile.Fits({GroupKind::kLatent, DType::kFp16, 10, 0}, {0, 1, 0, 1}));
}

TEST(ProfileTest, RefusesHeaders) {
  EXPECT_EQ(Parsed({}), Error::kTruncated);
  EXPECT_EQ(Parsed(With<uint8_t>(0, 0)), Error::kBadMagic);
  EXPECT_EQ(Parsed(With<uint16_t>(4, 2)), Error::kBadVersion);
  EXPECT_EQ(Parsed(With<uint16_t>(6, 80)), Error::kBadHeader);
  EXPECT_EQ(Parsed(With<uint64_t>(8, kEnd + 16)), Error::kTruncated);
  EXPECT_EQ(Parsed(With<uint8_t>(16, 3)), Error::kBadHeader);
  EXPECT_EQ(Parsed(With<uint8_t>(16, 1)), Error::kBadHeader);  // and yet a v_dim
  EXPECT_EQ(Parsed(With<uint8_t>(17, 3)), Error::kBadHeader);
  EXPECT_EQ(Parsed(With<uint8_t>(17, 0)), Error::kBadHeader);  // and yet channels that turn
  EXPECT_EQ(Parsed(With<uint8_t>(18, 2)), Error::kBadHeader);
  EXPECT_EQ(Parsed(With<uint8_t>(19, 1)), Error::kBadPadding);
  EXPECT_EQ(Parsed(With<uint16_t>(20, 0)), Error::kBadHeader);
  EXPECT_EQ(Parsed(With<uint16_t>(22, 65535)), Error::kBadHeader);
  EXPECT_EQ(Parsed(With<uint32_t>(24, 1025)), Error::kBadHeader);
  EXPECT_EQ(Parsed(With<uint32_t>(28, 0)), Error::kBadHeader);
  EXPECT_EQ(Parsed(With<uint16_t>(32, 3)), Error::kBadHeader);  // past K
  EXPECT_EQ(Parsed(With<uint16_t>(34, 7)), Error::kBadHeader);
  EXPECT_EQ(Parsed(With<uint16_t>(36, 0)), Error::kBadHeader);
  EXPECT_EQ(Parsed(With<uint16_t>(36, 65)), Error::kBadHeader);
  EXPECT_EQ(Parsed(With<uint8_t>(63, 1)), Error::kBadPadding);
}

TEST(ProfileTest, RefusesParts) {
  const auto bad = Error::kBadProfile;
  EXPECT_EQ(Parsed(With<uint16_t>(kRates, 9)), bad);
  EXPECT_EQ(Parsed(With<uint16_t>(kRates, 43)), bad);  // does not ascend
  EXPECT_EQ(Parsed(With<int16_t>(kRates + 2, 4097)), bad);
  EXPECT_EQ(Parsed(With<uint8_t>(kRates + 8, 1)), Error::kBadPadding);
  Bytes bytes = Made();
  const auto middle = Load<uint8_t>(bytes.data() + kTablesOfV + 7);
  EXPECT_EQ(Parsed(With<uint8_t>(kTablesOfV + 7, middle - 1)), bad);  // sums to 255
  bytes = With<uint8_t>(kTablesOfV + 7, middle + 1);
  EXPECT_EQ(Parsed(With<uint8_t>(kTablesOfV + 15, 0, bytes)), bad);  // no escape
  EXPECT_EQ(Parsed(With<int8_t>(kOffsetsOfK + 5, -128)), bad);
  EXPECT_EQ(Parsed(With<uint8_t>(kOffsetsOfK + 42, 1)), Error::kBadPadding);
  for (const uint32_t mean : {0x7FC00000U, 0xFF800000U, 0x49800001U}) {
    EXPECT_EQ(Parsed(With(kChannelsOfK + 8, mean)), bad) << mean;
  }
  EXPECT_EQ(Parsed(With<int16_t>(kChannelsOfK + 12, 16385)), bad);
  EXPECT_EQ(Parsed(With<int16_t>(kChannelsOfK + 14, -16385)), bad);
}

TEST(ProfileTest, RefusesBases) {
  const Bytes made = Made({.heads = 1, .k_dim = 8, .v_dim = 0, .has_basis = true});
  const size_t vectors = made.size() - 128;
  EXPECT_EQ(Parsed(made), Error::kOk);
  for (const uint32_t scale : {0U, 0xBF800000U, 0x7F800000U, 0x7FC00000U, 0x357FFFFFU}) {
    EXPECT_EQ(Parsed(With(vectors - 64, scale, made)), Error::kBadProfile) << scale;
    EXPECT_EQ(Parsed(With(vectors - 4, scale, made)), Error::kBadProfile) << scale;
  }
  for (const uint16_t vector : {0x7C00, 0xFE00, 0x4001}) {
    EXPECT_EQ(Parsed(With(vectors + 10, vector, made)), Error::kBadProfile) << vector;
  }
}

TEST(ProfileTest, RefusesEveryOtherLength) {
  const Bytes made = Made();
  for (size_t bytes = 0; bytes < made.size(); ++bytes) {
    Bytes shorter(made.begin(), made.begin() + static_cast<ptrdiff_t>(bytes));
    EXPECT_EQ(Parsed(shorter), Error::kTruncated);
    if (bytes < kProfileHeaderBytes) continue;
    EXPECT_EQ(Parsed(With<uint64_t>(8, bytes, shorter)), Error::kBadProfile);
  }
  Bytes longer = made;
  longer.resize(made.size() + 16);
  EXPECT_EQ(Parsed(longer), Error::kTruncated);
  EXPECT_EQ(Parsed(With<uint64_t>(8, longer.size(), longer)), Error::kBadProfile);
}

}  // namespace
}  // namespace cairn::codecs
