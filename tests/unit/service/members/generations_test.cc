// SPDX-License-Identifier: Apache-2.0
#include "service/members/generations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "service/limits.h"
#include "tests/support/fake_clock.h"
#include "tests/support/random.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

proto::Fingerprint SpaceNumber(uint64_t number) {
  proto::Fingerprint space{};
  std::memcpy(space.data(), &number, sizeof number);
  return space;
}

bool All(std::string_view) { return true; }
bool OnlyT(std::string_view tenant) { return tenant == "t"; }

// One daemon, whose spaces are numbers.
struct Daemon {
  FakeClock clock;
  std::vector<proto::Fingerprint> dropped;
  std::string saved;
  std::function<void()> while_dropping = [] {};
  Generations generations{{.drop =
                               [this](std::string_view, const proto::Fingerprint& space) {
                                 dropped.push_back(space);
                                 while_dropping();
                                 return uint64_t{7};
                               },
                           .save = [this](std::string list) { saved = std::move(list); },
                           .clock = clock}};

  uint64_t Now() const { return static_cast<uint64_t>(absl::ToUnixMicros(clock.Now())); }
  uint64_t Raise(uint64_t space, const std::string& tenant = "t") {
    return generations.Raise(tenant, SpaceNumber(space)).generation;
  }
  uint64_t Of(uint64_t space, const std::string& tenant = "t") const {
    return generations.Of(tenant, SpaceNumber(space));
  }
  uint64_t Hash() const { return generations.HashOf(All); }
  bool Merge(const Daemon& other, Generations::MayUse may_use = All) {
    return generations.Merge(*ParseGenerations(other.generations.ListOf(All)), may_use);
  }
};

TEST(Generations, TheHigherOneWinsAndTheLowerSideDrops) {
  Daemon a, b;
  EXPECT_EQ(a.Hash(), Generations::kEmptyHash);
  const Generations::Outcome raised = a.generations.Raise("t", SpaceNumber(1));
  EXPECT_EQ(raised.generation, a.Now());
  EXPECT_EQ(raised.deleted_count, 7u);
  EXPECT_NE(a.Hash(), b.Hash());
  EXPECT_TRUE(b.Merge(a));
  EXPECT_THAT(b.dropped, ElementsAre(SpaceNumber(1)));
  EXPECT_EQ(b.Of(1), a.Of(1));
  EXPECT_EQ(a.Hash(), b.Hash());
  EXPECT_TRUE(a.Merge(b));
  EXPECT_TRUE(b.Merge(a));
  EXPECT_EQ(a.dropped.size() + b.dropped.size(), 2u);
  EXPECT_EQ(b.Raise(1), a.Of(1) + 1) << "higher, also if its clock stands still or is behind";
  b.clock.Advance(absl::Seconds(5));
  EXPECT_EQ(b.Raise(1), b.Now());
}

// A daemon that has lost what it knew does not begin again below what others know.
TEST(Generations, ALostListLosesNoDeletion) {
  Daemon away, again;
  for (int i = 0; i < 5; ++i) away.Raise(1);
  again.clock.Advance(absl::Seconds(1));
  again.Raise(1);
  EXPECT_TRUE(away.Merge(again));
  EXPECT_EQ(away.dropped.size(), 6u);
  EXPECT_EQ(away.Of(1), again.Of(1));
  EXPECT_TRUE(again.Merge(away));
  EXPECT_EQ(again.dropped.size(), 1u);
}

TEST(Generations, ARestartKnowsThem) {
  Daemon a, again, other;
  a.Raise(1);
  a.Raise(2, "u");
  other.clock.Advance(absl::Seconds(1));
  other.Raise(1);
  again.generations.Restore(a.saved);
  EXPECT_EQ(again.Hash(), a.Hash());
  again.generations.Restore(other.saved);  // of another device
  EXPECT_EQ(again.Of(1), other.Of(1));
  again.generations.Restore(a.saved);
  again.generations.Restore("nonsense");
  EXPECT_EQ(again.Of(1), other.Of(1));
  EXPECT_EQ(again.Of(2, "u"), a.Of(2, "u"));
  EXPECT_THAT(again.dropped, IsEmpty());
  Daemon third;
  EXPECT_TRUE(third.Merge(a));
  EXPECT_EQ(ParseGenerations(third.saved)->size(), 2u) << "what was learned is saved, too";
}

TEST(Generations, ANumberThatIsTooFarAheadIsRefused) {
  Daemon a;
  const uint64_t max = a.Now() + limits::kGenerationAheadUsMax;
  for (const uint64_t lie : {UINT64_MAX, max + 1}) {
    EXPECT_EQ(a.generations.Learn({"t", SpaceNumber(1), lie}).generation, 0u);
    const SpaceGeneration told{"t", SpaceNumber(1), lie};
    EXPECT_FALSE(a.generations.Merge({&told, 1}, All));
  }
  EXPECT_THAT(a.dropped, IsEmpty());
  EXPECT_EQ(a.generations.Learn({"t", SpaceNumber(1), max}).generation, max);
  EXPECT_EQ(a.Raise(1), max + 1);
}

TEST(Generations, WhatAMemberSeesAndTellsDependsOnTheTenant) {
  Daemon a, b;
  a.Raise(1, "t");
  a.Raise(2, "u");
  b.Raise(3, "u");
  EXPECT_TRUE(b.Merge(a, OnlyT));
  EXPECT_THAT(b.dropped, ElementsAre(SpaceNumber(3), SpaceNumber(1)));
  EXPECT_EQ(b.Of(2, "u"), 0u);
  EXPECT_NE(a.Hash(), b.Hash());
  EXPECT_EQ(a.generations.HashOf(OnlyT), b.generations.HashOf(OnlyT));
  EXPECT_EQ(a.generations.ListOf(OnlyT), b.generations.ListOf(OnlyT));
  // A space belongs to its tenant, whatever a member says.
  const SpaceGeneration lie{"t", SpaceNumber(3), b.Now() + 9};
  EXPECT_TRUE(b.generations.Merge({&lie, 1}, OnlyT));
  EXPECT_LT(b.Of(3, "u"), b.Of(3, "t"));
}

// What is read before a deletion is done is not said to be of the new generation, and nothing of
// the old one is stored once a deletion has begun.
TEST(Generations, ADeletionHasABeginningAndAnEnd) {
  Daemon a;
  const uint64_t first = a.Raise(1);
  EXPECT_TRUE(a.generations.IsCurrent("t", SpaceNumber(1), first));
  int asked = 0;
  a.while_dropping = [&] {
    ++asked;
    EXPECT_EQ(a.Of(1), first);
    EXPECT_FALSE(a.generations.IsCurrent("t", SpaceNumber(1), first));
  };
  const uint64_t second = a.Raise(1);
  EXPECT_TRUE(a.generations.IsCurrent("t", SpaceNumber(1), second));
  a.generations.Learn({"t", SpaceNumber(1), second});
  EXPECT_EQ(asked, 1);
}

TEST(Generations, ATenantHasAShareAndItsOldestAreForgotten) {
  Daemon a, b;
  a.Raise(1, "u");
  for (uint64_t i = 0; i < limits::kGenerationsPerTenantMax + 3; ++i) {
    a.Raise(i);
    a.clock.Advance(absl::Microseconds(1));
    b.clock.Advance(absl::Microseconds(1));
  }
  EXPECT_EQ(a.generations.count(), limits::kGenerationsPerTenantMax + 1);
  EXPECT_EQ(a.Of(2), 0u);
  EXPECT_NE(a.Of(3), 0u);
  EXPECT_NE(a.Of(1, "u"), 0u);
  EXPECT_TRUE(b.Merge(a));
  EXPECT_EQ(b.Hash(), a.Hash());
  // What was forgotten is not learned again.
  const size_t dropped = b.dropped.size();
  EXPECT_EQ(b.generations.Learn({"t", SpaceNumber(2), 1}).generation, 0u);
  EXPECT_EQ(b.dropped.size(), dropped);
}

TEST(Generations, TheTableHasALimit) {
  Daemon a;
  constexpr size_t kTenants = limits::kGenerationsMax / limits::kGenerationsPerTenantMax;
  std::vector<SpaceGeneration> full;
  for (uint64_t i = 0; i < limits::kGenerationsMax; ++i) {
    full.push_back({std::to_string(i % kTenants), SpaceNumber(i), 1 + i});
  }
  EXPECT_TRUE(a.generations.Merge(full, All));
  EXPECT_EQ(a.generations.count(), limits::kGenerationsMax);
  EXPECT_LE(a.saved.size(), limits::kGenerationListBytesMax);
  EXPECT_EQ(ParseGenerations(a.saved)->size(), limits::kGenerationsMax);
  const size_t dropped = a.dropped.size();
  EXPECT_EQ(a.Raise(1, "new"), 0u);
  EXPECT_EQ(a.dropped.size(), dropped + 1) << "deleted all the same";
  EXPECT_NE(a.Raise(0, "0"), 0u) << "those that are there go on";
  EXPECT_EQ(a.generations.count(), limits::kGenerationsMax);
}

TEST(Generations, BytesThatAreNoListAreRefused) {
  const std::vector<SpaceGeneration> list = {{"t", SpaceNumber(1), 5}, {"u", SpaceNumber(2), 6}};
  const std::string bytes = SerializeGenerations(list);
  EXPECT_EQ(*ParseGenerations(bytes), list);
  EXPECT_THAT(*ParseGenerations(bytes.substr(0, 1)), IsEmpty());
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    if (cut == 1 || cut == 1 + (bytes.size() - 1) / 2) continue;
    EXPECT_TRUE(absl::IsInvalidArgument(ParseGenerations(bytes.substr(0, cut)).status())) << cut;
  }
  for (const std::string& tenant : {std::string(), std::string("a b"), std::string(65, 'x')}) {
    const SpaceGeneration one{tenant, SpaceNumber(1), 5};
    EXPECT_FALSE(ParseGenerations(SerializeGenerations({&one, 1})).ok()) << tenant;
  }
  const SpaceGeneration zero{"t", SpaceNumber(1), 0};
  EXPECT_FALSE(ParseGenerations(SerializeGenerations({&zero, 1})).ok());
  const std::vector<SpaceGeneration> many(limits::kGenerationsMax + 1, list[0]);
  EXPECT_FALSE(ParseGenerations(SerializeGenerations(many)).ok());
}

// Whoever talks to whom, and whenever: in the end all know the same.
TEST(Generations, AllAgreeInTheEnd) {
  auto random = SeededRandom();
  Daemon daemons[4];
  for (int i = 0; i < 300; ++i) {
    Daemon& one = daemons[random() % 4];
    one.clock.Advance(absl::Milliseconds(random() % 100));
    if (random() % 3 == 0) {
      one.Raise(random() % 8);
    } else {
      one.Merge(daemons[random() % 4]);
    }
  }
  for (Daemon& one : daemons) {
    for (const Daemon& other : daemons) one.Merge(other);
  }
  for (Daemon& one : daemons) one.Merge(daemons[3]);
  for (const Daemon& one : daemons) EXPECT_EQ(one.Hash(), daemons[3].Hash());
}

}  // namespace
}  // namespace cairn
