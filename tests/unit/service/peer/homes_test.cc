// SPDX-License-Identifier: Apache-2.0
#include "service/peer/homes.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/support/random.h"

namespace cairn {
namespace {

View ViewOf(const std::vector<std::string>& names) {
  View view;
  for (const std::string& name : names) {
    Member member;
    member.name = name;
    member.number = static_cast<uint32_t>(std::hash<std::string>()(name) % 60'000) + 1;
    member.state = MemberState::kJoined;
    view.members.push_back(member);
  }
  return view;
}

TEST(Homes, AreOnlyMembersThatCount) {
  View view = ViewOf({"a", "b", "c", "d"});
  for (size_t i = 0; i < view.members.size(); ++i) view.members[i].number = i + 1;
  view.members[0].state = MemberState::kUnmet;
  view.members[1].state = MemberState::kRefused;
  view.members[3].number = kHomeNumberMax + 1;
  const Homes homes(view);
  EXPECT_EQ(homes.count(), 1u);
  EXPECT_EQ(homes.Of(7), (Homes::Two{3, 0}));
  view.members[0].state = MemberState::kDraining;
  view.members[1].state = MemberState::kHeld;
  EXPECT_EQ(Homes(view).count(), 3u);
  EXPECT_EQ(Homes(View()).Of(7), Homes::Two());
}

// The second home of a run becomes the first one, and no other run moves.
TEST(Homes, OfOtherRunsStayWhenAMemberLeaves) {
  std::vector<std::string> names;
  for (int i = 0; i < 16; ++i) names.push_back("node-" + std::to_string(i));
  const View all = ViewOf(names);
  const uint32_t gone = all.members[5].number;
  names.erase(names.begin() + 5);
  const Homes before(all), after(ViewOf(names));
  std::mt19937_64 random = SeededRandom();
  size_t moved = 0;
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t run = random();
    const Homes::Two was = before.Of(run), is = after.Of(run);
    if (!was.Has(gone)) {
      EXPECT_EQ(was, is);
    } else {
      ++moved;
      EXPECT_TRUE(is.Has(was.first == gone ? was.second : was.first));
      EXPECT_EQ(is.first == was.second, was.first == gone);
    }
  }
  EXPECT_NEAR(static_cast<double>(moved), 10'000.0 * 2 / 16, 150);
}

TEST(Homes, ShareTheRunsEvenly) {
  const View view = ViewOf({"a", "b", "c", "d", "e", "f", "g", "h"});
  const Homes homes(view);
  std::map<uint32_t, int> first, second;
  std::mt19937_64 random = SeededRandom();
  for (int i = 0; i < 16'000; ++i) {
    const Homes::Two two = homes.Of(random());
    ++first[two.first];
    ++second[two.second];
    EXPECT_NE(two.first, two.second);
  }
  for (const Member& member : view.members) {
    EXPECT_NEAR(first[member.number], 2'000, 250) << member.name;
    EXPECT_NEAR(second[member.number], 2'000, 250) << member.name;
  }
}

}  // namespace
}  // namespace cairn
