// SPDX-License-Identifier: Apache-2.0
#include "service/peer/location_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "service/peer/announced.h"
#include "service/peer/homes.h"
#include "tests/support/metric_capture.h"
#include "tests/support/random.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Holder = LocationTable::Holder;

// `bucket` places it; names of one bucket differ in `number`.
proto::LocationName NameOf(uint64_t bucket, uint64_t number = 0) {
  proto::LocationName name{};
  std::memcpy(name.data(), &bucket, 8);
  std::memcpy(name.data() + 8, &number, 8);
  return name;
}

TEST(LocationTable, KnowsTheLastHoldersOfABlock) {
  LocationTable table(LocationTable::kBytesMin);
  EXPECT_THAT(table.Find(NameOf(1)), IsEmpty());
  for (uint16_t member = 1; member <= 5; ++member) table.Add(NameOf(1), {member, 9});
  EXPECT_THAT(table.Find(NameOf(1)),
              ElementsAre(Holder{5, 9}, Holder{4, 9}, Holder{3, 9}, Holder{2, 9}));
  table.Add(NameOf(1), {3, 10});
  EXPECT_THAT(table.Find(NameOf(1)),
              ElementsAre(Holder{3, 10}, Holder{5, 9}, Holder{4, 9}, Holder{2, 9}));
  EXPECT_EQ(table.count(), 1u);
  table.Remove(NameOf(1), 5);
  table.Remove(NameOf(1), 7);
  EXPECT_THAT(table.Find(NameOf(1)), ElementsAre(Holder{3, 10}, Holder{4, 9}, Holder{2, 9}));
  for (const uint16_t member : {2, 3, 4}) table.Remove(NameOf(1), member);
  EXPECT_THAT(table.Find(NameOf(1)), IsEmpty());
  EXPECT_EQ(table.count(), 0u);
}

TEST(LocationTable, InAFullBucketTheOldestGoes) {
  LocationTable table(LocationTable::kBytesMin);
  for (uint64_t i = 0; i < 16; ++i) table.Add(NameOf(0, i), {1, 1});
  table.Add(NameOf(0, 0), {2, 1});  // announced again: it is young
  table.Add(NameOf(0, 16), {1, 1});
  EXPECT_THAT(table.Find(NameOf(0, 0)), ElementsAre(Holder{2, 1}, Holder{1, 1}));
  EXPECT_THAT(table.Find(NameOf(0, 1)), IsEmpty());
  EXPECT_EQ(table.Find(NameOf(0, 2)).size(), 1u);
  EXPECT_EQ(table.count(), 16u);
  MetricCapture metrics;
  table.Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_locations"), 16);
  EXPECT_EQ(metrics.Value("cairn_locations_bytes"), 512);
  EXPECT_EQ(metrics.Value("cairn_locations_evicted_total"), 1);
}

TEST(LocationTable, ForgetsAMember) {
  LocationTable table(uint64_t{1} << 20);
  std::mt19937_64 random = SeededRandom();
  std::vector<proto::LocationName> names;
  for (int i = 0; i < 5'000; ++i) {
    names.push_back(NameOf(random(), i));
    table.Add(names.back(), {1, 1});
    if (i % 2 == 0) table.Add(names.back(), {2, 1});
  }
  table.Forget(1);
  EXPECT_EQ(table.count(), 2'500u);
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(table.Find(names[i]).size(), i % 2 == 0 ? 1u : 0u);
  }
  table.Forget(2);
  EXPECT_EQ(table.count(), 0u);
}

// Random events against a list of each bucket.
TEST(LocationTable, DoesWhatASlowModelDoes) {
  LocationTable table(LocationTable::kBytesMin);  // 64 buckets
  struct Known {
    proto::LocationName name;
    std::list<Holder> holders;
  };
  std::map<uint64_t, std::list<Known>> buckets;
  std::mt19937_64 random = SeededRandom();
  for (int step = 0; step < 50'000; ++step) {
    const uint64_t bucket = random() % 4, number = random() % 40;
    const proto::LocationName name = NameOf(bucket << 62, number);
    const Holder holder = {static_cast<uint16_t>(1 + random() % 6),
                           static_cast<uint16_t>(random() % 3)};
    std::list<Known>& known = buckets[bucket];
    auto found = std::ranges::find(known, name, &Known::name);
    if (random() % 3 > 0) {
      table.Add(name, holder);
      if (found == known.end()) {
        if (known.size() == LocationTable::kWays) known.pop_back();
        found = known.insert(known.begin(), {name, {}});
      }
      known.splice(known.begin(), known, found);
      found->holders.remove_if([&](const Holder& one) { return one.member == holder.member; });
      found->holders.push_front(holder);
      if (found->holders.size() > LocationTable::kHoldersPerEntry) found->holders.pop_back();
    } else {
      table.Remove(name, holder.member);
      if (found != known.end()) {
        found->holders.remove_if([&](const Holder& one) { return one.member == holder.member; });
        if (found->holders.empty()) known.erase(found);
      }
    }
    const proto::LocationName asked = NameOf(bucket << 62, random() % 40);
    const auto expected = std::ranges::find(known, asked, &Known::name);
    const LocationTable::Holders holders = table.Find(asked);
    ASSERT_EQ(std::list<Holder>(holders.begin(), holders.end()),
              expected == known.end() ? std::list<Holder>() : expected->holders);
  }
  size_t count = 0;
  for (const auto& [bucket, known] : buckets) count += known.size();
  EXPECT_EQ(table.count(), count);
}

TEST(LocationTable, IsUsedByManyThreads) {
  LocationTable table(uint64_t{1} << 18);
  std::vector<std::thread> threads;
  for (uint16_t member = 1; member <= 4; ++member) {
    threads.emplace_back([&table, member] {
      std::mt19937_64 random = SeededRandom(member);
      for (int i = 0; i < 20'000; ++i) {
        const proto::LocationName name = NameOf(random() % 512 << 55);
        table.Add(name, {member, 1});
        for (const Holder& holder : table.Find(name)) EXPECT_EQ(holder.incarnation, 1);
        if (i % 3 == 0) table.Remove(name, member);
        if (i % 5'000 == 0) table.Forget(member);
      }
      table.Forget(member);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(table.count(), 0u);
}

// --- What members announce

class AnnouncedTest : public testing::Test {
 protected:
  static Member MemberOf(uint32_t number, uint64_t incarnation) {
    Member member;
    member.name = "m" + std::to_string(number);
    member.number = number;
    member.incarnation = incarnation;
    member.state = MemberState::kJoined;
    return member;
  }
  absl::Status Take(uint64_t epoch, uint64_t first, bool is_reset,
                    const std::vector<proto::LocationName>& stored,
                    const std::vector<proto::LocationName>& removed = {}) {
    return announced_.Take(from_, {epoch, first, is_reset, stored, removed});
  }

  LocationTable table_{LocationTable::kBytesMin};
  Announced announced_{table_, /*forget_period=*/absl::Hours(1)};
  Member from_ = MemberOf(3, 0x70005);
};

TEST_F(AnnouncedTest, TakesBatchesInTheirOrder) {
  EXPECT_TRUE(absl::IsFailedPrecondition(Take(1, 0, false, {NameOf(1)})));
  EXPECT_TRUE(Take(1, 0, true, {}).ok());
  EXPECT_TRUE(Take(1, 0, false, {NameOf(1), NameOf(2)}).ok());
  EXPECT_THAT(table_.Find(NameOf(1)), ElementsAre(Holder{3, 5}));
  EXPECT_TRUE(absl::IsFailedPrecondition(Take(1, 3, false, {NameOf(9)})));  // a gap
  EXPECT_TRUE(Take(1, 2, false, {NameOf(3)}, {NameOf(1)}).ok());
  EXPECT_THAT(table_.Find(NameOf(1)), IsEmpty());
  // The reply was lost, and the batch comes again.
  EXPECT_TRUE(Take(1, 0, false, {NameOf(1), NameOf(2)}).ok());
  EXPECT_THAT(table_.Find(NameOf(1)), IsEmpty());
  EXPECT_TRUE(Take(1, 0, true, {}).ok());
  EXPECT_EQ(table_.count(), 2u);
  EXPECT_TRUE(Take(1, 4, false, {NameOf(4)}).ok());
  // Numbers that overflow.
  EXPECT_TRUE(absl::IsFailedPrecondition(Take(1, UINT64_MAX, false, {NameOf(4), NameOf(5)})));
}

TEST_F(AnnouncedTest, ANewEpochBeginsEmpty) {
  ASSERT_TRUE(Take(1, 0, true, {}).ok());
  ASSERT_TRUE(Take(1, 0, false, {NameOf(1)}).ok());
  ASSERT_TRUE(announced_.Take(MemberOf(4, 1), {1, 0, true, {}, {}}).ok());
  const std::vector<proto::LocationName> other = {NameOf(1), NameOf(2)};
  ASSERT_TRUE(announced_.Take(MemberOf(4, 1), {1, 0, false, other, {}}).ok());
  EXPECT_TRUE(Take(2, 0, true, {}).ok());
  EXPECT_THAT(table_.Find(NameOf(1)), ElementsAre(Holder{4, 1}));
  EXPECT_TRUE(absl::IsFailedPrecondition(Take(1, 1, false, {NameOf(3)})));
  EXPECT_TRUE(Take(2, 0, false, {NameOf(1)}).ok());
  // The same epoch of another process.
  from_.incarnation = 6;
  EXPECT_TRUE(absl::IsFailedPrecondition(Take(2, 1, false, {NameOf(3)})));
  EXPECT_TRUE(Take(2, 0, true, {}).ok());
  EXPECT_EQ(table_.Find(NameOf(1)).size(), 1u);
}

// Each one costs a walk over the table.
TEST_F(AnnouncedTest, EpochsOfOneProcessBeginOnlySoOften) {
  for (uint64_t epoch = 1; epoch <= 2; ++epoch) {
    ASSERT_TRUE(Take(epoch, 0, true, {}).ok()) << epoch;
    ASSERT_TRUE(Take(epoch, 0, false, {NameOf(epoch)}).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(Take(3, 0, true, {})));
  EXPECT_TRUE(Take(2, 1, false, {NameOf(3)}).ok()) << "the epoch before goes on";
  EXPECT_TRUE(announced_.Take(MemberOf(4, 1), {1, 0, true, {}, {}}).ok());
  from_.incarnation = 6;
  EXPECT_TRUE(Take(1, 0, true, {}).ok()) << "another process";
}

TEST_F(AnnouncedTest, RefusesNumbersThatTheTableCannotHave) {
  EXPECT_TRUE(absl::IsInvalidArgument(
      announced_.Take(MemberOf(kHomeNumberMax + 1, 1), {1, 0, true, {}, {}})));
}

}  // namespace
}  // namespace cairn
