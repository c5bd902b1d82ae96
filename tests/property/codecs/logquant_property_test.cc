// SPDX-License-Identifier: Apache-2.0
// The recipe `logquant`: the published schedule's figures, rows that only ever go, density that
// halves, thinning that equals encoding, codes that are kivi's, rows that lie refused.

#include <algorithm>

#include "codecs/format/image_header.h"
#include "codecs/forms/form.h"
#include "codecs/stages/select/log_rows.h"
#include "codecs/transform/demote.h"
#include "codecs/transform/thin.h"
#include "codecs/types/bytes.h"
#include "tests/property/codecs/images.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

// Algorithm 1 of the paper, by the list it keeps: what it says, not what is done here.
std::vector<uint32_t> PublishedRows(uint32_t window, uint32_t tokens) {
  std::vector<uint32_t> kept;
  for (uint32_t token = 0; token < tokens; ++token) {
    if (kept.size() == size_t{3} * window) {
      std::vector<uint32_t> thinned;
      for (uint32_t i = 0; i < 2 * window; i += 2) thinned.push_back(kept[i]);
      thinned.insert(thinned.end(), kept.begin() + 2 * window, kept.end());
      kept = thinned;
    }
    kept.push_back(token);
  }
  return kept;
}

std::vector<uint32_t> RowsOf(uint32_t chain, LogVariant variant) {
  std::vector<uint32_t> rows;
  for (uint32_t p = 0; p < chain; ++p) {
    if (RowUntil(p, variant) >= chain) rows.push_back(p);
  }
  return rows;
}

TEST(LogQuantScheduleTest, ThePublishedListHasThePublishedFigures) {
  EXPECT_EQ(PublishedRows(8, 24).size(), 24U);
  const std::vector<uint32_t> of_25 = PublishedRows(8, 25);
  EXPECT_EQ(of_25.size(), 17U);
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(of_25[i], 2 * i);
  EXPECT_EQ(of_25[8], 16U);
  const std::vector<uint32_t> of_1000 = PublishedRows(8, 1000);
  EXPECT_EQ(of_1000.size(), 24U);
  const std::vector<uint32_t> oldest = {0, 960, 968, 972, 976, 978, 980, 982};
  EXPECT_TRUE(std::equal(oldest.begin(), oldest.end(), of_1000.begin()));
  EXPECT_EQ(PublishedRows(kLogWindow, 127).size(), 85U);
  EXPECT_EQ(PublishedRows(kLogWindow, 1000).size(), 118U);
  EXPECT_EQ(PublishedRows(kLogWindow, 5000).size(), 86U);
}

// Aligned to the chain instead of to the list, the rule keeps as many, as densely, and place 0.
TEST(LogQuantScheduleTest, TheAlignedRuleKeepsAsManyAsThePublishedList) {
  for (uint32_t chain = 400; chain < 3000; chain += 37) {
    const std::vector<uint32_t> rows = RowsOf(chain, LogVariant::kHalving);
    EXPECT_GE(rows.size(), 2 * kLogWindow);
    EXPECT_LE(rows.size(), 4 * kLogWindow);
    EXPECT_EQ(rows[0], 0U);
    EXPECT_GE(rows[1], chain - 294);
    for (uint32_t p = chain - 84; p < chain; ++p) {
      EXPECT_TRUE(std::binary_search(rows.begin(), rows.end(), p));
    }
    for (uint32_t level = 1; level <= 4; ++level) {
      const uint32_t end = chain - (level + 1) * kLogWindow;
      const auto count =
          std::ranges::count_if(rows, [&](uint32_t p) { return p < end && p >= end - kLogWindow; });
      EXPECT_NEAR(static_cast<double>(count), double{kLogWindow} / (1 << level), 1) << level;
    }
  }
}

TEST(LogQuantScheduleTest, OctavesReachTheWholeChain) {
  const uint32_t chain = 100000;
  const std::vector<uint32_t> rows = RowsOf(chain, LogVariant::kOctaves);
  for (uint32_t age = 2 * kLogWindow; age < chain / 2; age *= 2) {
    const auto count = std::ranges::count_if(
        rows, [&](uint32_t p) { return chain - 1 - p >= age && chain - 1 - p < 2 * age; });
    EXPECT_NEAR(static_cast<double>(count), kLogWindow, 1) << age;
  }
}

TEST(LogQuantScheduleTest, RowsOnlyEverGo) {
  for (const LogVariant variant : {LogVariant::kHalving, LogVariant::kOctaves}) {
    std::vector<uint32_t> before = RowsOf(900, variant);
    for (uint32_t chain = 901; chain < 1500; ++chain) {
      std::vector<uint32_t> rows = RowsOf(chain, variant);
      ASSERT_EQ(rows.back(), chain - 1);
      rows.pop_back();
      EXPECT_TRUE(std::ranges::includes(before, rows)) << chain;
      before = RowsOf(chain, variant);
    }
  }
  EXPECT_EQ(RowUntil(uint64_t{1} << 60, LogVariant::kOctaves), ~uint64_t{0});
}

class LogQuantImageTest : public testing::TestWithParam<const char*> {
 protected:
  LogQuantImageTest() {
    spec_ = MakeSpec(DType::kBf16, {1, 2, 0, 2}, 128, 64, 80, RecipeNamed(GetParam()));
    spec_.first_position = 128 * (random_() % 9);
    source_ = RandomValues(spec_, random_);
    StoreValue(DType::kBf16, source_.data(), 64 * 17 + 3, NAN);
  }

  Bytes EncodedIn(uint64_t chain) const {
    return EncodeOrFail(BestBackend(), spec_, source_, {.chain_tokens = chain});
  }

  Bytes Thinned(const Bytes& image, uint64_t chain) const {
    Bytes target(source_.size() + 4096);
    size_t bytes = 0;
    EXPECT_EQ(Thin(BestBackend(), ParseOrFail(image), chain, target, &bytes), Error::kOk);
    target.resize(bytes);
    return target;
  }

  [[nodiscard]] uint64_t End() const { return spec_.first_position + spec_.tokens; }

  std::mt19937_64 random_ = SeededRandom();
  ImageSpec spec_;
  Bytes source_;
};

TEST_P(LogQuantImageTest, ThinningIsEncodingInALongerChain) {
  const Bytes sealed = EncodedIn(0);
  EXPECT_EQ(sealed, EncodedIn(End()));
  Bytes before = sealed;
  for (uint64_t more = 0; more < 700; more += 1 + random_() % 60) {
    const Bytes thinned = Thinned(sealed, End() + more);
    EXPECT_EQ(thinned, EncodedIn(End() + more)) << more;
    EXPECT_EQ(thinned, Thinned(before, End() + more)) << more;
    EXPECT_LE(thinned.size(), before.size());
    static_cast<void>(ParseOrFail(thinned));
    before = thinned;
  }
}

TEST_P(LogQuantImageTest, RowsAreExactAndTheRestIsKivis) {
  const uint64_t chain = End() + 30;
  const Bytes image = EncodedIn(chain);
  const Bytes decoded = DecodeOrFail(BestBackend(), ParseOrFail(image), spec_.slice);
  ImageSpec plain = spec_;
  plain.recipe = RecipeNamed(spec_.recipe.bits == 4 ? "kivi:4" : "kivi:2");
  const Bytes kivi = EncodeOrFail(BestBackend(), plain, source_);
  const Bytes kivi_decoded = DecodeOrFail(BestBackend(), ParseOrFail(kivi), spec_.slice);
  uint32_t exact = 0;
  for (uint32_t token = 0; token < spec_.tokens; ++token) {
    const size_t at = size_t{token} * 128;
    const bool is_row =
        token == 17 || RowUntil(spec_.first_position + token,
                                static_cast<LogVariant>(spec_.recipe.variant)) >= chain;
    const Bytes& expected = is_row ? source_ : kivi_decoded;
    EXPECT_EQ(std::memcmp(decoded.data() + at, expected.data() + at, 128), 0) << token;
    exact += is_row ? 1 : 0;
  }
  EXPECT_GT(exact, 20U);
}

TEST_P(LogQuantImageTest, OldBlocksAreKivis) {
  if (spec_.recipe.variant != 0 || spec_.first_position == 0) return;
  ImageSpec plain = spec_;
  plain.recipe = RecipeNamed(spec_.recipe.bits == 4 ? "kivi:4" : "kivi:2");
  const Bytes kivi = EncodeOrFail(BestBackend(), plain, source_);
  const Bytes image = EncodedIn(End() + 300);
  for (uint32_t i = 2; i < 8; ++i) {  // whose heads have no row that stays
    EXPECT_TRUE(
        std::ranges::equal(ParseOrFail(image).TileContent(i), ParseOrFail(kivi).TileContent(i)));
  }
}

TEST_P(LogQuantImageTest, RowsThatLieAreRefused) {
  const Bytes image = EncodedIn(End() + 40);
  const ImageView view = ParseOrFail(image);
  const auto layout =
      LayoutOf(GeometryOf(spec_, 0), spec_.recipe, view.Tile(0).form, view.Tile(0).rows);
  ASSERT_TRUE(layout.has_value());
  const size_t positions = PrefixBytes(8) + layout->positions.offset;
  const auto verify_with = [&](uint32_t row, uint16_t value) {
    Bytes changed = image;
    Store(changed.data() + positions + 2 * size_t{row}, value);
    FixTileCrc(changed, 0);
    ImageView parsed;
    EXPECT_EQ(ParseImage(changed, &parsed), Error::kOk);
    Bytes decoded(source_.size());
    EXPECT_EQ(Decode(BestBackend(), parsed, spec_.slice, decoded), Error::kOk);
    return VerifyTile(parsed, 0);
  };
  const uint32_t last = view.Tile(0).rows - 1;
  const auto stored = Load<uint16_t>(image.data() + positions + 2 * size_t{last});
  EXPECT_EQ(verify_with(last, stored), Error::kOk);
  EXPECT_EQ(verify_with(last, stored ^ 1), Error::kBadTile);
  EXPECT_EQ(verify_with(last, stored | kRowStays), Error::kBadTile);
  EXPECT_EQ(verify_with(last, 128), Error::kBadTile);
  EXPECT_EQ(verify_with(0, 17), Error::kBadTile);  // it stays, but does not say so
}

TEST_P(LogQuantImageTest, OthersAreNotThinned) {
  Bytes target(source_.size() + 4096);
  size_t bytes = 0;
  ImageSpec plain = spec_;
  plain.recipe = RecipeNamed("kivi:2");
  const Bytes image = EncodeOrFail(BestBackend(), plain, source_);
  EXPECT_EQ(Thin(BestBackend(), ParseOrFail(image), 1000, target, &bytes), Error::kNotDemotable);
  const Bytes own = EncodedIn(0);
  EXPECT_EQ(Thin(BestBackend(), ParseOrFail(own), 1000, std::span(target).first(400), &bytes),
            Error::kTargetTooSmall);
}

INSTANTIATE_TEST_SUITE_P(Recipes, LogQuantImageTest,
                         testing::Values("logquant:4", "logquant:2", "logquant:4/log",
                                         "logquant:2/log"),
                         [](const auto& info) { return std::to_string(info.index); });

}  // namespace
}  // namespace cairn::codecs
