// SPDX-License-Identifier: Apache-2.0
// The recipe `arkv`: scores that come back and survive every way an image goes, tokens of infinite
// worth that are exact, codes that are kivi's, scores that lie refused.

#include <cmath>

#include "codecs/format/image_header.h"
#include "codecs/forms/form.h"
#include "codecs/image/token_reader.h"
#include "codecs/stages/select/scores.h"
#include "codecs/transform/demote.h"
#include "codecs/types/bytes.h"
#include "tests/property/codecs/images.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kArkvTokens = 96;

TEST(StoredScoreTest, IsTheNearestFp16InTheOrderOfScores) {
  EXPECT_EQ(StoredScore(NAN), 0);
  EXPECT_EQ(StoredScore(-1.0F), 0);
  EXPECT_EQ(StoredScore(-0.0F), 0);
  EXPECT_EQ(StoredScore(1.0F), 0x3C00);
  EXPECT_EQ(StoredScore(65504.0F), kScoreMax);
  EXPECT_EQ(StoredScore(65520.0F), kScoreMax);
  EXPECT_EQ(StoredScore(1.0e30F), kScoreMax);
  EXPECT_EQ(StoredScore(INFINITY), kScoreInfinite);
  uint16_t before = 0;
  for (float score = 1.0e-9F; score < 1.0e6F; score *= 1.01F) {
    EXPECT_GE(StoredScore(score), before);
    before = StoredScore(score);
  }
}

class ArkvImageTest : public testing::Test {
 protected:
  ArkvImageTest() {
    spec_ = MakeSpec(DType::kBf16, {1, 2, 0, 3}, kArkvTokens, 64, 80, RecipeNamed("arkv"));
    spec_.first_position = 256;
    source_ = RandomValues(spec_, random_);
    scores_.resize(size_t{6} * kArkvTokens);
    for (float& score : scores_) {
      score = random_() % 20 == 0 ? INFINITY : static_cast<float>(random_() % 1000) / 64;
    }
  }

  Bytes Encoded(std::span<const float> scores) const {
    return EncodeOrFail(BestBackend(), spec_, source_, {.token_scores = scores});
  }

  // Where the scores of a K tile stand in it.
  static uint64_t ScoresAt(const ImageView& view, uint32_t tile) {
    const auto layout = LayoutOf(GeometryOf(view.spec(), 0), view.spec().recipe,
                                 view.Tile(tile).form, view.Tile(tile).rows);
    EXPECT_TRUE(layout.has_value());
    EXPECT_EQ(layout->scales.bytes, 2 * kArkvTokens);
    return layout->scales.offset;
  }

  // Of head `head` of an image, the scores of `first` and on.
  void ExpectScores(const ImageView& view, uint32_t head, size_t first) const {
    const auto [layer, kv_head, plane] = view.IdOf(2 * head);
    std::vector<float> read(kArkvTokens);
    ASSERT_EQ(ReadScores(view, layer, kv_head, read), Error::kOk);
    for (uint32_t token = 0; token < kArkvTokens; ++token) {
      EXPECT_EQ(read[token], Fp16ToFloat(StoredScore(scores_[first + token]))) << token;
    }
  }

  std::mt19937_64 random_ = SeededRandom();
  ImageSpec spec_;
  Bytes source_;
  std::vector<float> scores_;
};

TEST_F(ArkvImageTest, ScoresSurviveSlicesAndCopies) {
  const Bytes image = Encoded(scores_);
  const ImageView whole = ParseOrFail(image);
  for (uint32_t head = 0; head < 6; ++head) ExpectScores(whole, head, size_t{head} * kArkvTokens);

  const Slice part{2, 1, 1, 2};
  const std::array views = {whole};
  Bytes cut(image.size());
  size_t bytes = 0;
  ASSERT_EQ(Gather(views, part, cut, &bytes), Error::kOk);
  cut.resize(bytes);
  const ImageView sliced = ParseOrFail(cut);
  for (uint32_t head = 0; head < 2; ++head) {
    ExpectScores(sliced, head, size_t{4 + head} * kArkvTokens);
  }

  Bytes copy(DemoteBytesMax(whole, spec_.recipe));
  ASSERT_EQ(Demote(BestBackend(), whole, spec_.recipe, copy, &bytes), Error::kOk);
  copy.resize(bytes);
  EXPECT_EQ(copy, image);
  EXPECT_EQ(Demote(BestBackend(), whole, RecipeNamed("kivi:2"), copy, &bytes),
            Error::kNotDemotable);
}

TEST_F(ArkvImageTest, TokensOfInfiniteWorthAreExactAndScoresChangeNoCode) {
  std::vector<float> finite = scores_;
  for (float& score : finite) score = std::isinf(score) ? 0.0F : score;
  const Bytes image = Encoded(finite);
  const Bytes decoded = DecodeOrFail(BestBackend(), ParseOrFail(image), spec_.slice);
  ImageSpec plain = spec_;
  plain.recipe = RecipeNamed("kivi:4");
  const Bytes kivi = EncodeOrFail(BestBackend(), plain, source_);
  EXPECT_EQ(decoded, DecodeOrFail(BestBackend(), ParseOrFail(kivi), spec_.slice));

  const Bytes exact = DecodeOrFail(BestBackend(), ParseOrFail(Encoded(scores_)), spec_.slice);
  uint32_t count = 0;
  for (size_t i = 0; i < scores_.size(); ++i) {
    if (!std::isinf(scores_[i])) continue;
    const size_t head = i / kArkvTokens * kArkvTokens * 2 * (64 + 80);
    for (const auto& [plane, dim] :
         {std::pair<size_t, size_t>{0, 64}, {kArkvTokens * 2 * 64, 80}}) {
      const size_t at = head + plane + i % kArkvTokens * 2 * dim;
      EXPECT_EQ(std::memcmp(exact.data() + at, source_.data() + at, 2 * dim), 0) << i;
    }
    ++count;
  }
  EXPECT_GT(count, 10U);
}

TEST_F(ArkvImageTest, WithoutScoresNothingIsKnownButTokenZero) {
  const Bytes later = Encoded({});
  EXPECT_EQ(later, Encoded(std::vector<float>(scores_.size(), 0.0F)));
  EXPECT_EQ(ParseOrFail(later).Tile(0).rows, 0);
  spec_.first_position = 0;
  const Bytes first = Encoded({});
  const ImageView view = ParseOrFail(first);
  for (uint32_t tile = 0; tile < view.tile_count(); ++tile) EXPECT_EQ(view.Tile(tile).rows, 1);
  const std::byte* stored = view.TileContent(0).data() + ScoresAt(view, 0);
  EXPECT_EQ(Load<uint16_t>(stored), kScoreInfinite);
  EXPECT_EQ(Load<uint16_t>(stored + 2), 0);

  Bytes raw_target(source_.size() + 4096);
  ImageSpec raw = spec_;
  raw.recipe = RecipeNamed("raw");
  const Bytes kept = EncodeOrFail(BestBackend(), raw, source_);
  size_t bytes = 0;
  ASSERT_EQ(Demote(BestBackend(), ParseOrFail(kept), spec_.recipe, raw_target, &bytes), Error::kOk);
  raw_target.resize(bytes);
  EXPECT_EQ(raw_target, first);
}

TEST_F(ArkvImageTest, WhatIsWorthKeepingWholeIsRaw) {
  const Bytes image = Encoded(std::vector<float>(scores_.size(), INFINITY));
  const ImageView view = ParseOrFail(image);
  for (uint32_t tile = 0; tile < view.tile_count(); ++tile) {
    EXPECT_EQ(view.Tile(tile).form, kRawForm);
  }
  Bytes target(image.size());
  size_t bytes = 0;
  const std::span<const float> few(scores_.data(), scores_.size() - 1);
  EXPECT_EQ(Encode(BestBackend(), spec_, source_, target, &bytes, {.token_scores = few}),
            Error::kSourceSize);
}

TEST_F(ArkvImageTest, ScoresThatLieAreRefused) {
  for (const uint64_t position : {0, 256}) {
    spec_.first_position = position;
    const Bytes image = Encoded({});
    const size_t scores = PrefixBytes(12) + ScoresAt(ParseOrFail(image), 0);
    const auto verify_with = [&](uint32_t token, uint16_t value) {
      Bytes changed = image;
      Store(changed.data() + scores + 2 * size_t{token}, value);
      FixTileCrc(changed, 0);
      ImageView parsed;
      EXPECT_EQ(ParseImage(changed, &parsed), Error::kOk);
      return VerifyTile(parsed, 0);
    };
    EXPECT_EQ(verify_with(5, 0x7BFF), Error::kOk);
    EXPECT_EQ(verify_with(5, kScoreInfinite), Error::kBadTile);  // and no row
    EXPECT_EQ(verify_with(5, 0x7C01), Error::kBadTile);          // NaN
    EXPECT_EQ(verify_with(5, 0x8000), Error::kBadTile);          // -0
    EXPECT_EQ(verify_with(5, 0xFC00), Error::kBadTile);
    EXPECT_EQ(verify_with(0, 0x7BFF), position == 0 ? Error::kBadTile : Error::kOk);
  }
}

}  // namespace
}  // namespace cairn::codecs
