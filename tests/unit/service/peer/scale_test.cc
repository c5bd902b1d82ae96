// SPDX-License-Identifier: Apache-2.0
// Many members in one process. tests/bench/members_bench.cc measures two hundred.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/member_fleet.h"
#include "tests/support/random.h"
#include "tests/support/sanitizer.h"

namespace cairn {
namespace {

TEST(Scale, HomesKnowAllBlocksWhoeverComesAndGoes) {
  constexpr size_t kMembers = 40, kBlocks = 64, kSamples = 2'000;
  MemberFleet fleet(kMembers, kBlocks, /*table_bytes=*/uint64_t{1} << 20, SeededRandom()());
  fleet.List();
  fleet.MeetAll();
  EXPECT_TRUE(fleet.HaveOneView(kMembers));
  MemberFleet::Work work = fleet.Announce();
  EXPECT_EQ(work.names, 2 * kMembers * kBlocks);
  EXPECT_LE(work.lag, absl::Seconds(1));
  EXPECT_EQ(fleet.CountUnknown(kSamples), 0u);
  fleet.Leave(7);
  EXPECT_TRUE(fleet.HaveOneView(kMembers - 1));
  work = fleet.Announce();
  EXPECT_LE(work.lag, absl::Seconds(1));
  EXPECT_EQ(fleet.CountUnknown(kSamples), 0u);
  fleet.Restart(8);
  fleet.Announce();
  EXPECT_EQ(fleet.CountUnknown(kSamples), 0u);
}

// One daemon among as many as the sources list.
TEST(Scale, AViewOfAThousandMembersChangesFast) {
  constexpr size_t kMembers = 1000;
  FakeClock clock;
  Members members({.cluster = "x", .self = {"node-0", "10.0.0.0:7", ""}, .incarnation = 1}, nullptr,
                  clock);
  AnnouncePlan plan{AnnouncePlan::Options()};
  std::vector<ListedMember> listed;
  std::vector<Met> met;
  for (size_t i = 0; i < kMembers; ++i) {
    const std::string name = absl::StrCat("node-", i);
    listed.push_back({name, absl::StrCat("10.0.", i / 256, ".", i % 256, ":7"), ""});
    if (i > 0) met.push_back({.name = name, .address = listed.back().address, .incarnation = 9});
  }
  members.Take(listed);
  members.Meet(met);
  plan.SetView(*members.view(), clock.Now());
  EXPECT_EQ(plan.home_count(), kMembers);
  const absl::Time began = MonotonicNow();
  listed.pop_back();
  members.Take(listed);
  members.Meet({.name = "node-7", .address = listed[7].address, .incarnation = 10});
  plan.SetView(*members.view(), clock.Now());
  EXPECT_LE(MonotonicNow() - began, absl::Seconds(1) * kSlowdown);
  EXPECT_EQ(members.view()->Find("node-999")->state, MemberState::kHeld);
}

}  // namespace
}  // namespace cairn
