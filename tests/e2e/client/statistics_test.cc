// SPDX-License-Identifier: Apache-2.0
// What comes with a put besides KV: whatever form it has, and whoever encodes it.

#include <algorithm>
#include <limits>

#include "codecs/image/token_reader.h"
#include "codecs/types/dtype.h"
#include "tests/e2e/client/client_fixture.h"

namespace cairn {
namespace {

constexpr auto kBf16 = codecs::DType::kBf16;
constexpr size_t kSquares = size_t{kLayers} * kHeads * kDim;
constexpr uint32_t kManyTokens = 128;

class StatisticsTest : public PlaneTest {
 protected:
  void SetUp() override {
    client_ = Connect(Options());
    space_ = Open(client_, ToyIdentity(kBf16, Model()), "exact");
    ASSERT_TRUE(client_ && space_);
    source_ = ToyValues(kBf16, *space_->SourceBytes({}), 5);
    added_ = Added();
  }
  static double Added() { return daemon_->Metric("cairn_query_squares_added_total"); }
  BlockKey Key(uint32_t first) const { return space_->DeriveChain(ToyTokens(1, first))[0]; }
  void ExpectStored(const BlockKey& key) {
    std::vector<std::byte> values(source_.size());
    const auto got = space_->Get({.key = key, .target = SourceTarget{values}});
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(values, source_);
  }

  std::unique_ptr<Client> client_;
  std::unique_ptr<Space> space_;
  std::vector<std::byte> source_;
  const std::vector<float> squares_ = std::vector<float>(kSquares, 0.5F);
  double added_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Over, StatisticsTest, testing::ValuesIn(Planes()), NameOfPlane);

TEST_P(StatisticsTest, EveryFormCarriesThemAndTheBlockIsAsEver) {
  const PlaneViews views = ContiguousViews(
      {{codecs::GroupKind::kKv, kBf16, kDim, kDim}, kLayers, kHeads, kTokens}, source_.data());
  auto buffer = client_->AllocateBuffer(source_.size(), kPatience);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  std::memcpy(buffer->bytes().data(), source_.data(), source_.size());
  uint32_t count = 0;
  for (const Side encode : {Side::kDaemon, Side::kClient}) {
    const std::variant<PlaneViews, SourceBytes, ImageBytes> sources[] = {
        views, SourceBytes{source_}, SourceBytes{buffer->bytes()}};
    for (const auto& source : sources) {
      const BlockKey key = Key(++count);
      const auto put =
          space_->Put({.key = key, .encode = encode, .source = source, .query_squares = squares_});
      ASSERT_TRUE(put.ok()) << put.status();
      EXPECT_FALSE(put->is_duplicate);
      ExpectStored(key);
    }
  }
  EXPECT_EQ(Added() - added_, 6);
  std::vector<std::byte> image(*space_->ImageBytesMax({}));
  const auto got = space_->Get({.key = Key(1), .target = ImageTarget{image}});
  ASSERT_TRUE(got.ok()) << got.status();
  image.resize(got->bytes);
  const PutRequest again = {.key = Key(1), .source = ImageBytes{image}, .query_squares = squares_};
  EXPECT_TRUE(space_->Put(again)->is_duplicate);
  EXPECT_EQ(Added() - added_, 6) << "counted already";
  ASSERT_TRUE(space_->Invalidate().ok());
  ASSERT_TRUE(space_->Put(again).ok());
  ExpectStored(Key(1));
  EXPECT_EQ(Added() - added_, 7);
}

TEST_P(StatisticsTest, MagnitudesAndScoresAreCodedWithOnEitherSide) {
  const auto open = [&](const char* model, const char* recipe) {
    proto::SpaceIdentity identity = ToyIdentity(kBf16, model);
    identity.tokens_per_block = kManyTokens;
    return Open(client_, identity, recipe);
  };
  const auto image_of = [](Space& space, uint32_t number, PutRequest put) {
    put.key = space.DeriveChain(ToyTokens(kManyTokens / kTokens, number))[0];
    const auto source = ToyValues(kBf16, *space.SourceBytes({}), 5);
    put.source = SourceBytes{source};
    put.first_position = kManyTokens;  // of the first token of all, scores are infinite
    EXPECT_TRUE(space.Put(put).ok());
    std::vector<std::byte> image(*space.ImageBytesMax({}));
    const auto got = space.Get({.key = put.key, .target = ImageTarget{image}});
    EXPECT_TRUE(got.ok()) << got.status();
    image.resize(got.ok() ? got->bytes : 0);
    return image;
  };
  // The same but for its key.
  const auto tiles = [](const std::vector<std::byte>& image) {
    codecs::ImageView view;
    EXPECT_EQ(codecs::ParseImage(image, &view), codecs::Error::kOk);
    std::vector<std::byte> all;
    for (uint32_t tile = 0; tile < view.tile_count(); ++tile) {
      const auto bytes = view.TileContent(tile);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  };
  std::vector<float> magnitudes(kSquares, 0.01F);
  for (size_t i = 0; i < kSquares; i += 7) magnitudes[i] = 50;
  const auto mixed = open("mixed", "mixkvq");
  const auto without = tiles(image_of(*mixed, 1, {}));
  const auto by_daemon = tiles(image_of(*mixed, 2, {.query_magnitudes = magnitudes}));
  EXPECT_NE(by_daemon, without);
  EXPECT_EQ(tiles(image_of(*mixed, 3, {.encode = Side::kClient, .query_magnitudes = magnitudes})),
            by_daemon);

  std::vector<float> scores(size_t{kLayers} * kHeads * kManyTokens);
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(1 + i % 50) / 64;
  const auto scored = open("scored", "arkv");
  uint32_t number = 0;
  for (const Side encode : {Side::kDaemon, Side::kClient}) {
    const auto image = image_of(*scored, ++number, {.encode = encode, .token_scores = scores});
    codecs::ImageView view;
    ASSERT_EQ(codecs::ParseImage(image, &view), codecs::Error::kOk);
    std::vector<float> read(kManyTokens);
    for (uint16_t head = 0; head < kLayers * kHeads; ++head) {
      ASSERT_EQ(codecs::ReadScores(view, head / kHeads, head % kHeads, read), codecs::Error::kOk);
      EXPECT_TRUE(
          std::ranges::equal(read, std::span(scores).subspan(head * kManyTokens, kManyTokens)));
    }
  }
  const absl::Status again =
      scored->Put({.key = Key(1), .source = ImageBytes{source_}, .token_scores = scores}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(again)) << again;
  EXPECT_THAT(std::string(again.message()), testing::HasSubstr("token_scores: the source is an"));
  const absl::Status few = scored
                               ->Put({.key = Key(1),
                                      .source = SourceBytes{source_},
                                      .token_scores = std::span(squares_).first(7)})
                               .status();
  EXPECT_THAT(std::string(few.message()), testing::HasSubstr("(layers x heads x tokens)"));
}

TEST_P(StatisticsTest, ASliceHasItsOwn) {
  const GroupSlice right{.head_first = 2, .head_count = 2};
  const std::vector<std::byte> part = ToyValues(kBf16, *space_->SourceBytes(right), 6);
  const auto put = [&](std::span<const float> squares) {
    return space_
        ->Put(
            {.key = Key(1), .slice = right, .source = SourceBytes{part}, .query_squares = squares})
        .status();
  };
  const absl::Status whole = put(squares_);
  EXPECT_TRUE(absl::IsInvalidArgument(whole)) << whole;
  EXPECT_THAT(std::string(whole.message()),
              testing::HasSubstr("query_squares has 512 values; the slice has 256"));
  EXPECT_TRUE(put(std::span(squares_).first(kSquares / 2)).ok());
  EXPECT_EQ(Added() - added_, 1);
}

TEST_P(StatisticsTest, WhatIsNoSquareIsRefusedByName) {
  std::vector<float> squares = squares_;
  const auto put = [&] {
    return space_->Put({.key = Key(1), .source = SourceBytes{source_}, .query_squares = squares})
        .status();
  };
  for (const float wrong :
       {-1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    squares[3 * kHeads * kDim + kDim + 7] = wrong;
    const absl::Status status = put();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("at layer 3, head 1, channel 7: finite and not negative"));
  }
  EXPECT_EQ(Added(), added_);
  squares = squares_;
  EXPECT_TRUE(put().ok());
  ExpectStored(Key(1));
}

}  // namespace
}  // namespace cairn
