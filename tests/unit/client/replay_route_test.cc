// SPDX-License-Identifier: Apache-2.0
#include "client/cli/replay/route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace cairn::replay {
namespace {

using testing::Each;
using testing::Lt;

// Requests that all share their first block, `sessions` of them also their second one.
Trace TraceWith(uint64_t requests, uint64_t sessions) {
  std::string text;
  for (uint64_t i = 0; i < requests; ++i) {
    absl::StrAppend(&text, "{\"timestamp\": ", i, ", \"input_length\": 30, \"output_length\": 1, ",
                    "\"hash_ids\": [1, ", 100 + i % sessions, ", ", 1000 + i, "]}\n");
  }
  auto trace = ParseTrace(text, 10);
  EXPECT_TRUE(trace.ok()) << trace.status();
  return *std::move(trace);
}

TEST(ReplayRouteTest, ARandomRouteIsUniformAndFollowsFromItsSeed) {
  const Trace trace = TraceWith(2000, 1);
  const std::vector<uint32_t> routes = RoutesOf(trace, Route::kRandom, 4, 7);
  ASSERT_EQ(routes.size(), 2000u);
  std::map<uint32_t, int> counts, pairs;
  for (size_t i = 0; i < routes.size(); ++i) {
    ++counts[routes[i]];
    if (i > 0) ++pairs[routes[i - 1] * 4 + routes[i]];
  }
  EXPECT_EQ(counts.size(), 4u);
  for (const auto& [daemon, count] : counts) EXPECT_NEAR(count, 500, 80) << daemon;
  EXPECT_EQ(pairs.size(), 16u);
  for (const auto& [pair, count] : pairs) EXPECT_NEAR(count, 125, 45) << pair;
  EXPECT_EQ(routes, RoutesOf(trace, Route::kRandom, 4, 7));
  EXPECT_NE(routes, RoutesOf(trace, Route::kRandom, 4, 8));
}

TEST(ReplayRouteTest, AStickyRouteKeepsASessionAtOneDaemon) {
  constexpr uint64_t kSessions = 200;
  const Trace trace = TraceWith(1000, kSessions);
  const std::vector<uint32_t> routes = RoutesOf(trace, Route::kSticky, 4, 1);
  std::map<uint32_t, int> counts;
  for (size_t i = 0; i < routes.size(); ++i) {
    ++counts[routes[i]];
    EXPECT_EQ(routes[i], routes[i % kSessions]) << i;
  }
  EXPECT_EQ(counts.size(), 4u);
  for (const auto& [daemon, count] : counts) EXPECT_NEAR(count, 250, 120) << daemon;
}

TEST(ReplayRouteTest, RequestsOfFewBlocksHaveARouteToo) {
  const auto trace = ParseTrace(
      "{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 1, \"hash_ids\": []}\n"
      "{\"timestamp\": 1, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": [5]}\n",
      10);
  ASSERT_TRUE(trace.ok()) << trace.status();
  for (const Route route : {Route::kRandom, Route::kSticky}) {
    EXPECT_THAT(RoutesOf(*trace, route, 3, 1), testing::AllOf(testing::SizeIs(2), Each(Lt(3u))));
    EXPECT_THAT(RoutesOf(*trace, route, 1, 1), Each(0u));
  }
}

TEST(ReplayRouteTest, RoutesHaveNames) {
  EXPECT_EQ(RouteNamed("random"), Route::kRandom);
  EXPECT_EQ(RouteNamed("sticky"), Route::kSticky);
  EXPECT_EQ(RouteNamed("Random"), std::nullopt);
}

}  // namespace
}  // namespace cairn::replay
