// SPDX-License-Identifier: Apache-2.0
#include "service/members/space_policies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/limits.h"
#include "tests/support/fake_clock.h"
#include "tests/support/random.h"

namespace cairn {
namespace {

using testing::IsEmpty;

proto::Fingerprint PolicySpace(uint64_t number) {
  proto::Fingerprint space{};
  std::memcpy(space.data(), &number, sizeof number);
  return space;
}

bool AnyTenant(std::string_view) { return true; }
bool OnlyTenantT(std::string_view tenant) { return tenant == "t"; }

// One daemon, whose spaces are numbers.
struct Teller {
  FakeClock clock;
  std::map<proto::Fingerprint, std::string> recipes;  // as they are used
  absl::Status refusal;
  std::string saved;
  SpacePolicies policies{{.use =
                              [this](const ToldPolicy& told) {
                                if (refusal.ok()) recipes[told.space] = told.recipe;
                                return refusal;
                              },
                          .save = [this](std::string list) { saved = std::move(list); },
                          .clock = clock}};

  uint64_t Now() const { return static_cast<uint64_t>(absl::ToUnixMillis(clock.Now())); }
  ToldPolicy Set(uint64_t space, const std::string& recipe, const std::string& tenant = "t") {
    const absl::StatusOr<ToldPolicy> told =
        policies.Set({.tenant = tenant, .space = PolicySpace(space), .recipe = recipe});
    EXPECT_TRUE(told.ok()) << told.status();
    return told.ok() ? *told : ToldPolicy();
  }
  std::string RecipeOf(uint64_t space) { return recipes[PolicySpace(space)]; }
  uint64_t Hash() const { return policies.HashOf(AnyTenant); }
  void Merge(const Teller& other, SpacePolicies::MayUse may_use = AnyTenant) {
    policies.Merge(*ParsePolicies(other.policies.ListOf(AnyTenant)), may_use);
  }
};

TEST(SpacePolicies, TheLaterOneWins) {
  Teller a, b;
  EXPECT_EQ(a.Hash(), SpacePolicies::kEmptyHash);
  const ToldPolicy first = a.Set(1, "exact");
  EXPECT_EQ(first.epoch, a.Now());
  EXPECT_NE(a.Hash(), b.Hash());
  EXPECT_TRUE(b.policies.Learn(first).ok());
  EXPECT_EQ(b.RecipeOf(1), "exact");
  EXPECT_EQ(a.Hash(), b.Hash());
  const ToldPolicy second = b.Set(1, "kivi:4");
  EXPECT_EQ(second.epoch, first.epoch + 1) << "higher, also if its clock stands still";
  EXPECT_TRUE(a.policies.Learn(second).ok());
  EXPECT_TRUE(a.policies.Learn(first).ok()) << "an older one is no error";
  EXPECT_EQ(a.RecipeOf(1), "kivi:4");
  EXPECT_EQ(a.Hash(), b.Hash());
  b.clock.Advance(absl::Seconds(5));
  EXPECT_EQ(b.Set(1, "raw").epoch, b.Now());
}

// Two members that cannot reach each other set it in the same millisecond.
TEST(SpacePolicies, OfTwoAtOnceAllTakeTheSame) {
  Teller a, b;
  a.Set(1, "exact");
  b.Set(1, "kivi:4");
  const ToldPolicy of_a = *a.policies.Of("t", PolicySpace(1));
  a.Merge(b);
  EXPECT_TRUE(b.policies.Learn(of_a).ok());
  EXPECT_EQ(a.RecipeOf(1), b.RecipeOf(1));
  EXPECT_EQ(a.Hash(), b.Hash());
}

TEST(SpacePolicies, AllMembersEndWithTheSame) {
  auto random = SeededRandom();
  std::vector<std::unique_ptr<Teller>> all;
  for (int i = 0; i < 4; ++i) all.push_back(std::make_unique<Teller>());
  for (int step = 0; step < 500; ++step) {
    Teller& one = *all[random() % all.size()];
    Teller& other = *all[random() % all.size()];
    if (random() % 3 == 0) {
      one.Set(random() % 5, absl::StrCat("r", random() % 9));
    } else if (random() % 2 == 0) {
      one.Merge(other);
    } else {
      one.clock.Advance(absl::Milliseconds(random() % 3));
    }
  }
  for (int round = 0; round < 2; ++round) {
    for (const auto& one : all) {
      for (const auto& other : all) one->Merge(*other);
    }
  }
  for (const auto& one : all) {
    EXPECT_EQ(one->Hash(), all[0]->Hash());
    for (uint64_t space = 0; space < 5; ++space) {
      EXPECT_EQ(one->RecipeOf(space), all[0]->RecipeOf(space));
      EXPECT_EQ(one->policies.Of("t", PolicySpace(space)),
                all[0]->policies.Of("t", PolicySpace(space)));
    }
  }
}

TEST(SpacePolicies, ARestartKnowsAndUsesThem) {
  Teller a, again;
  a.Set(1, "kivi:4");
  a.Set(2, "exact", "u");
  again.policies.Restore(a.saved);
  EXPECT_EQ(again.Hash(), a.Hash());
  EXPECT_EQ(again.RecipeOf(1), "kivi:4");
  again.policies.Restore("nonsense");
  EXPECT_EQ(again.policies.Of("u", PolicySpace(2)), a.policies.Of("u", PolicySpace(2)));
  EXPECT_EQ(again.policies.Of("t", PolicySpace(2)), std::nullopt);
  Teller third;
  third.Merge(a);
  EXPECT_EQ(ParsePolicies(third.saved)->size(), 2u) << "what was learned is saved, too";
}

TEST(SpacePolicies, OneThatCannotBeUsedIsSetNowhereAndSpreadsIfItWasTold) {
  Teller a, b, c;
  a.refusal = absl::InvalidArgumentError("recipe: the profile has no rate");
  EXPECT_TRUE(absl::IsInvalidArgument(
      a.policies.Set({.tenant = "t", .space = PolicySpace(1), .recipe = "cairn:2.3"}).status()));
  EXPECT_EQ(a.Hash(), SpacePolicies::kEmptyHash);
  const ToldPolicy told = b.Set(1, "cairn:2.3");
  const absl::Status refused = a.policies.Learn(told);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(a.recipes, IsEmpty());
  c.Merge(a);
  EXPECT_EQ(c.RecipeOf(1), "cairn:2.3");
}

TEST(SpacePolicies, AnEpochThatIsTooFarAheadIsRefused) {
  Teller a;
  const uint64_t max = a.Now() + limits::kGenerationAheadUsMax / 1000;
  for (const uint64_t lie : {UINT64_MAX, max + 1}) {
    ToldPolicy told{.tenant = "t", .space = PolicySpace(1), .epoch = lie, .recipe = "raw"};
    EXPECT_TRUE(absl::IsInvalidArgument(a.policies.Learn(told)));
    a.policies.Merge({&told, 1}, AnyTenant);
  }
  EXPECT_THAT(a.recipes, IsEmpty());
  EXPECT_TRUE(
      a.policies.Learn({.tenant = "t", .space = PolicySpace(1), .epoch = max, .recipe = "raw"})
          .ok());
  EXPECT_EQ(a.Set(1, "exact").epoch, max + 1);
}

TEST(SpacePolicies, WhatAMemberSeesAndTellsDependsOnTheTenant) {
  Teller a, b;
  a.Set(1, "exact", "t");
  a.Set(2, "exact", "u");
  b.Merge(a, OnlyTenantT);
  EXPECT_EQ(b.RecipeOf(2), "");
  EXPECT_NE(a.Hash(), b.Hash());
  EXPECT_EQ(a.policies.HashOf(OnlyTenantT), b.policies.HashOf(OnlyTenantT));
  EXPECT_EQ(a.policies.ListOf(OnlyTenantT), b.policies.ListOf(OnlyTenantT));
}

TEST(SpacePolicies, ATenantHasAShareAndItsOldestAreForgotten) {
  Teller a;
  a.Set(1, "raw", "other");
  for (uint64_t i = 0; i < limits::kPoliciesPerTenantMax + 3; ++i) {
    a.clock.Advance(absl::Milliseconds(1));
    EXPECT_NE(a.Set(i, "raw").epoch, 0u);
  }
  EXPECT_EQ(a.policies.Of("t", PolicySpace(2)), std::nullopt);
  EXPECT_NE(a.policies.Of("t", PolicySpace(3)), std::nullopt);
  EXPECT_NE(a.policies.Of("other", PolicySpace(1)), std::nullopt);
  const ToldPolicy old{.tenant = "t", .space = PolicySpace(0), .epoch = 1, .recipe = "raw"};
  EXPECT_TRUE(absl::IsFailedPrecondition(a.policies.Learn(old)));
}

TEST(SpacePolicies, BytesThatAreNoListAreRefused) {
  const std::vector<ToldPolicy> list = {
      {.tenant = "t",
       .space = PolicySpace(1),
       .epoch = 0x123456789A,
       .recipe = "kivi:8",
       .cold_recipe = "kivi:4",
       .ttl_s = 86400},
      {.tenant = std::string(64, 'x'), .space = PolicySpace(2), .epoch = 1, .recipe = "raw"}};
  const std::string bytes = SerializePolicies(list);
  EXPECT_EQ(*ParsePolicies(bytes), list);
  EXPECT_THAT(*ParsePolicies(bytes.substr(0, 1)), IsEmpty());
  EXPECT_FALSE(ParsePolicies("").ok());
  const size_t first = SerializePolicies({list.data(), 1}).size();
  for (size_t cut = 2; cut < bytes.size(); ++cut) {
    if (cut == first) continue;
    EXPECT_TRUE(absl::IsInvalidArgument(ParsePolicies(bytes.substr(0, cut)).status())) << cut;
  }
  for (ToldPolicy bad : {ToldPolicy{.tenant = "", .epoch = 1}, ToldPolicy{.tenant = "t"},
                         ToldPolicy{.tenant = "t", .epoch = 1, .recipe = std::string(65, 'r')}}) {
    EXPECT_FALSE(ParsePolicies(SerializePolicies({&bad, 1})).ok());
  }
  const std::vector<ToldPolicy> many(limits::kPoliciesMax + 1, list[0]);
  EXPECT_FALSE(ParsePolicies(SerializePolicies(many)).ok());
  EXPECT_LE(SerializePolicies(std::span(many).first(limits::kPoliciesMax)).size(),
            limits::kPolicyListBytesMax);
}

}  // namespace
}  // namespace cairn
