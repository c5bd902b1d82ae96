// SPDX-License-Identifier: Apache-2.0
// Which blocks a member that drains offers to whom.
#include "service/peer/offer_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "proto/location.h"
#include "service/limits.h"
#include "service/peer/homes.h"
#include "tests/support/random.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

proto::BlockKey KeyOf(uint64_t number) {
  proto::BlockKey key{};
  const uint64_t spread = number * 0x9e3779b97f4a7c15;  // rendezvous takes its first bytes
  std::memcpy(key.data(), &spread, sizeof(spread));
  std::memcpy(key.data() + 8, &number, sizeof(number));
  return key;
}
uint64_t NumberOf(const proto::BlockKey& key) {
  uint64_t number = 0;
  std::memcpy(&number, key.data() + 8, sizeof(number));
  return number;
}
std::vector<uint64_t> NumbersOf(const BlockOffer& offer) {
  std::vector<uint64_t> numbers;
  for (const proto::BlockKey& key : offer.keys) numbers.push_back(NumberOf(key));
  return numbers;
}

// Members with the numbers 1, 2, …; this daemon is 9.
View ViewOf(int count) {
  View view;
  for (int i = 1; i <= count; ++i) {
    Member member;
    member.name = "node-" + std::to_string(i);
    member.number = static_cast<uint32_t>(i);
    member.address = "a.test:1";
    member.state = MemberState::kJoined;
    view.members.push_back(member);
  }
  Member self = view.members.front();
  self.name = "self";
  self.number = 9;
  self.is_self = true;
  self.state = MemberState::kDraining;
  view.members.push_back(self);
  return view;
}

// One space of the tenant "t"; blocks of 16 tokens. A parent is put before its children.
class Blocks {
 public:
  Blocks() {
    all_.spaces.resize(2);
    all_.spaces[0].identity.tenant = "t";
    all_.spaces[1].identity.tenant = "u";
    all_.slices = {{{.group = 0}}, {{.group = 1}}};
  }
  Blocks& Add(uint64_t number, uint64_t parent, uint64_t last_use, uint32_t space = 0,
              uint32_t slices = 0, uint64_t bytes = 10) {
    positions_[number] = parent == 0 ? 0 : positions_.at(parent) + 16;
    all_.blocks.push_back({.space = space,
                           .slices = slices,
                           .key = KeyOf(number),
                           .parent = parent == 0 ? proto::BlockKey{} : KeyOf(parent),
                           .first_position = positions_[number],
                           .last_use = last_use,
                           .image_bytes = bytes});
    return *this;
  }
  const OfferableBlocks& all() const { return all_; }

 private:
  OfferableBlocks all_;
  std::map<uint64_t, uint64_t> positions_;
};

void AdmitAll(OfferPlan& plan) {
  for (const uint32_t member : plan.ToAdmit()) plan.Admit(member, [](auto) { return true; });
}
std::vector<OfferAnswer> All(size_t count, OfferAnswer answer) {
  return std::vector<OfferAnswer>(count, answer);
}

TEST(OfferPlan, TheLastUsedComeFirstAndEachAfterThoseBeforeIt) {
  Blocks blocks;
  blocks.Add(1, 0, 5).Add(2, 1, 3).Add(3, 2, 9);  // its end was used last
  blocks.Add(11, 0, 8).Add(12, 11, 7).Add(21, 0, 1);
  OfferPlan plan(blocks.all(), ViewOf(1), {});
  EXPECT_THAT(plan.Ready(), IsEmpty()) << "nobody is admitted";
  ASSERT_THAT(plan.ToAdmit(), ElementsAre(1));
  AdmitAll(plan);
  EXPECT_THAT(plan.ToAdmit(), IsEmpty());
  ASSERT_THAT(plan.Ready(), ElementsAre(1));
  const BlockOffer offer = plan.Next(1);
  EXPECT_THAT(NumbersOf(offer), ElementsAre(1, 2, 3, 11, 12, 21));
  EXPECT_EQ(NumberOf(offer.parents[2]), 2u);
  EXPECT_EQ(offer.image_bytes[0], 10u);
  EXPECT_THAT(plan.Ready(), IsEmpty()) << "an offer is under way";
  EXPECT_FALSE(plan.is_over());
  std::vector<OfferAnswer> answers = All(6, OfferAnswer::kTaken);
  answers[5] = OfferAnswer::kHad;
  plan.Done(1, answers);
  EXPECT_TRUE(plan.is_over());
  EXPECT_EQ(plan.taken_count(), 5u);
  EXPECT_EQ(plan.had_count(), 1u);
}

TEST(OfferPlan, OffersAreBoundedInKeysAndBytesAndHaveOneSpaceAndOneListOfSlices) {
  Blocks blocks;
  blocks.Add(1, 0, 99, 0, 0, 60).Add(2, 1, 98, 0, 0, 60).Add(3, 2, 97);
  blocks.Add(4, 0, 96, /*space=*/1);
  blocks.Add(5, 3, 95, 0, /*slices=*/1).Add(6, 5, 94).Add(7, 3, 93).Add(8, 7, 92).Add(9, 8, 91);
  OfferPlan plan(blocks.all(), ViewOf(1), {.keys_max = 3, .bytes_max = 100});
  AdmitAll(plan);
  std::vector<std::vector<uint64_t>> offers;
  while (!plan.is_over()) {
    const BlockOffer offer = plan.Next(1);
    offers.push_back(NumbersOf(offer));
    EXPECT_EQ(offer.identity.tenant, offers.back().front() == 4 ? "u" : "t");
    EXPECT_EQ(offer.slices[0].group, offers.back().front() == 5 ? 1u : 0u);
    plan.Done(1, All(offer.keys.size(), OfferAnswer::kTaken));
  }
  // 6 follows 5, which waits. 7 does not.
  EXPECT_THAT(offers, ElementsAre(ElementsAre(1), ElementsAre(2, 3, 7), ElementsAre(4),
                                  ElementsAre(5), ElementsAre(6, 8, 9)));
}

TEST(OfferPlan, AnImageThatIsLargerThanAnOfferIsOneOfItsOwn) {
  Blocks blocks;
  blocks.Add(1, 0, 2, 0, 0, 1000).Add(2, 1, 1, 0, 0, 1000);
  OfferPlan plan(blocks.all(), ViewOf(1), {.keys_max = 8, .bytes_max = 100});
  AdmitAll(plan);
  EXPECT_THAT(NumbersOf(plan.Next(1)), ElementsAre(1));
  plan.Done(1, All(1, OfferAnswer::kTaken));
  EXPECT_THAT(NumbersOf(plan.Next(1)), ElementsAre(2));
}

// A hundred sequences have their first four blocks in common.
Blocks Tree() {
  Blocks blocks;
  for (uint64_t i = 1; i <= 4; ++i) blocks.Add(i, i - 1, 1'000'000 - i);
  for (uint64_t chain = 1; chain <= 100; ++chain) {
    for (uint64_t i = 0; i < 10; ++i) {
      const uint64_t number = chain * 1000 + i;
      blocks.Add(number, i == 0 ? 4 : number - 1, chain * 100 - i);
    }
  }
  return blocks;
}

TEST(OfferPlan, PartsAreSharedOutAndEachIsAPrefixAtItsMember) {
  OfferPlan plan(Tree().all(), ViewOf(4), {});
  EXPECT_THAT(plan.ToAdmit(), ElementsAre(1, 2, 3, 4));
  AdmitAll(plan);
  View others = ViewOf(4);
  others.members.pop_back();
  const Homes homes(others);
  std::map<uint32_t, std::set<uint64_t>> told;
  while (!plan.is_over()) {
    for (const uint32_t member : plan.Ready()) {
      const BlockOffer offer = plan.Next(member);
      for (size_t i = 0; i < offer.keys.size(); ++i) {
        const uint64_t number = NumberOf(offer.keys[i]), parent = NumberOf(offer.parents[i]);
        EXPECT_TRUE(parent == 0 || told[member].contains(parent)) << number;
        EXPECT_TRUE(told[member].insert(number).second) << "it was offered twice";
        if (number > 1000) {
          EXPECT_EQ(homes.Of(proto::RunOf(KeyOf(number / 1000 * 1000))).first, member);
        }
      }
      plan.Done(member, All(offer.keys.size(), OfferAnswer::kTaken));
    }
  }
  EXPECT_EQ(plan.taken_count(), 1004u) << "each counts once";
  for (const auto& [member, numbers] : told) {
    EXPECT_GT(numbers.size(), 100u) << member;
    EXPECT_LT(numbers.size(), 500u) << member;
  }
}

TEST(OfferPlan, TheSecondMemberGetsWhatTheFirstDoesNotTake) {
  Blocks blocks;
  blocks.Add(1, 0, 3).Add(2, 1, 2).Add(3, 2, 1);
  View view = ViewOf(2);
  OfferPlan plan(blocks.all(), view, {});
  // Each part has at most two blocks: the second and the third are one, and the first goes along.
  AdmitAll(plan);
  ASSERT_THAT(plan.Ready(), SizeIs(1));
  const uint32_t first = plan.Ready()[0], second = 3 - first;
  EXPECT_THAT(NumbersOf(plan.Next(first)), ElementsAre(1, 2, 3));
  plan.Done(first, std::vector<OfferAnswer>{OfferAnswer::kTaken, OfferAnswer::kTaken,
                                            OfferAnswer::kDeclined});
  ASSERT_THAT(plan.ToAdmit(), ElementsAre(second));
  AdmitAll(plan);
  EXPECT_THAT(NumbersOf(plan.Next(second)), ElementsAre(1, 2, 3)) << "a prefix there, too";
  plan.Done(second, All(3, OfferAnswer::kFailed));
  EXPECT_TRUE(plan.is_over()) << "there is no third";
  EXPECT_EQ(plan.taken_count(), 2u);
}

TEST(OfferPlan, WhoLeavesIsOfferedNothingMore) {
  Blocks blocks;
  for (uint64_t i = 1; i <= 20; ++i) blocks.Add(i, 0, i);
  OfferPlan plan(blocks.all(), ViewOf(2), {.keys_max = 2});
  AdmitAll(plan);
  ASSERT_THAT(plan.Ready(), ElementsAre(1, 2));
  plan.Next(1);
  plan.Leave(1);
  std::set<uint64_t> told;
  while (!plan.is_over()) {
    ASSERT_THAT(plan.Ready(), ElementsAre(2));
    const BlockOffer offer = plan.Next(2);
    for (const uint64_t number : NumbersOf(offer)) told.insert(number);
    plan.Done(2, All(offer.keys.size(), OfferAnswer::kTaken));
  }
  EXPECT_THAT(told, SizeIs(20));
  EXPECT_EQ(plan.taken_count(), 20u);
}

TEST(OfferPlan, AMemberWithoutAnyRoomIsAskedOnce) {
  Blocks blocks;
  for (uint64_t i = 1; i <= 20; ++i) blocks.Add(i, 0, i);
  OfferPlan plan(blocks.all(), ViewOf(1), {.keys_max = 2});
  AdmitAll(plan);
  plan.Next(1);
  plan.Done(1, All(2, OfferAnswer::kDeclined));
  EXPECT_TRUE(plan.is_over());
  EXPECT_EQ(plan.taken_count(), 0u);
}

TEST(OfferPlan, AMemberSeesTheTenantsOfItsPolicyOnly) {
  Blocks blocks;
  for (uint64_t i = 1; i <= 20; ++i) blocks.Add(i, 0, i, i % 2);
  OfferPlan plan(blocks.all(), ViewOf(2), {});
  std::map<uint32_t, std::set<uint64_t>> told;
  while (!plan.is_over()) {
    for (const uint32_t member : plan.ToAdmit()) {
      plan.Admit(member,
                 [member](std::string_view tenant) { return member == 1 || tenant == "t"; });
    }
    for (const uint32_t member : plan.Ready()) {
      const BlockOffer offer = plan.Next(member);
      for (const uint64_t number : NumbersOf(offer)) told[member].insert(number);
      plan.Done(member, All(offer.keys.size(), OfferAnswer::kTaken));
    }
  }
  for (const uint64_t number : told[2]) EXPECT_EQ(number % 2, 0u);
  EXPECT_EQ(plan.taken_count(), 20u) << "those that 2 may not see went to 1";
}

TEST(OfferPlan, MembersThatHaveNotJoinedGetNothing) {
  Blocks blocks;
  blocks.Add(1, 0, 1);
  View view = ViewOf(3);
  view.members[0].state = MemberState::kDraining;
  view.members[1].state = MemberState::kHeld;
  view.members[2].state = MemberState::kUnmet;
  OfferPlan nobody(blocks.all(), view, {});
  EXPECT_TRUE(nobody.is_over());
  EXPECT_EQ(nobody.block_count(), 1u);
  OfferPlan nothing({}, ViewOf(3), {});
  EXPECT_TRUE(nothing.is_over());
}

// Whatever members answer, it ends, and no member is told a block twice or before its parent.
TEST(OfferPlan, EndsWithAnyAnswers) {
  std::mt19937_64 random = SeededRandom();
  for (int round = 0; round < 200; ++round) {
    Blocks blocks;
    const uint64_t count = 1 + random() % 60;
    for (uint64_t i = 1; i <= count; ++i) {
      blocks.Add(i, random() % i, random() % 100, /*space=*/0, random() % 2, random() % 50);
    }
    OfferPlan plan(blocks.all(), ViewOf(1 + static_cast<int>(random() % 4)),
                   {.keys_max = 1 + random() % 8, .bytes_max = 100});
    std::map<uint32_t, std::set<uint64_t>> told;
    for (int step = 0; !plan.is_over(); ++step) {
      ASSERT_LT(step, 10'000);
      for (const uint32_t member : plan.ToAdmit()) {
        if (random() % 8 == 0) {
          plan.Leave(member);
        } else {
          plan.Admit(member, [](auto) { return true; });
        }
      }
      for (const uint32_t member : plan.Ready()) {
        const BlockOffer offer = plan.Next(member);
        ASSERT_GT(offer.keys.size(), 0u);
        for (size_t i = 0; i < offer.keys.size(); ++i) {
          const uint64_t parent = NumberOf(offer.parents[i]);
          EXPECT_TRUE(parent == 0 || told[member].contains(parent));
          EXPECT_TRUE(told[member].insert(NumberOf(offer.keys[i])).second);
        }
        if (random() % 8 == 0) {
          plan.Leave(member);
          continue;
        }
        std::vector<OfferAnswer> answers;
        for (size_t i = 0; i < offer.keys.size(); ++i) {
          answers.push_back(static_cast<OfferAnswer>(1 + random() % 4));
        }
        plan.Done(member, answers);
      }
    }
    EXPECT_LE(plan.taken_count() + plan.had_count(), count);
  }
}

// --- On the wire ---------------------------------------------------------------------------------

BlockOffer AnOffer() {
  BlockOffer offer;
  offer.identity.tenant = "t";
  offer.identity.model = "m";
  offer.identity.weights_revision = "1";
  offer.identity.tokens_per_block = 16;
  proto::GroupGeometry group;
  group.layers = {0, 1};
  group.kv_heads = 4;
  group.k_dim = 32;
  group.v_dim = 32;
  offer.identity.groups = {group};
  offer.recipe = "exact";
  offer.keys = {KeyOf(1), KeyOf(2)};
  offer.parents = {proto::BlockKey{}, KeyOf(1)};
  offer.image_bytes = {100, 200};
  offer.slices = {{.group = 0, .layer_count = 2, .head_count = 2},
                  {.group = 0, .layer_count = 2, .head_first = 2, .head_count = 2}};
  return offer;
}

TEST(Offer, IsReadAsItWasWritten) {
  const BlockOffer offer = AnOffer();
  const auto parsed = ParseOffer(RequestOf(offer), 2);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(proto::FingerprintOf(parsed->identity), proto::FingerprintOf(offer.identity));
  EXPECT_EQ(parsed->recipe, "exact");
  EXPECT_EQ(parsed->keys, offer.keys);
  EXPECT_EQ(parsed->parents, offer.parents);
  EXPECT_EQ(parsed->image_bytes, offer.image_bytes);
  ASSERT_THAT(parsed->slices, SizeIs(2));
  EXPECT_EQ(parsed->slices[1].head_first, 2u);
}

TEST(Offer, ThatIsNoneIsRefused) {
  const auto refuses = [](auto change) {
    v1::OfferRequest request = RequestOf(AnOffer());
    change(request);
    return absl::IsInvalidArgument(ParseOffer(request, 2).status());
  };
  EXPECT_TRUE(refuses([](auto& request) { request.mutable_space()->set_tenant(""); }));
  EXPECT_TRUE(refuses([](auto& request) { request.mutable_keys()->pop_back(); }));
  EXPECT_TRUE(refuses([](auto& request) { request.clear_keys(); }));
  EXPECT_TRUE(refuses([](auto& request) { request.mutable_keys()->append(32, 'x'); }));
  EXPECT_TRUE(refuses([](auto& request) { request.mutable_parents()->resize(32); }));
  EXPECT_TRUE(refuses([](auto& request) { request.add_image_bytes(1); }));
  EXPECT_TRUE(refuses([](auto& request) { request.set_image_bytes(0, 0); }));
  // Sums of these would begin again at 0, as if there were room.
  EXPECT_TRUE(refuses([](auto& request) { request.set_image_bytes(0, UINT64_MAX); }));
  EXPECT_TRUE(
      refuses([](auto& request) { request.set_image_bytes(1, limits::kOfferBlockBytesMax + 1); }));
  EXPECT_TRUE(refuses([](auto& request) { request.clear_slices(); }));
  EXPECT_TRUE(refuses([](auto& request) { request.mutable_slices(0)->set_group(1); }));
  EXPECT_TRUE(refuses([](auto& request) { request.mutable_slices(0)->set_head_count(5); }));
  EXPECT_TRUE(refuses([](auto& request) {
    for (int i = 0; i < 200; ++i) *request.add_slices() = request.slices(0);
  }));
}

TEST(Offer, AnswersAreOnesToTheOffer) {
  const std::vector<OfferAnswer> answers = {OfferAnswer::kTaken, OfferAnswer::kHad,
                                            OfferAnswer::kDeclined, OfferAnswer::kFailed};
  const v1::OfferReply reply = ReplyOf(answers);
  EXPECT_EQ(*ParseAnswers(reply, 4), answers);
  EXPECT_TRUE(absl::IsInvalidArgument(ParseAnswers(reply, 5).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseAnswers(reply, 3).status())) << "it wants one more";
  v1::OfferReply other;
  other.set_answers(std::string("\x01\x05", 2));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseAnswers(other, 2).status()));
  other.set_answers(std::string("\x01\x00", 2));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseAnswers(other, 2).status()));
  other.set_answers(std::string("\x01\xff", 2));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseAnswers(other, 2).status()));
}

}  // namespace
}  // namespace cairn
