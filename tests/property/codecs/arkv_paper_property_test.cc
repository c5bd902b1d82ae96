// SPDX-License-Identifier: Apache-2.0
// The recipe `arkv:paper`: three states of tokens, heads that differ, what is gone is told by the
// map, budgets hold in bytes, maps that lie are refused.

#include <algorithm>
#include <cmath>

#include "codecs/format/image_header.h"
#include "codecs/forms/form.h"
#include "codecs/forms/kept.h"
#include "codecs/image/token_reader.h"
#include "codecs/stages/select/token_plan.h"
#include "codecs/transform/demote.h"
#include "codecs/types/bytes.h"
#include "tests/property/codecs/images.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kPaperTokens = 100;
constexpr uint32_t kHeads = 6;
constexpr uint32_t kKDim = 64;
constexpr uint32_t kVDim = 80;

class ArkvPaperTest : public testing::Test {
 protected:
  ArkvPaperTest() {
    spec_ =
        MakeSpec(DType::kBf16, {1, 2, 0, 3}, kPaperTokens, kKDim, kVDim, RecipeNamed("arkv:paper"));
    source_ = RandomValues(spec_, random_);
    states_.resize(size_t{kHeads} * kPaperTokens);
    for (uint8_t& state : states_) state = random_() % 3;
  }

  Bytes Encoded() const {
    return EncodeOrFail(BestBackend(), spec_, source_, {.token_states = states_});
  }

  // Calls visit(index of the state, offset, bytes) for each row of each plane in the source.
  template <typename Visit>
  static void ForEachRow(const Visit& visit) {
    for (size_t i = 0; i < size_t{kHeads} * kPaperTokens; ++i) {
      const size_t head = i / kPaperTokens * kPaperTokens * 2 * (kKDim + kVDim);
      visit(i, head + i % kPaperTokens * 2 * kKDim, 2 * kKDim);
      visit(i, head + kPaperTokens * 2 * kKDim + i % kPaperTokens * 2 * kVDim, 2 * kVDim);
    }
  }

  std::mt19937_64 random_ = SeededRandom();
  ImageSpec spec_;
  Bytes source_;
  std::vector<uint8_t> states_;
};

TEST_F(ArkvPaperTest, StatesAreExactOrFp8OrGone) {
  StoreValue(DType::kBf16, source_.data(), 5 * kKDim + 1, NAN);  // cannot be coded
  states_[5] = 1;
  states_[6] = 0;
  const Bytes image = Encoded();
  const ImageView view = ParseOrFail(image);
  const Bytes decoded = DecodeOrFail(BestBackend(), view, spec_.slice);
  ImageSpec fp8 = spec_;
  fp8.recipe = RecipeNamed("fp8");
  const Bytes low = DecodeOrFail(
      BestBackend(), ParseOrFail(EncodeOrFail(BestBackend(), fp8, source_)), spec_.slice);
  const Bytes zeros(size_t{2} * kVDim);
  ForEachRow([&](size_t i, size_t at, size_t bytes) {
    const std::byte* expected = states_[i] == 2   ? source_.data() + at
                                : states_[i] == 1 ? low.data() + at
                                                  : zeros.data();
    EXPECT_EQ(std::memcmp(decoded.data() + at, expected, bytes), 0) << i;
  });
  std::vector<uint8_t> kept(kPaperTokens);
  for (uint32_t head = 0; head < kHeads; ++head) {
    const auto [layer, kv_head, plane] = view.IdOf(2 * head);
    ASSERT_EQ(ReadKept(view, layer, kv_head, kept), Error::kOk);
    for (uint32_t token = 0; token < kPaperTokens; ++token) {
      EXPECT_EQ(kept[token], states_[head * kPaperTokens + token] == 0 ? 0 : 1);
    }
  }
  EXPECT_EQ(ReadKept(view, 9, 0, kept), Error::kInvalidSlice);
}

TEST_F(ArkvPaperTest, WithoutAPlanAllTokensAreLow) {
  states_.clear();
  const Bytes image = Encoded();
  ImageSpec fp8 = spec_;
  fp8.recipe = RecipeNamed("fp8");
  const Bytes plain = EncodeOrFail(BestBackend(), fp8, source_);
  EXPECT_EQ(DecodeOrFail(BestBackend(), ParseOrFail(image), spec_.slice),
            DecodeOrFail(BestBackend(), ParseOrFail(plain), spec_.slice));
  ImageSpec raw = spec_;
  raw.recipe = RecipeNamed("raw");
  const Bytes kept = EncodeOrFail(BestBackend(), raw, source_);
  Bytes target(DemoteBytesMax(ParseOrFail(kept), spec_.recipe));
  size_t bytes = 0;
  ASSERT_EQ(Demote(BestBackend(), ParseOrFail(kept), spec_.recipe, target, &bytes), Error::kOk);
  target.resize(bytes);
  EXPECT_EQ(target, image);
  EXPECT_EQ(Demote(BestBackend(), ParseOrFail(image), RecipeNamed("kivi:4"), target, &bytes),
            Error::kNotDemotable);
}

TEST_F(ArkvPaperTest, EveryCountShowsInTheBytes) {
  for (const uint32_t dim : {16U, 17U, 80U}) {
    for (const uint32_t rows : {0U, 1U, 9U}) {
      const TileGeometry geometry{Plane::kV, DType::kBf16, kPaperTokens, dim};
      for (uint32_t low = 0; low + rows <= kPaperTokens; ++low) {
        const auto made = KeptLayoutOf(geometry, rows, low);
        if (!made.has_value()) continue;
        const auto found = LayoutOf(geometry, spec_.recipe, kKeptForm, rows, made->bytes);
        ASSERT_TRUE(found.has_value());
        EXPECT_EQ(found->scales.bytes, 2 * low);
        EXPECT_EQ(found->bytes, made->bytes);
        const auto odd = LayoutOf(geometry, spec_.recipe, kKeptForm, rows, made->bytes + 8);
        EXPECT_TRUE(!odd.has_value() || odd->bytes != made->bytes + 8);
      }
    }
  }
  EXPECT_FALSE(KeptLayoutOf({Plane::kV, DType::kBf16, kPaperTokens, 15}, 0, 1).has_value());
}

TEST_F(ArkvPaperTest, ABudgetHoldsInBytesForEachHead) {
  const TokenBudget budget{4000, 2 * (kKDim + kVDim) + 4, kKDim + kVDim + 4, 0.5};
  std::vector<float> scores(states_.size());
  for (float& score : scores) score = static_cast<float>(random_() % 100);
  std::vector<TokenState> planned(states_.size());
  for (uint32_t head = 0; head < kHeads; ++head) {
    PlanTokens(budget, std::span(scores).subspan(head * kPaperTokens, kPaperTokens),
               std::span(planned).subspan(head * kPaperTokens, kPaperTokens));
  }
  std::ranges::transform(planned, states_.begin(), [](TokenState s) { return uint8_t(s); });
  const Bytes image = Encoded();
  const ImageView view = ParseOrFail(image);
  const uint64_t beside = 2 * ((kPaperTokens + 7) / 8 + 30);  // maps, and two ends of sections each
  for (uint32_t head = 0; head < kHeads; ++head) {
    const uint64_t bytes = view.Tile(2 * head).bytes + view.Tile(2 * head + 1).bytes;
    EXPECT_LE(bytes, budget.bytes + beside);
    EXPECT_GT(bytes + budget.original_bytes, budget.bytes);
  }
}

TEST_F(ArkvPaperTest, AHeadMayLoseAllOrKeepAll) {
  std::fill_n(states_.begin(), kPaperTokens, uint8_t{0});
  std::fill_n(states_.begin() + kPaperTokens, kPaperTokens, uint8_t{2});
  std::fill_n(states_.begin() + 2 * kPaperTokens, kPaperTokens, uint8_t{2});
  states_[2 * kPaperTokens + 3] = 0;  // whose loss would cost more than it saves
  const Bytes image = Encoded();
  const ImageView view = ParseOrFail(image);
  EXPECT_EQ(view.Tile(0).bytes, 16U);
  EXPECT_EQ(view.Tile(2).form, kRawForm);
  EXPECT_EQ(view.Tile(4).form, kRawForm);
  std::vector<uint8_t> kept(kPaperTokens);
  ASSERT_EQ(ReadKept(view, 1, 0, kept), Error::kOk);
  EXPECT_EQ(std::ranges::count(kept, 1), 0);
  ASSERT_EQ(ReadKept(view, 1, 2, kept), Error::kOk);
  EXPECT_EQ(std::ranges::count(kept, 1), kPaperTokens);
  const Bytes decoded = DecodeOrFail(BestBackend(), view, {1, 1, 0, 1});
  EXPECT_TRUE(IsZero(decoded.data(), decoded.size()));
}

TEST_F(ArkvPaperTest, MapsThatLieAreRefused) {
  const Bytes image = Encoded();
  const ImageView view = ParseOrFail(image);
  const TileEntry entry = view.Tile(0);
  const TileGeometry geometry = GeometryOf(spec_, 0);
  const auto layout = LayoutOf(geometry, spec_.recipe, entry.form, entry.rows, entry.bytes);
  ASSERT_TRUE(layout.has_value());
  const auto verify_with = [&](uint64_t at, uint8_t flipped) {
    Bytes changed = image;
    changed[PrefixBytes(2 * kHeads) + at] ^= static_cast<std::byte>(flipped);
    FixTileCrc(changed, 0);
    ImageView parsed;
    EXPECT_EQ(ParseImage(changed, &parsed), Error::kOk);
    Bytes decoded(source_.size());
    EXPECT_EQ(Decode(BestBackend(), parsed, spec_.slice, decoded), Error::kOk);
    return VerifyTile(parsed, 0);
  };
  EXPECT_EQ(verify_with(layout->kept_map.offset, 0), Error::kOk);
  EXPECT_EQ(verify_with(layout->kept_map.offset, 1), Error::kBadTile);          // one more or fewer
  EXPECT_EQ(verify_with(layout->kept_map.offset + 12, 0x10), Error::kBadTile);  // token 100
  EXPECT_EQ(verify_with(layout->positions.offset + 1, 0x40), Error::kBadTile);
  EXPECT_EQ(verify_with(layout->scales.offset + 1, 0x80), Error::kBadTile);
  // A row for a low token, both of which the map has.
  const auto first = Load<uint16_t>(view.TileContent(0).data() + layout->positions.offset);
  uint32_t gone = 0;
  while (states_[gone] != 0) ++gone;
  if (gone < Load<uint16_t>(view.TileContent(0).data() + layout->positions.offset + 2)) {
    EXPECT_EQ(verify_with(layout->positions.offset, static_cast<uint8_t>(first ^ gone)),
              Error::kBadTile);
  }
}

TEST_F(ArkvPaperTest, MapsSurviveSlices) {
  const Bytes image = Encoded();
  const std::array views = {ParseOrFail(image)};
  Bytes cut(image.size());
  size_t bytes = 0;
  ASSERT_EQ(Gather(views, {2, 1, 1, 2}, cut, &bytes), Error::kOk);
  cut.resize(bytes);
  std::vector<uint8_t> kept(kPaperTokens);
  std::vector<uint8_t> expected(kPaperTokens);
  ASSERT_EQ(ReadKept(views[0], 2, 1, expected), Error::kOk);
  ASSERT_EQ(ReadKept(ParseOrFail(cut), 2, 1, kept), Error::kOk);
  EXPECT_EQ(kept, expected);
}

TEST(ArkvPaperNameTest, NoPolicyNamesIt) {
  Recipe recipe;
  EXPECT_EQ(ParsePolicyRecipe("arkv:paper", &recipe), Error::kUnknownRecipe);
  EXPECT_EQ(ParseRecipe("arkv:paper", &recipe), Error::kUnknownRecipe);
  ASSERT_EQ(ParsePlannedRecipe("arkv:paper", &recipe), Error::kOk);
  EXPECT_EQ(FormatRecipe(recipe), "arkv:paper");
  recipe.variant = 2;
  EXPECT_FALSE(IsKnown(recipe));
}

}  // namespace
}  // namespace cairn::codecs
