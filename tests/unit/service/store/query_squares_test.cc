// SPDX-License-Identifier: Apache-2.0
// Squared queries: sums over blocks and ranks, and what they may take.
#include "service/index/query_squares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/metric_capture.h"
#include "tests/support/store_fixture.h"

namespace cairn {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kGroupBytes = 2 * 2 * (3 + 1) * 8;  // sums and counts of the shape below

codecs::GroupShape Shape() {
  codecs::GroupShape shape;
  shape.tile.k_dim = 3;
  shape.layers = 2;
  shape.heads = 2;
  return shape;
}

class QuerySquaresTest : public testing::Test {
 protected:
  bool Add(const GroupPlace& place, const codecs::Slice& slice, std::vector<float> means,
           uint32_t tokens = 16) {
    return squares_.Add(place, Shape(), slice, means, tokens);
  }
  QuerySquares squares_{8 * kGroupBytes};
};

TEST_F(QuerySquaresTest, RanksAndBlocksAreOneMeanOverTheirTokens) {
  const GroupPlace place = {1, 0, "a"};
  EXPECT_TRUE(squares_.Get(1, 0).means.empty());
  ASSERT_TRUE(Add(place, {0, 2, 0, 1}, {1, 2, 3, 4, 5, 6}));
  auto snapshot = squares_.Get(1, 0);
  EXPECT_EQ(snapshot.tokens, 0u) << "nothing is known of head 1";
  EXPECT_EQ(squares_.TokensOf(1, 0), 0u);
  EXPECT_THAT(snapshot.means, ElementsAre(1, 2, 3, 0, 0, 0, 4, 5, 6, 0, 0, 0));
  ASSERT_TRUE(Add(place, {0, 2, 1, 1}, {7, 8, 9, 10, 11, 12}, 48));
  ASSERT_TRUE(Add(place, {1, 1, 0, 2}, {0, 1, 2, 2, 3, 4}, 16));
  snapshot = squares_.Get(1, 0);
  EXPECT_EQ(snapshot.tokens, 16u);
  EXPECT_EQ(squares_.TokensOf(1, 0), 16u);
  EXPECT_EQ(squares_.TokensOf(1, 1), 0u);
  EXPECT_THAT(snapshot.means, ElementsAre(1, 2, 3, 7, 8, 9, 2, 3, 4, 8, 9, 10));
  EXPECT_TRUE(squares_.Get(1, 1).means.empty());
  EXPECT_TRUE(squares_.Get(2, 0).means.empty());
}

TEST_F(QuerySquaresTest, TheLargestValuesStayFinite) {
  const std::vector<float> largest(12, std::numeric_limits<float>::max());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Add({1, 0, "a"}, {0, 2, 0, 2}, largest, 1024));
  EXPECT_THAT(squares_.Get(1, 0).means, Each(std::numeric_limits<float>::max()));
}

TEST_F(QuerySquaresTest, LimitsAreKeptAndGivenBackWithTheSpace) {
  const codecs::Slice one = {0, 1, 0, 1};
  for (const uint64_t space : {1, 2}) {
    EXPECT_TRUE(Add({space, 0, "a"}, one, {1, 1, 1}));
    EXPECT_TRUE(Add({space, 1, "a"}, one, {1, 1, 1}));
  }
  EXPECT_FALSE(Add({2, 2, "a"}, one, {1, 1, 1})) << "half of the total";
  EXPECT_TRUE(Add({1, 1, "a"}, one, {3, 3, 3})) << "what is there goes on";
  EXPECT_TRUE(Add({3, 0, "b"}, one, {1, 1, 1}));
  EXPECT_FALSE(Add({3, 1, "b"}, one, {1, 1, 1})) << "an eighth, beside half";
  EXPECT_EQ(squares_.bytes(), 5 * kGroupBytes);
  MetricCapture metrics;
  squares_.Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_query_squares_bytes"), 5 * kGroupBytes);
  EXPECT_EQ(metrics.Value("cairn_query_squares_added_total"), 6);
  EXPECT_EQ(metrics.Value("cairn_limit_refusals_total{limit=\"query_squares_bytes\"}"), 2);
  squares_.Forget(1);
  EXPECT_EQ(squares_.bytes(), 3 * kGroupBytes);
  EXPECT_TRUE(squares_.Get(1, 1).means.empty());
  EXPECT_TRUE(Add({2, 2, "a"}, one, {1, 1, 1}));
}

// --- With a put
// ----------------------------------------------------------------------------------

class PutQuerySquaresTest : public testing::Test {
 protected:
  static constexpr codecs::Slice kWhole = {0, 2, 0, 4}, kLeft = {0, 2, 0, 2}, kRight = {0, 2, 2, 2};

  // Squares that tell where they are of, times `scale`.
  static std::vector<float> Squares(const codecs::Slice& slice, float scale = 1) {
    std::vector<float> squares;
    for (uint32_t l = slice.layer_first; l < slice.layer_first + slice.layer_count; ++l) {
      for (uint32_t h = slice.head_first; h < slice.head_first + slice.head_count; ++h) {
        for (uint32_t c = 0; c < 32; ++c) {
          squares.push_back(scale * static_cast<float>(l * 1000 + h * 100 + c));
        }
      }
    }
    return squares;
  }
  absl::StatusOr<proto::PutReply> Put(const proto::BlockKey& key, const codecs::Slice& slice,
                                      const std::vector<float>& squares,
                                      proto::Form form = proto::Form::kSource) {
    auto payload = form == proto::Form::kSource ? StoreFixture::Source(space_, key, 0, slice)
                                                : StoreFixture::Image(space_, key, slice, "raw");
    const auto bytes = std::as_bytes(std::span(squares));
    payload.insert(payload.end(), bytes.begin(), bytes.end());
    auto frame = StoreFixture::PutFrame(space_, key, slice, payload, form);
    std::get<proto::Put>(frame.body).statistics.Add(proto::Statistic::kQuerySquares);
    return store_.RunPut(frame, payload, store_.session);
  }
  QuerySquares::Snapshot Get() { return store_.query_squares.Get(space_.id(), 0); }

  StoreFixture store_;
  SpaceEntry& space_ = store_.OpenSpace("exact");
};

TEST_F(PutQuerySquaresTest, TheyAreCountedOncePerSliceAndTheBlockIsAsEver) {
  const auto key = StoreFixture::Key(1);
  ASSERT_TRUE(Put(key, kLeft, Squares(kLeft)).ok());
  EXPECT_EQ(Get().tokens, 0u) << "half of the heads";
  const auto again = Put(key, kLeft, Squares(kLeft, 7));
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->is_duplicate);
  ASSERT_TRUE(Put(key, kRight, Squares(kRight), proto::Form::kImage).ok());
  EXPECT_EQ(Get().tokens, 16u);
  EXPECT_EQ(Get().means, Squares(kWhole));
  ASSERT_TRUE(Put(StoreFixture::Key(2), kWhole, Squares(kWhole, 3)).ok());
  EXPECT_EQ(Get().tokens, 32u);
  EXPECT_EQ(Get().means, Squares(kWhole, 2));
  for (const uint64_t number : {1, 2}) {
    const auto answer = store_.RunGet(space_, StoreFixture::Key(number), kWhole);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(std::vector(answer->payload.begin(), answer->payload.end()),
              StoreFixture::Source(space_, StoreFixture::Key(number), 0, kWhole));
  }
  EXPECT_EQ(store_.host->staging_bytes(), 0u);
}

TEST_F(PutQuerySquaresTest, WhatIsWrongIsRefusedByNameAndNothingIsKept) {
  const auto key = StoreFixture::Key(1);
  const auto refused = [&](const std::vector<float>& squares, const char* text) {
    const absl::Status status = Put(key, kWhole, squares).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  auto squares = Squares(kWhole);
  refused(Squares(kLeft), "of which query_squares are 1024");
  squares.push_back(1);
  refused(squares, "payload_bytes is 17412: 17408 to 17408");
  for (const float wrong :
       {-1.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    squares = Squares(kWhole);
    squares[5 * 32 + 9] = wrong;
    refused(squares, "at layer 1, head 1, channel 9: finite and not negative");
  }
  EXPECT_TRUE(Get().means.empty());
  EXPECT_EQ(store_.index->figures().block_count, 0u);
  EXPECT_TRUE(Put(key, kWhole, Squares(kWhole)).ok()) << "it can be put again";
}

TEST_F(PutQuerySquaresTest, AnImageTakesNoneThatItsCoderWouldRead) {
  const auto key = StoreFixture::Key(1);
  const auto image = StoreFixture::Image(space_, key, kWhole, "raw");
  for (const proto::Statistic kind :
       {proto::Statistic::kQueryMagnitudes, proto::Statistic::kTokenScores}) {
    auto frame = StoreFixture::PutFrame(space_, key, kWhole, image, proto::Form::kImage);
    std::get<proto::Put>(frame.body).statistics.Add(kind);
    const absl::Status status = store_.RunPut(frame, image, store_.session).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(proto::Name(kind)));
    EXPECT_THAT(std::string(status.message()), HasSubstr("is encoded already"));
  }
}

// Upkeep, which encodes what was kept raw, would not have the scores.
TEST_F(PutQuerySquaresTest, WhatComesWithScoresIsNotKeptRaw) {
  auto identity = StoreFixture::Identity();
  identity.model = "scored";
  SpaceEntry& space = store_.OpenSpace("arkv", identity);
  for (const bool has_scores : {true, false}) {
    const auto key = StoreFixture::Key(has_scores ? 1 : 2);
    auto payload = StoreFixture::Source(space, key, 0, kWhole);
    if (has_scores) {
      payload.resize(payload.size() + size_t{2} * 4 * 16 * sizeof(float));
    }
    auto frame = StoreFixture::PutFrame(space, key, kWhole, payload);
    if (has_scores) {
      std::get<proto::Put>(frame.body).statistics.Add(proto::Statistic::kTokenScores);
    }
    ASSERT_TRUE(store_.RunPut(frame, payload, store_.session, /*keeps_raw=*/true).ok());
    MetricCapture metrics;
    store_.puts->Report(metrics);
    EXPECT_EQ(metrics.Value("cairn_put_kept_raw_total"), has_scores ? 0 : 1);
  }
}

TEST_F(PutQuerySquaresTest, GroupsWithoutKeysHaveNone) {
  auto identity = StoreFixture::Identity();
  identity.model = "state";
  proto::GroupGeometry state;
  state.kind = proto::GroupGeometry::Kind::kState;
  state.layers = {0, 1};
  state.state_bytes = 64;
  identity.groups = {state};
  SpaceEntry& space = store_.OpenSpace("raw", identity);
  const std::vector<std::byte> payload(2 * 64 + 8);
  auto frame = StoreFixture::PutFrame(space, StoreFixture::Key(1), {0, 2, 0, 1}, payload);
  std::get<proto::Put>(frame.body).statistics.Add(proto::Statistic::kQuerySquares);
  const auto status = store_.RunPut(frame, payload, store_.session).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("query_squares: group 0 has no K"));
}

}  // namespace
}  // namespace cairn
