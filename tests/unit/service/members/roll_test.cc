// SPDX-License-Identifier: Apache-2.0
#include "service/members/roll.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/fake_clock.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kGrace = absl::Seconds(120);

class RollTest : public ::testing::Test {
 protected:
  static std::vector<ListedMember> Named(const std::vector<std::string>& names) {
    std::vector<ListedMember> listed;
    for (const std::string& name : names)
      listed.push_back({name, absl::StrCat(name, ".test:7"), ""});
    return listed;
  }
  void Take(const std::vector<std::string>& names) {
    ASSERT_TRUE(roll_.Take(Named(names), clock_.Now()).ok());
  }
  void Join(const std::vector<std::string>& names) {
    for (const std::string& name : names)
      roll_.Meet({.name = name, .incarnation = 5}, clock_.Now());
  }
  // "NAME:STATE" of each member.
  std::vector<std::string> Shown() const {
    std::vector<std::string> shown;
    for (const Member& member : roll_.MakeView().members) {
      shown.push_back(absl::StrCat(member.name, ":", std::string(Name(member.state))));
    }
    return shown;
  }
  void Advance(absl::Duration step) {
    clock_.Advance(step);
    roll_.Expire(clock_.Now());
  }

  FakeClock clock_;
  Roll roll_{{"a", "a.test:7", ""}, 1, kGrace, clock_.Now()};
};

TEST_F(RollTest, ADaemonAloneIsAMember) {
  EXPECT_THAT(Shown(), ElementsAre("a:joined"));
  EXPECT_TRUE(roll_.MakeView().members[0].is_self);
  Take({});
  Advance(absl::Hours(1));
  EXPECT_THAT(Shown(), ElementsAre("a:joined"));
  EXPECT_FALSE(roll_.is_guarded());
  EXPECT_FALSE(roll_.is_self_listed());
}

TEST_F(RollTest, AListedMemberJoinsOnceItHasAnswered) {
  Take({"a", "b"});
  EXPECT_THAT(Shown(), ElementsAre("a:joined", "b:unmet"));
  const uint64_t alone = roll_.MakeView().hash;
  Join({"b"});
  EXPECT_THAT(Shown(), ElementsAre("a:joined", "b:joined"));
  EXPECT_NE(roll_.MakeView().hash, alone);
  Join({"stranger"});
  EXPECT_THAT(Shown(), ElementsAre("a:joined", "b:joined"));
}

TEST_F(RollTest, OnlyAChangeMakesAGeneration) {
  Take({"a", "b"});
  Join({"b"});
  const uint64_t generation = roll_.generation();
  Take({"b", "a"});
  Join({"b"});
  Advance(absl::Hours(1));
  EXPECT_EQ(roll_.generation(), generation);
  roll_.Meet({.name = "b", .incarnation = 6}, clock_.Now());
  EXPECT_GT(roll_.generation(), generation);
}

TEST_F(RollTest, AMemberThatIsNotListedStaysForTheGrace) {
  Take({"a", "b", "c", "d"});
  Join({"b", "c", "d"});
  Take({"a", "b", "c"});
  EXPECT_THAT(Shown(), ElementsAre("a:joined", "b:joined", "c:joined", "d:held"));
  EXPECT_FALSE(roll_.is_guarded());
  const uint64_t hash = roll_.MakeView().hash;
  Advance(kGrace - absl::Seconds(1));
  EXPECT_EQ(roll_.MakeView().hash, hash);
  Advance(absl::Seconds(1));
  EXPECT_THAT(Shown(), ElementsAre("a:joined", "b:joined", "c:joined"));
  EXPECT_NE(roll_.MakeView().hash, hash);
}

TEST_F(RollTest, ARestartWithinTheGraceChangesNoPlace) {
  Take({"a", "b", "c", "d"});
  Join({"b", "c", "d"});
  const View before = roll_.MakeView();
  Take({"a", "b", "c"});
  Advance(absl::Seconds(60));
  Take({"a", "b", "c", "d"});
  roll_.Meet({.name = "d", .incarnation = 9}, clock_.Now());
  const View after = roll_.MakeView();
  EXPECT_EQ(after.hash, before.hash);
  EXPECT_EQ(after.Find("d")->number, before.Find("d")->number);
  EXPECT_EQ(after.Find("d")->incarnation, 9u);
  Advance(kGrace);
  EXPECT_EQ(roll_.MakeView().members.size(), 4u);
}

TEST_F(RollTest, AMemberThatNeverJoinedLeavesAtOnce) {
  Take({"a", "b"});
  Take({"a"});
  EXPECT_THAT(Shown(), ElementsAre("a:joined"));
}

// Three of six: more than a third.
TEST_F(RollTest, TheGuardHoldsALossOfMoreThanAThird) {
  Take({"a", "b", "c", "d", "e", "f"});
  Join({"b", "c", "d", "e", "f"});
  Take({"a", "b", "c"});
  EXPECT_TRUE(roll_.MakeView().is_guarded);
  Advance(kGuardTime - absl::Seconds(1));
  EXPECT_THAT(Shown(),
              ElementsAre("a:joined", "b:joined", "c:joined", "d:held", "e:held", "f:held"));
  Advance(absl::Seconds(1));
  EXPECT_THAT(Shown(), ElementsAre("a:joined", "b:joined", "c:joined"));
  EXPECT_FALSE(roll_.MakeView().is_guarded);
}

TEST_F(RollTest, AThirdIsNotMoreThanAThird) {
  Take({"a", "b", "c"});
  Join({"b", "c"});
  Take({"a", "b"});
  EXPECT_FALSE(roll_.is_guarded());
  Advance(kGrace);
  EXPECT_THAT(Shown(), ElementsAre("a:joined", "b:joined"));
}

// Leases that end one after the other.
TEST_F(RollTest, TheGuardCountsEarlierLossesToo) {
  Take({"a", "b", "c", "d", "e", "f"});
  Join({"b", "c", "d", "e", "f"});
  Take({"a", "b", "c", "d", "e"});
  Advance(absl::Seconds(10));
  Take({"a", "b", "c", "d"});
  Advance(absl::Seconds(10));
  EXPECT_FALSE(roll_.is_guarded());
  Take({"a", "b", "c"});
  EXPECT_TRUE(roll_.is_guarded());
  Advance(absl::Minutes(9));
  EXPECT_EQ(roll_.MakeView().members.size(), 6u);
}

TEST_F(RollTest, AnEmptySetTakesNobodyAway) {
  Take({"a", "b", "c", "d"});
  Join({"b", "c", "d"});
  const uint64_t hash = roll_.MakeView().hash;
  Take({});
  Advance(absl::Minutes(9));
  EXPECT_EQ(roll_.MakeView().hash, hash);
  Take({"a", "b", "c", "d"});
  EXPECT_THAT(Shown(), ElementsAre("a:joined", "b:joined", "c:joined", "d:joined"));
  EXPECT_FALSE(roll_.is_guarded());
}

TEST_F(RollTest, AGraceLongerThanTheGuardCounts) {
  Roll roll({"a", "a.test:7", ""}, 1, absl::Minutes(30), clock_.Now());
  ASSERT_TRUE(roll.Take(Named({"a", "b"}), clock_.Now()).ok());
  roll.Meet({.name = "b"}, clock_.Now());
  ASSERT_TRUE(roll.Take(Named({"a"}), clock_.Now()).ok());
  roll.Expire(clock_.Now() + absl::Minutes(29));
  EXPECT_EQ(roll.MakeView().members.size(), 2u);
}

TEST_F(RollTest, AnAddressMayChange) {
  Take({"a", "b"});
  Join({"b"});
  ASSERT_TRUE(roll_.Take({{"a", "a.test:7", ""}, {"b", "10.0.0.9:7", "east"}}, clock_.Now()).ok());
  const View view = roll_.MakeView();
  EXPECT_EQ(view.Find("b")->address, "10.0.0.9:7");
  EXPECT_EQ(view.Find("b")->zone, "east");
  EXPECT_EQ(view.Find("b")->state, MemberState::kJoined);
}

TEST_F(RollTest, OfTwoEntriesWithOneNameTheFirstCounts) {
  ASSERT_TRUE(roll_.Take({{"b", "10.0.0.1:7", ""}, {"b", "10.0.0.2:7", ""}}, clock_.Now()).ok());
  EXPECT_EQ(roll_.MakeView().Find("b")->address, "10.0.0.1:7");
}

TEST_F(RollTest, ARefusedMemberDoesNotCount) {
  Take({"a", "b"});
  Join({"b"});
  roll_.Refuse("b", "cluster is other", clock_.Now());
  EXPECT_THAT(Shown(), ElementsAre("a:joined", "b:refused"));
  EXPECT_EQ(roll_.MakeView().Find("b")->refusal, "cluster is other");
  Join({"b"});
  EXPECT_THAT(Shown(), ElementsAre("a:joined", "b:joined"));
  roll_.Refuse("b", "cluster is other", clock_.Now());
  Take({"a"});
  EXPECT_THAT(Shown(), ElementsAre("a:joined"));
  roll_.Refuse("a", "that is this daemon", clock_.Now());
  EXPECT_THAT(Shown(), ElementsAre("a:joined"));
}

TEST_F(RollTest, AMemberThatDrainsCounts) {
  Take({"a", "b"});
  Join({"b"});
  const uint64_t hash = roll_.MakeView().hash;
  roll_.Meet({.name = "b", .incarnation = 5, .is_draining = true}, clock_.Now());
  EXPECT_THAT(Shown(), ElementsAre("a:joined", "b:draining"));
  EXPECT_EQ(roll_.MakeView().hash, hash);
}

TEST_F(RollTest, ABadSetChangesNothing) {
  Take({"a", "b"});
  const uint64_t generation = roll_.generation();
  const auto refused = [&](ListedMember one) {
    return absl::IsInvalidArgument(
        roll_.Take({{"c", "c.test:7", ""}, std::move(one)}, clock_.Now()));
  };
  EXPECT_TRUE(refused({"two words", "d.test:7", ""}));
  EXPECT_TRUE(refused({std::string(254, 'n'), "d.test:7", ""}));
  EXPECT_TRUE(refused({"d", "d.test", ""}));
  EXPECT_TRUE(refused({"d", "d.test:0", ""}));
  EXPECT_TRUE(refused({"d", "off", ""}));
  EXPECT_TRUE(refused({"d", "d.test:7", "z\n"}));
  EXPECT_TRUE(absl::IsInvalidArgument(
      roll_.Take(std::vector<ListedMember>(kMembersMax + 1, {"b", "b.test:7", ""}), clock_.Now())));
  EXPECT_EQ(roll_.generation(), generation);
}

TEST_F(RollTest, AMemberWithoutANameGetsItFromItsHello) {
  const std::vector<ListedMember> listed = {{"", "10.0.0.1:7", ""}, {"", "10.0.0.2:7", ""}};
  ASSERT_TRUE(roll_.Take(listed, clock_.Now()).ok());
  EXPECT_THAT(Shown(), ElementsAre("10.0.0.1:7:unmet", "10.0.0.2:7:unmet", "a:joined"));
  roll_.Meet({.name = "a", .address = "10.0.0.1:7", .incarnation = 1}, clock_.Now());
  roll_.Meet({.name = "b", .address = "10.0.0.2:7", .incarnation = 2}, clock_.Now());
  EXPECT_THAT(Shown(), ElementsAre("a:joined", "b:joined"));
  ASSERT_TRUE(roll_.Take(listed, clock_.Now()).ok());
  EXPECT_THAT(Shown(), ElementsAre("a:joined", "b:joined"));
  EXPECT_TRUE(roll_.is_self_listed());
  // It restarts at another address.
  ASSERT_TRUE(roll_.Take({{"", "10.0.0.1:7", ""}, {"", "10.0.0.3:7", ""}}, clock_.Now()).ok());
  EXPECT_THAT(Shown(), ElementsAre("10.0.0.3:7:unmet", "a:joined", "b:held"));
  roll_.Meet({.name = "b", .address = "10.0.0.3:7", .incarnation = 3}, clock_.Now());
  EXPECT_THAT(Shown(), ElementsAre("a:joined", "b:joined"));
  EXPECT_EQ(roll_.MakeView().Find("b")->address, "10.0.0.3:7");
}

TEST_F(RollTest, AThousandMembers) {
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) names.push_back(absl::StrCat("m", i));
  Take(names);
  Join(names);
  EXPECT_EQ(roll_.MakeView().members.size(), 1001u);
  names.resize(600);
  Take(names);
  EXPECT_TRUE(roll_.is_guarded());
  names.resize(0);
  Take(names);
  EXPECT_EQ(roll_.MakeView().members.size(), 1001u);
}

// The hash of FNV-1a over "a\0b\0", from its definition.
TEST(View, TheHashIsThatOfTheFormat) {
  std::vector<Member> members(2);
  members[0].name = "a";
  members[1].name = "b";
  uint64_t expected = 0xcbf29ce484222325;
  for (const char c : {'a', '\0', 'b', '\0'}) {
    expected = (expected ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  members[0].state = members[1].state = MemberState::kJoined;
  EXPECT_EQ(HashOfNames(members), expected);
  EXPECT_EQ(HashOfNames({}), 0xcbf29ce484222325);
  members[0].state = members[1].state = MemberState::kUnmet;
  EXPECT_EQ(HashOfNames(members), HashOfNames({}));
}

TEST(View, FindsByNameAndByNumber) {
  FakeClock clock;
  Roll roll({"m", "m.test:7", ""}, 1, kGrace, clock.Now());
  ASSERT_TRUE(roll.Take({{"z", "z.test:7", ""}, {"b", "b.test:7", ""}}, clock.Now()).ok());
  const View view = roll.MakeView();
  for (const Member& member : view.members) {
    EXPECT_EQ(view.Find(member.name), &member);
    EXPECT_EQ(view.Find(member.number), &member);
  }
  EXPECT_EQ(view.Find("n"), nullptr);
  EXPECT_EQ(view.Find(77u), nullptr);
}

}  // namespace
}  // namespace cairn
