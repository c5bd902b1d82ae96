// SPDX-License-Identifier: Apache-2.0
#include "service/peer/profile_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/peer/homes.h"

namespace cairn {
namespace {

using ProfileOutcome = ProfileAnswer::Outcome;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr codecs::Digest kOne{1}, kTwo{2};

proto::Fingerprint SpaceNumber(uint64_t number) {
  proto::Fingerprint space{};
  std::memcpy(space.data(), &number, sizeof number);
  return space;
}

View ViewOf(size_t count, size_t self) {
  View view;
  for (size_t i = 0; i < count; ++i) {
    Member& member = view.members.emplace_back();
    member.name = absl::StrCat("m", i);
    member.address = "127.0.0.1:1";
    member.number = static_cast<uint32_t>(i + 1);
    member.state = MemberState::kJoined;
    member.is_self = i == self;
  }
  return view;
}

// Number 0 has nothing; the others have a profile of that number.
ProfileAnswer Has(uint8_t profile, bool can_mine = true) {
  ProfileAnswer answer{
      .outcome = ProfileOutcome::kAnswered, .id = std::nullopt, .can_mine = can_mine};
  if (profile != 0) answer.id = codecs::Digest{profile};
  return answer;
}
const ProfileAnswer kSilent{.outcome = ProfileOutcome::kSilent, .id = std::nullopt};
const ProfileAnswer kOut{.outcome = ProfileOutcome::kOut, .id = std::nullopt};
const OwnProfile kWants{.id = std::nullopt, .wants = true, .can_mine = true, .past = {}};

TEST(MinerOrder, IsOneForAllMembersAndHasOneFirst) {
  for (uint64_t space = 1; space <= 20; ++space) {
    int first = 0;
    for (size_t self = 0; self < 8; ++self) {
      const MinerOrder order = OrderOfMiners(ViewOf(8, self), SpaceNumber(space), 8);
      ASSERT_EQ(order.others.size(), 7u);
      first += order.ahead == 0 ? 1 : 0;
      for (size_t i = 0; i + 1 < order.others.size(); ++i) {
        EXPECT_GT(HomeScore(order.others[i].name, space),
                  HomeScore(order.others[i + 1].name, space));
      }
      for (size_t i = 0; i < order.others.size(); ++i) {
        EXPECT_EQ(i<order.ahead, HomeScore(order.others[i].name, space)> HomeScore(
            absl::StrCat("m", self), space));
      }
    }
    EXPECT_EQ(first, 1);
  }
}

// The first of the order is the first home.
TEST(MinerOrder, BeginsWithTheHome) {
  const View view = ViewOf(8, 3);
  for (uint64_t space = 1; space <= 20; ++space) {
    const Homes::Two two = Homes(view).Of(space);
    const MinerOrder order = OrderOfMiners(view, SpaceNumber(space), 8);
    EXPECT_EQ(order.ahead == 0, two.first == 4) << space;
    if (two.first != 4) {
      EXPECT_EQ(order.others[0].number, two.first);
    }
  }
}

TEST(MinerOrder, LeavesOutWhoDrainsIsHeldOrIsNotMet) {
  View view = ViewOf(6, 0);
  view.members[1].state = MemberState::kDraining;
  view.members[2].state = MemberState::kHeld;
  view.members[3].state = MemberState::kUnmet;
  view.members[4].name = view.members[4].address;  // it has not told its name
  EXPECT_THAT(OrderOfMiners(view, SpaceNumber(7), 8).others,
              ElementsAre(testing::Field(&Member::name, "m5")));
  view.members[0].state = MemberState::kDraining;  // itself: all are before it
  EXPECT_EQ(OrderOfMiners(view, SpaceNumber(7), 8).ahead, 1u);
  const MinerOrder few = OrderOfMiners(ViewOf(100, 0), SpaceNumber(7), 3);
  EXPECT_EQ(few.others.size(), 3u);
  EXPECT_LE(few.ahead, 3u);
}

TEST(ProfileChoice, WhoWantsOneTakesAnyonesAndTheFirstsIfPossible) {
  const std::vector<ProfileAnswer> answers = {Has(0), kSilent, Has(1, false), Has(2)};
  for (const size_t ahead : {0, 2, 4}) {
    EXPECT_THAT(ChooseProfile(answers, ahead, kWants).take, ElementsAre(2u, 3u));
  }
  OwnProfile own = kWants;
  own.past = {kOne};
  EXPECT_THAT(ChooseProfile(answers, 4, own).take, ElementsAre(3u)) << "it was withdrawn here";
  own.id = kTwo;  // one without the rate that the recipe has now
  EXPECT_THAT(ChooseProfile(answers, 4, own).take, IsEmpty());
}

TEST(ProfileChoice, WhoWantsOneWaitsForThoseBeforeItThatMineOrMay) {
  EXPECT_EQ(ChooseProfile({}, 0, kWants).waits_for, 0u) << "alone";
  const std::vector<ProfileAnswer> answers = {Has(0), kSilent, kOut, Has(0, false), Has(0)};
  EXPECT_EQ(ChooseProfile(answers, 0, kWants).waits_for, 0u);
  EXPECT_EQ(ChooseProfile(answers, 1, kWants).waits_for, 1u);
  EXPECT_EQ(ChooseProfile(answers, 4, kWants).waits_for, 2u);
  EXPECT_EQ(ChooseProfile(answers, 5, kWants).waits_for, 3u);
}

TEST(ProfileChoice, WhoHasOneFollowsTheFirstThatMines) {
  const OwnProfile own{.id = kOne, .wants = false, .can_mine = true, .past = {}};
  EXPECT_THAT(ChooseProfile(std::vector{Has(2), Has(1)}, 1, own).take, ElementsAre(0u));
  EXPECT_THAT(ChooseProfile(std::vector{Has(2), Has(1)}, 0, own).take, IsEmpty())
      << "it is the first itself";
  EXPECT_THAT(ChooseProfile(std::vector{Has(1), Has(2)}, 2, own).take, IsEmpty())
      << "of two, the first counts";
  EXPECT_THAT(ChooseProfile(std::vector{Has(2, false), Has(1)}, 2, own).take, IsEmpty())
      << "the first has too few blocks: it has taken its own from somebody";
  OwnProfile reader = own;
  reader.can_mine = false;
  EXPECT_THAT(ChooseProfile(std::vector{Has(1, false), Has(2)}, 0, reader).take, ElementsAre(1u))
      << "who has too few blocks is behind all that have enough";
  OwnProfile withdrew = own;
  withdrew.past = {kTwo};
  EXPECT_THAT(ChooseProfile(std::vector{Has(2)}, 1, withdrew).take, IsEmpty());
}

// All members end with one profile, whoever begins with which.
TEST(ProfileChoice, AllEndWithTheProfileOfOne) {
  for (unsigned mask = 0; mask < 3 * 3 * 3 * 3; ++mask) {
    std::vector<uint8_t> has;
    for (unsigned rest = mask; has.size() < 4; rest /= 3) has.push_back(rest % 3);
    for (int round = 0; round < 6; ++round) {
      for (size_t self = 0; self < has.size(); ++self) {
        std::vector<ProfileAnswer> answers;
        for (size_t i = 0; i < has.size(); ++i) {
          if (i != self) answers.push_back(Has(has[i]));
        }
        OwnProfile own{.id = std::nullopt, .wants = has[self] == 0, .can_mine = true, .past = {}};
        if (has[self] != 0) own.id = codecs::Digest{has[self]};
        const ProfileChoice choice = ChooseProfile(answers, self, own);
        if (!choice.take.empty()) {
          has[self] = static_cast<uint8_t>((*answers[choice.take[0]].id)[0]);
        } else if (own.wants && choice.waits_for == 0) {
          has[self] = 9;  // it has mined one
        }
      }
    }
    EXPECT_THAT(has, testing::Each(has[0])) << mask;
    EXPECT_NE(has[0], 0) << mask;
  }
}

TEST(ProfileChoice, NobodyWaitsForEver) {
  const absl::Time since = absl::FromUnixSeconds(1000);
  EXPECT_TRUE(MayMine(0, since, since));
  EXPECT_FALSE(MayMine(1, since, since + kMinerWait - absl::Seconds(1)));
  EXPECT_TRUE(MayMine(1, since, since + kMinerWait));
  EXPECT_FALSE(MayMine(3, since, since + 2 * kMinerWait));
  EXPECT_TRUE(MayMine(1000, since, since + 5 * kMinerWait));
  EXPECT_FALSE(MayMine(0, absl::InfiniteFuture(), since)) << "it has too few blocks";
}

}  // namespace
}  // namespace cairn
