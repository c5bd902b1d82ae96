// SPDX-License-Identifier: Apache-2.0
// Squared queries: sums over blocks and ranks, and what they may take.
#include "service/index/query_squares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/metric_capture.h"

namespace cairn {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

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
  QuerySquares squares_{{.bytes_max = 3 * kGroupBytes, .bytes_per_tenant_max = 2 * kGroupBytes}};
};

TEST_F(QuerySquaresTest, RanksAndBlocksAreOneMeanOverTheirTokens) {
  const GroupPlace place = {1, 0, "a"};
  EXPECT_EQ(squares_.Get(1, 0).layers, 0u);
  ASSERT_TRUE(Add(place, {0, 2, 0, 1}, {1, 2, 3, 4, 5, 6}));
  auto snapshot = squares_.Get(1, 0);
  EXPECT_EQ(snapshot.tokens, 0u) << "nothing is known of head 1";
  EXPECT_THAT(snapshot.means, ElementsAre(1, 2, 3, 0, 0, 0, 4, 5, 6, 0, 0, 0));
  ASSERT_TRUE(Add(place, {0, 2, 1, 1}, {7, 8, 9, 10, 11, 12}, 48));
  ASSERT_TRUE(Add(place, {1, 1, 0, 2}, {0, 1, 2, 2, 3, 4}, 16));
  snapshot = squares_.Get(1, 0);
  EXPECT_EQ(snapshot.tokens, 16u);
  EXPECT_THAT(snapshot.means, ElementsAre(1, 2, 3, 7, 8, 9, 2, 3, 4, 8, 9, 10));
  EXPECT_EQ(squares_.Get(1, 1).layers, 0u);
  EXPECT_EQ(squares_.Get(2, 0).layers, 0u);
}

TEST_F(QuerySquaresTest, TheLargestValuesStayFinite) {
  const std::vector<float> largest(12, std::numeric_limits<float>::max());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Add({1, 0, "a"}, {0, 2, 0, 2}, largest, 1024));
  EXPECT_THAT(squares_.Get(1, 0).means, Each(std::numeric_limits<float>::max()));
}

TEST_F(QuerySquaresTest, LimitsAreKeptAndGivenBackWithTheSpace) {
  const codecs::Slice one = {0, 1, 0, 1};
  EXPECT_TRUE(Add({1, 0, "a"}, one, {1, 1, 1}));
  EXPECT_TRUE(Add({1, 1, "a"}, one, {1, 1, 1}));
  EXPECT_FALSE(Add({2, 0, "a"}, one, {1, 1, 1})) << "the tenant's";
  EXPECT_TRUE(Add({1, 1, "a"}, one, {3, 3, 3})) << "what is there goes on";
  EXPECT_TRUE(Add({3, 0, "b"}, one, {1, 1, 1}));
  EXPECT_FALSE(Add({3, 1, "b"}, one, {1, 1, 1})) << "that of all";
  EXPECT_EQ(squares_.bytes(), 3 * kGroupBytes);
  MetricCapture metrics;
  squares_.Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_query_squares_bytes"), 3 * kGroupBytes);
  EXPECT_EQ(metrics.Value("cairn_query_squares_added_total"), 4);
  EXPECT_EQ(metrics.Value("cairn_query_squares_refused_total"), 2);
  squares_.Forget(1);
  EXPECT_EQ(squares_.bytes(), kGroupBytes);
  EXPECT_EQ(squares_.Get(1, 1).layers, 0u);
  EXPECT_TRUE(Add({2, 0, "a"}, one, {1, 1, 1}));
}

}  // namespace
}  // namespace cairn
