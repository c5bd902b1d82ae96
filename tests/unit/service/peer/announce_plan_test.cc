// SPDX-License-Identifier: Apache-2.0
#include "service/peer/announce_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "service/peer/announced.h"
#include "service/peer/location_table.h"
#include "tests/support/fake_clock.h"
#include "tests/support/random.h"

namespace cairn {
namespace {

using testing::IsEmpty;
using testing::SizeIs;
using Outcome = AnnouncePlan::Outcome;
using State = AnnouncePlan::State;

constexpr absl::Duration kTick = absl::Milliseconds(10);
constexpr absl::Duration kGapPerHome = absl::Milliseconds(50), kGapMax = absl::Seconds(1);

BlockChange Stored(uint64_t number, bool is_stored = true) {
  BlockChange change = {.run = number * 0x9e3779b97f4a7c15 + 1, .is_stored = is_stored};
  std::memcpy(change.name.data(), &change.run, 8);
  std::memcpy(change.name.data() + 8, &number, 8);
  return change;
}

class AnnouncePlanTest : public testing::Test {
 protected:
  // Members 1 to `count`; member 1 is the daemon itself.
  View ViewOf(size_t count, uint64_t incarnation = 1) {
    View view;
    for (size_t i = 1; i <= count; ++i) {
      Member member;
      member.name = "m" + std::to_string(i);
      member.number = static_cast<uint32_t>(i);
      member.incarnation = incarnation;
      member.state = MemberState::kJoined;
      member.is_self = i == 1;
      view.members.push_back(member);
    }
    view.hash = HashOfNames(view.members);
    return view;
  }
  void SetView(size_t count) { plan_.SetView(ViewOf(count), clock_.Now()); }
  std::vector<const AnnounceBatch*> Due() { return plan_.Due(clock_.Now()); }
  void Done(const AnnounceBatch& batch, Outcome outcome = Outcome::kTaken) {
    plan_.Done(batch.home, batch.id, outcome, clock_.Now());
  }
  // Takes everything that is due.
  size_t TakeAll() {
    size_t entries = 0;
    for (auto due = Due(); !due.empty(); due = Due()) {
      for (const AnnounceBatch* batch : due) {
        entries += batch->count();
        Done(*batch);
      }
    }
    return entries;
  }
  std::optional<uint64_t> WalkFrom() { return plan_.WalkFrom(clock_.Now()); }
  void Page(const std::vector<BlockChange>& blocks, uint64_t next, bool is_last) {
    plan_.AddPage(blocks, next, is_last, clock_.Now());
  }
  void Add(const std::vector<BlockChange>& changes) { plan_.Add(changes, clock_.Now()); }
  // Until every home has all of nothing.
  void Begin(size_t members) {
    SetView(members);
    TakeAll();
    ASSERT_EQ(WalkFrom(), 0u);
    Page({}, 0, true);
    ASSERT_EQ(plan_.StateOf(2), State::kHasAll);
  }

  FakeClock clock_;
  AnnouncePlan plan_{{}};
};

TEST_F(AnnouncePlanTest, ADaemonAloneTellsNobody) {
  SetView(1);
  EXPECT_EQ(plan_.home_count(), 0u);
  Add({Stored(1)});
  clock_.Advance(kTick);
  EXPECT_THAT(Due(), IsEmpty());
  EXPECT_EQ(WalkFrom(), std::nullopt);
  EXPECT_EQ(plan_.Lag(clock_.Now()), absl::ZeroDuration());
}

TEST_F(AnnouncePlanTest, AResetThenAWalkThenChanges) {
  SetView(2);
  EXPECT_EQ(WalkFrom(), std::nullopt);  // no home has taken the reset
  auto due = Due();
  ASSERT_THAT(due, SizeIs(2));  // this daemon is a home, too
  EXPECT_TRUE(due[0]->is_reset && due[0]->count() == 0);
  EXPECT_THAT(Due(), IsEmpty());  // one at a time
  Done(*due[0]);
  EXPECT_EQ(plan_.StateOf(1), State::kWaits);
  EXPECT_EQ(WalkFrom(), std::nullopt);  // the other one will join it soon
  Done(*due[1]);
  ASSERT_EQ(WalkFrom(), 0u);
  EXPECT_EQ(plan_.StateOf(2), State::kWalked);
  Page({Stored(1), Stored(2)}, 1024, false);
  Add({Stored(1, false)});
  clock_.Advance(kTick);
  ASSERT_EQ(WalkFrom(), 1024u);
  Page({Stored(3)}, 1500, true);
  EXPECT_EQ(plan_.StateOf(1), State::kHasAll);
  EXPECT_EQ(WalkFrom(), std::nullopt);
  due = Due();
  ASSERT_THAT(due, SizeIs(2));
  EXPECT_EQ(due[0]->first_sequence, 0u);
  EXPECT_THAT(due[0]->removed, testing::ElementsAre(Stored(1).name));
  EXPECT_THAT(due[0]->stored, testing::UnorderedElementsAre(Stored(2).name, Stored(3).name));
  EXPECT_EQ(plan_.Lag(clock_.Now()), kTick);
  for (const AnnounceBatch* batch : due) Done(*batch);
  EXPECT_EQ(plan_.Lag(clock_.Now()), absl::ZeroDuration());
  Add({Stored(4)});
  EXPECT_THAT(Due(), IsEmpty());  // others may follow
  clock_.Advance(kGapMax);
  due = Due();
  ASSERT_THAT(due, SizeIs(2));
  EXPECT_EQ(due[0]->first_sequence, 3u);
  EXPECT_EQ(plan_.resets(), 2u);
}

TEST_F(AnnouncePlanTest, AFullBatchGoesAtOnce) {
  ASSERT_NO_FATAL_FAILURE(Begin(2));
  std::vector<BlockChange> many;
  for (uint64_t i = 0; i < 1'500; ++i) many.push_back(Stored(i));
  Add(many);
  auto due = Due();
  ASSERT_THAT(due, SizeIs(2));
  EXPECT_EQ(due[1]->count(), 1'024u);
  Done(*due[1]);
  EXPECT_THAT(Due(), IsEmpty());  // the rest waits for its time
  clock_.Advance(kGapMax);
  due = Due();
  ASSERT_THAT(due, SizeIs(1));
  EXPECT_EQ(due[0]->count(), 476u);
  EXPECT_EQ(due[0]->first_sequence, 1'024u);
}

class AnnouncePlanRateTest : public AnnouncePlanTest, public testing::WithParamInterface<size_t> {};
INSTANTIATE_TEST_SUITE_P(Homes, AnnouncePlanRateTest, testing::Values(3, 6, 40));

// The first news after a quiet time goes at once. Of news without end, homes hear about 20 times a
// second in all, and late by at most a second; once a second where nobody asks them.
TEST_P(AnnouncePlanRateTest, NewsWithoutEndMakesFewBatches) {
  const size_t homes = GetParam();
  ASSERT_NO_FATAL_FAILURE(Begin(homes));
  const absl::Time began = clock_.Now();
  size_t batches = 0, entries = 0;
  absl::Duration lag, first;
  for (uint64_t number = 0; clock_.Now() - began < absl::Seconds(10); ++number) {
    Add({Stored(number)});
    clock_.Advance(kTick);
    lag = std::max(lag, plan_.Lag(clock_.Now()));
    for (const AnnounceBatch* batch : Due()) {
      if (batches++ == 0) first = clock_.Now() - began;
      entries += batch->count();
      Done(*batch);
    }
  }
  EXPECT_EQ(first, kTick);
  EXPECT_LE(batches, (homes == 6 ? 10 * 20 : 10 * homes) + homes);
  EXPECT_GE(entries, 1'700u);
  EXPECT_LE(lag, (homes == 6 ? homes * kGapPerHome : kGapMax) + kTick);
}

TEST_F(AnnouncePlanTest, WhileOnlyFullBatchesMayGoItLooksLessOften) {
  ASSERT_NO_FATAL_FAILURE(Begin(6));
  std::vector<BlockChange> some;
  for (uint64_t i = 0; i < 100; ++i) some.push_back(Stored(i));
  Add(some);
  clock_.Advance(kTick);
  TakeAll();
  Add({Stored(1'000)});
  EXPECT_EQ(plan_.Tick(clock_.Now()), absl::Milliseconds(200));
  clock_.Advance(absl::Milliseconds(250));
  EXPECT_EQ(plan_.Tick(clock_.Now()), absl::Milliseconds(50));
  clock_.Advance(absl::Milliseconds(40));
  EXPECT_EQ(plan_.Tick(clock_.Now()), kTick);
  EXPECT_EQ(TakeAll(), 0u);
  clock_.Advance(kTick);
  EXPECT_EQ(TakeAll(), 2u);
}

TEST_F(AnnouncePlanTest, AFailedBatchIsSentAgainLaterAndLater) {
  ASSERT_NO_FATAL_FAILURE(Begin(2));
  Add({Stored(1)});
  clock_.Advance(kTick);
  auto due = Due();
  Done(*due[0]);
  uint64_t id = due[1]->id;
  for (const int wait : {100, 200, 400}) {
    Done(*due.back(), Outcome::kFailed);
    clock_.Advance(absl::Milliseconds(wait - 1));
    EXPECT_THAT(Due(), IsEmpty());
    clock_.Advance(absl::Milliseconds(1));
    due = Due();
    ASSERT_THAT(due, SizeIs(1));
    EXPECT_EQ(due[0]->first_sequence, 0u);
    EXPECT_EQ(due[0]->count(), 1u);
    EXPECT_GT(due[0]->id, id);
  }
  plan_.Done(2, id, Outcome::kTaken, clock_.Now());  // an old answer
  EXPECT_THAT(Due(), IsEmpty());
  EXPECT_EQ(plan_.Lag(clock_.Now()), absl::Milliseconds(710));
  Done(*due[0]);
  EXPECT_EQ(plan_.Lag(clock_.Now()), absl::ZeroDuration());
  EXPECT_EQ(plan_.resets(), 2u);
}

TEST_F(AnnouncePlanTest, ANewEpochAfterARefusalALossOrARestart) {
  ASSERT_NO_FATAL_FAILURE(Begin(3));
  Add({Stored(1), Stored(2), Stored(3)});
  clock_.Advance(kTick);
  for (const AnnounceBatch* batch : Due()) {
    Done(*batch, batch->home == 2 ? Outcome::kRefused : Outcome::kTaken);
  }
  EXPECT_EQ(plan_.StateOf(2), State::kNothing);
  EXPECT_EQ(plan_.StateOf(3), State::kHasAll);
  EXPECT_THAT(Due(), IsEmpty());  // not at once: it may refuse again
  clock_.Advance(absl::Milliseconds(100));
  auto due = Due();
  ASSERT_THAT(due, SizeIs(1));
  EXPECT_TRUE(due[0]->is_reset);
  Done(*due[0]);
  EXPECT_EQ(WalkFrom(), 0u);
  Page({}, 0, true);

  View view = ViewOf(3);
  view.members[2].incarnation = 2;
  plan_.SetView(view, clock_.Now());
  EXPECT_EQ(plan_.StateOf(3), State::kNothing);
  EXPECT_EQ(plan_.StateOf(2), State::kHasAll);
  TakeAll();
  EXPECT_EQ(WalkFrom(), 0u);
  Page({Stored(1), Stored(2), Stored(3), Stored(4), Stored(5)}, 0, true);
  clock_.Advance(kTick);
  for (const AnnounceBatch* batch : Due()) EXPECT_EQ(batch->home, 3u);  // the only one that walked

  plan_.Lose(clock_.Now());
  for (const uint32_t home : {1, 2, 3}) EXPECT_EQ(plan_.StateOf(home), State::kNothing);
  EXPECT_EQ(plan_.resets(), 3u + 1 + 1 + 3);
}

TEST_F(AnnouncePlanTest, OtherMembersMeanAnotherWalkWithoutAReset) {
  ASSERT_NO_FATAL_FAILURE(Begin(2));
  SetView(2);
  EXPECT_EQ(plan_.StateOf(2), State::kHasAll);
  SetView(3);
  EXPECT_EQ(plan_.StateOf(2), State::kWaits);
  EXPECT_EQ(plan_.StateOf(3), State::kNothing);
  EXPECT_EQ(plan_.resets(), 3u);
  EXPECT_EQ(TakeAll(), 0u);
  ASSERT_EQ(WalkFrom(), 0u);
  Page({Stored(1)}, 1024, false);
  SetView(4);  // while it is under way: it goes on, and another one follows
  TakeAll();
  EXPECT_EQ(WalkFrom(), std::nullopt);  // not yet, by the rate
  clock_.Advance(kTick);
  ASSERT_EQ(WalkFrom(), 1024u);
  Page({}, 1024, true);
  EXPECT_EQ(plan_.StateOf(2), State::kWaits);
  EXPECT_EQ(plan_.StateOf(4), State::kWaits);
  ASSERT_EQ(WalkFrom(), 0u);
  Page({}, 1024, true);
  EXPECT_EQ(plan_.StateOf(2), State::kHasAll);
  EXPECT_EQ(plan_.StateOf(4), State::kHasAll);
}

TEST_F(AnnouncePlanTest, WhereNobodyWasToldAnythingAViewStartsNoWalk) {
  SetView(2);
  SetView(3);
  EXPECT_EQ(WalkFrom(), std::nullopt);
  EXPECT_EQ(plan_.resets(), 3u);
  // A home that does not answer does not hold up the others.
  for (const AnnounceBatch* batch : Due()) {
    Done(*batch, batch->home == 3 ? Outcome::kFailed : Outcome::kTaken);
  }
  EXPECT_EQ(WalkFrom(), 0u);
  EXPECT_EQ(plan_.StateOf(3), State::kNothing);
}

TEST_F(AnnouncePlanTest, AWalkKeepsItsRate) {
  SetView(2);
  TakeAll();
  std::vector<BlockChange> page;
  for (uint64_t i = 0; i < 1'000; ++i) page.push_back(Stored(i));
  const absl::Time began = clock_.Now();
  for (uint64_t pages = 0; pages < 100;) {
    if (WalkFrom().has_value()) {
      Page(page, ++pages * 1024, false);
    } else {
      clock_.Advance(absl::Milliseconds(1));
    }
    TakeAll();
  }
  EXPECT_GE(clock_.Now() - began, absl::Milliseconds(980));
  EXPECT_LE(clock_.Now() - began, absl::Milliseconds(1'020));
}

TEST_F(AnnouncePlanTest, AHomeThatHangsIsWaitedForAndOneThatFailsIsNot) {
  ASSERT_NO_FATAL_FAILURE(Begin(2));
  uint64_t number = 0;
  for (; plan_.has_room(); ++number) Add({Stored(number)});
  EXPECT_EQ(number, 4096u);
  auto due = Due();
  ASSERT_THAT(due, SizeIs(2));
  EXPECT_TRUE(plan_.has_room());
  for (; plan_.has_room(); ++number) Add({Stored(number)});
  const AnnounceBatch hanging = *due[1];
  Done(*due[0]);
  for (due = Due(); !due.empty(); due = Due()) Done(*due[0]);
  EXPECT_FALSE(plan_.has_room());
  Done(hanging, Outcome::kFailed);
  EXPECT_TRUE(plan_.has_room());
  Add({Stored(number)});
  EXPECT_EQ(plan_.StateOf(2), State::kNothing);
  EXPECT_EQ(plan_.StateOf(1), State::kHasAll);
}

TEST_F(AnnouncePlanTest, WhileNothingChangesItWaitsForAChange) {
  constexpr absl::Duration kIdle = absl::Seconds(10);
  const auto tick = [this] { return plan_.Tick(clock_.Now()); };
  const auto is_idle = [this] { return plan_.IsIdle(clock_.Now()); };
  SetView(1);
  EXPECT_EQ(tick(), kIdle);
  EXPECT_FALSE(is_idle());  // changes are nobody's news
  SetView(2);
  clock_.Advance(kTick);
  EXPECT_EQ(tick(), kTick);  // the homes lack the reset, and then the walk
  ASSERT_NO_FATAL_FAILURE(Begin(2));
  EXPECT_EQ(tick(), kIdle);
  EXPECT_TRUE(is_idle());
  Add({Stored(1)});
  EXPECT_EQ(tick(), kTick);
  EXPECT_FALSE(is_idle());
  clock_.Advance(kTick);
  EXPECT_EQ(TakeAll(), 2u);
  EXPECT_FALSE(is_idle());  // more may follow, and waits
  EXPECT_EQ(tick(), absl::Milliseconds(200));
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(is_idle());
}

TEST_F(AnnouncePlanTest, WhileAHomeLacksAChangeItLooksOften) {
  ASSERT_NO_FATAL_FAILURE(Begin(2));
  Add({Stored(1)});
  clock_.Advance(kTick);
  const auto due = Due();
  ASSERT_THAT(due, SizeIs(2));
  Done(*due[0]);
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(plan_.Tick(clock_.Now()), kTick);  // the other home has not answered
}

// Random events; each home has what an Announced and a table make of the batches that arrive. With
// other members, a home may know of a block that went while it was no home of it.
class AnnouncePlanRandomTest : public AnnouncePlanTest, public testing::WithParamInterface<bool> {
 protected:
  struct Home {
    LocationTable table{uint64_t{1} << 20};
    // Time is not the real one.
    std::unique_ptr<Announced> announced = std::make_unique<Announced>(table, absl::ZeroDuration());
    bool is_dead = false;
  };

  AnnouncePlanRandomTest() {
    self_.number = 1;
    self_.incarnation = 5;
    LookAtView();
  }
  void LookAtView() {
    view_ = ViewOf(members_);
    for (Member& member : view_.members) member.incarnation = 1 + restarts_[member.number];
    plan_.SetView(view_, clock_.Now());
  }
  void Deliver(const AnnounceBatch& batch, bool is_replied) {
    Home& home = homes_[batch.home];
    if (home.is_dead) return Done(batch, Outcome::kFailed);
    const absl::Status taken = home.announced->Take(
        self_, {batch.epoch, batch.first_sequence, batch.is_reset, batch.stored, batch.removed});
    Done(batch, !is_replied ? Outcome::kFailed : taken.ok() ? Outcome::kTaken : Outcome::kRefused);
  }
  void Walk(uint64_t from) {
    std::vector<BlockChange> page;
    auto block = blocks_.lower_bound(from);
    for (; block != blocks_.end() && page.size() < 50; ++block) page.push_back(Stored(*block));
    const bool is_last = block == blocks_.end();
    Page(page, is_last ? 0 : *block, is_last);
  }
  // Calm: nothing is lost or late.
  void Step(bool is_calm) {
    clock_.Advance(kTick);
    if (plan_.has_room()) {
      plan_.Add(ring_, clock_.Now());
      ring_.clear();
    }
    if (const auto from = WalkFrom(); from.has_value()) Walk(*from);
    std::vector<AnnounceBatch> due;
    for (const AnnounceBatch* batch : Due()) due.push_back(*batch);
    for (const AnnounceBatch& batch : due) {
      if (is_calm || random_() % 8 > 0) {
        Deliver(batch, is_calm || random_() % 8 > 0);
      } else {
        late_.push_back(batch);  // it fails here first
        Done(batch, Outcome::kFailed);
      }
    }
    if (late_.size() <= 3 && !is_calm) return;
    for (const AnnounceBatch& batch : late_) Deliver(batch, false);
    late_.clear();
  }
  void ChangeABlock() {
    const uint64_t number = random_() % kBlocks;
    const bool is_stored = random_() % 3 > 0;
    if (is_stored ? blocks_.insert(number).second : blocks_.erase(number) > 0) {
      ring_.push_back(Stored(number, is_stored));
    }
  }
  void HappenAnything() {
    const uint64_t event = random_() % 1000;
    const auto other = static_cast<uint32_t>(2 + random_() % 5);
    if (event < 600) {
      ChangeABlock();
    } else if (event < 604) {
      members_ = GetParam() ? 1 + random_() % 6 : 5;
      LookAtView();
    } else if (event < 608) {  // a home restarts
      homes_.erase(other);
      ++restarts_[other];
      if (random_() % 2 == 0) LookAtView();  // else it refuses first
    } else if (event < 610) {
      homes_[other].is_dead = !homes_[other].is_dead;
    } else if (event < 611) {
      ring_.clear();
      plan_.Lose(clock_.Now());
    } else {
      Step(/*is_calm=*/false);
    }
  }

  static constexpr uint64_t kBlocks = 800;
  std::mt19937_64 random_ = SeededRandom();
  Member self_;
  size_t members_ = GetParam() ? 1 : 5;
  std::map<uint32_t, uint64_t> restarts_;
  View view_;
  std::map<uint32_t, Home> homes_;
  std::set<uint64_t> blocks_;
  std::vector<BlockChange> ring_;  // not added yet
  std::vector<AnnounceBatch> late_;
};
INSTANTIATE_TEST_SUITE_P(Members, AnnouncePlanRandomTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Change" : "Stay"; });

TEST_P(AnnouncePlanRandomTest, InTheEndEachHomeKnowsItsBlocks) {
  for (int i = 0; i < 4'000; ++i) HappenAnything();
  members_ = 5;
  for (auto& [number, home] : homes_) home.is_dead = false;
  LookAtView();
  for (int i = 0; i < 3'000; ++i) Step(/*is_calm=*/true);
  const Homes chosen(view_);
  for (uint64_t number = 0; number < kBlocks; ++number) {
    const Homes::Two two = chosen.Of(Stored(number).run);
    for (const uint32_t home : {two.first, two.second}) {
      const size_t found = homes_[home].table.Find(Stored(number).name).size();
      if (blocks_.contains(number)) {
        EXPECT_EQ(found, 1u) << number << " at " << home;
      } else if (!GetParam()) {
        EXPECT_EQ(found, 0u) << number << " at " << home;
      }
    }
  }
  for (uint32_t home = 1; home <= 5; ++home) EXPECT_EQ(plan_.StateOf(home), State::kHasAll);
  EXPECT_EQ(plan_.Lag(clock_.Now()), absl::ZeroDuration());
}

}  // namespace
}  // namespace cairn
