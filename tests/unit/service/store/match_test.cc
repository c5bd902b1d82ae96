// SPDX-License-Identifier: Apache-2.0
// Match by each group's rule, leases, waiting.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/support/metric_capture.h"
#include "tests/support/store_fixture.h"
#include "tests/unit/service/store/chains.h"

namespace cairn {
namespace {

TEST(MatchTest, LongestPrefixThatIsThere) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  store.PutChain(space, 6);
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, Keys(6))), 6u);
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, Keys(9))), 6u);
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, {})), 0u);
  store.index->Delete(space.id(), {StoreFixture::Key(3)});
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, Keys(6))), 2u);
  store.index->Delete(space.id(), {StoreFixture::Key(1)});
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, Keys(6))), 0u);
}

TEST(MatchTest, WhatWasFoundLatelyCanBeOffered) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto used = [&] {
    const int64_t since = absl::ToUnixSeconds(store.clock.Now() - absl::Minutes(10));
    std::vector<UsedBlock> blocks;
    uint64_t cursor = 0;
    while (store.index->WalkUsed(static_cast<uint32_t>(since), &cursor, &blocks)) {
    }
    std::ranges::sort(blocks, std::greater<>(), &UsedBlock::last_use);
    return blocks;
  };
  store.PutChain(space, 6);
  EXPECT_THAT(used(), testing::IsEmpty()) << "a put is no use";
  MatchedBlocks(store, store.Query(space, Keys(4)));
  const std::vector<UsedBlock> found = used();
  ASSERT_THAT(found, testing::SizeIs(4));
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(found[i].name, (BlockName{space.id(), StoreFixture::Key(i + 1)}));
    EXPECT_EQ(found[i].parent, i == 0 ? Key{} : StoreFixture::Key(i));
    EXPECT_EQ(found[i].first_position, i * space.tokens_per_block());
    EXPECT_GT(found[i].image_bytes, 16u * 1024);
    ASSERT_THAT(found[i].images, testing::SizeIs(1));
    EXPECT_EQ(found[i].images[0].slice, StoreFixture::Whole(space));
  }
  store.clock.Advance(absl::Minutes(9));
  store.index->Lookup({space.id(), StoreFixture::Key(6)}, 0, StoreFixture::Whole(space));
  store.clock.Advance(absl::Minutes(2));
  ASSERT_THAT(used(), testing::SizeIs(1));
  EXPECT_EQ(used()[0].name.key, StoreFixture::Key(6));
}

TEST(MatchTest, TokenLimitCutsToWholeBlocks) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  store.PutChain(space, 4);
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, Keys(4), false, 63)), 3u);
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, Keys(4), false, 64)), 4u);
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, Keys(4), false, 15)), 0u);
}

TEST(MatchTest, HybridNeedsTheWindowAndTheStateAtItsEndOnly) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace("raw", HybridIdentity());
  for (uint64_t i = 1; i <= 8; ++i) {
    PutGroup(store, space, i, 0);
  }
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, Keys(8))), 0u);
  for (uint64_t i = 4; i <= 7; ++i) {
    PutGroup(store, space, i, 1);
  }
  PutGroup(store, space, 6, 2);
  // A state at 6, and a window over 4, 5, 6.
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, Keys(8))), 6u);
  PutGroup(store, space, 7, 2);
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, Keys(8))), 7u);
  // token_limit below: scanned from the longest that the limit allows.
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, Keys(8), false, 7 * 16 - 1)), 6u);
  // A state at 5 would need the window over 3, 4, 5.
  PutGroup(store, space, 5, 2);
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, Keys(5))), 0u);
  PutGroup(store, space, 3, 1);
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, Keys(5))), 5u);
  // Without the state the window alone decides.
  MatchQuery query = store.Query(space, Keys(8));
  query.wanted = *space.Want({}, std::vector<uint32_t>{2});
  EXPECT_EQ(MatchedBlocks(store, query), 7u);
}

TEST(MatchTest, WindowOfAShortPrefixIsAllOfIt) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace("raw", HybridIdentity());
  for (uint64_t i = 1; i <= 2; ++i) {
    for (uint16_t group = 0; group < 3; ++group) {
      PutGroup(store, space, i, group);
    }
  }
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, Keys(2))), 2u);
}

TEST(MatchTest, AsksForSlices) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(1), {0, 2, 0, 2}).ok());
  MatchQuery query = store.Query(space, Keys(1));
  EXPECT_EQ(MatchedBlocks(store, query), 0u);
  query.wanted =
      *space.Want(std::vector<SpaceEntry::Ask>{{.group = 0, .head_first = 0, .head_count = 2}}, {});
  EXPECT_EQ(MatchedBlocks(store, query), 1u);
  EXPECT_EQ(store.index->Contains(space.id(), Keys(1), space.whole()), std::vector<bool>{false});
  ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(1), {0, 2, 1, 3}).ok()) << "may overlap";
  EXPECT_EQ(store.index->Contains(space.id(), Keys(1), space.whole()), std::vector<bool>{true});
}

// Blocks 1 to `count`, each of 64 slices, which no call may visit in one hold.
void PutSliced(StoreFixture& store, uint64_t space_id, uint64_t count) {
  for (uint64_t block = 1; block <= count; ++block) {
    for (uint16_t head = 0; head < codecs::kImagesPerBlockMax; ++head) {
      NewImage image;
      image.claim.name = {space_id, StoreFixture::Key(block)};
      image.claim.tokens = 16;
      image.claim.slice = {0, 1, head, 1};
      image.copy.extent = *store.host->Allocate(4_KiB);
      CAIRN_CHECK_OK(store.index->Publish(std::move(image)));
    }
  }
}

MatchQuery SlicedQuery(StoreFixture& store, uint64_t space_id, uint64_t count, bool wants_lease) {
  MatchQuery query;
  query.space_id = space_id;
  query.tokens_per_block = 16;
  query.keys = Keys(count);
  query.wanted = {{.group = 0, .slice = {0, 1, 0, codecs::kImagesPerBlockMax}}};
  query.wants_lease = wants_lease;
  query.session_id = store.session.id;
  query.tenant = "acme";
  return query;
}

TEST(MatchTest, CountsWhatWasMissedTheFirstTime) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto keys = store.PutChain(space, 4);
  auto longer = store.Query(space, keys);
  longer.keys.push_back(Keys(9)[8]);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(store.index->Match(longer)->blocks.size(), 4u);
  }
  store.index->Delete(space.id(), keys);
  ASSERT_EQ(store.index->Match(longer)->blocks.size(), 0u);
  EXPECT_EQ(IndexMetric(store, "cairn_match_asked_blocks_total"), 4 * 5);
  EXPECT_EQ(IndexMetric(store, "cairn_match_first_missed_blocks_total"), 1);
}

TEST(MatchTest, NoCallHoldsTheIndexForManyImages) {
  constexpr uint64_t kBlocks = 100;
  StoreFixture store(256_MiB);
  PutSliced(store, 7, kBlocks);
  for (const bool wants_lease : {false, true}) {
    const auto result = store.index->Match(SlicedQuery(store, 7, kBlocks, wants_lease));
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->blocks.size(), kBlocks);
    EXPECT_EQ(result->lease.has_value(), wants_lease);
  }
  EXPECT_EQ(store.index->leased_bytes(), kBlocks * codecs::kImagesPerBlockMax * 4_KiB);
  int answers = 0;
  store.index->MatchWhenReady(SlicedQuery(store, 7, kBlocks, false),
                              store.clock.Now() + absl::Seconds(5),
                              [&](absl::StatusOr<MatchAnswer> result) {
                                answers += result.ok() && result->blocks.size() == kBlocks ? 1 : 0;
                              });
  EXPECT_EQ(answers, 1);
  store.index->EndSession(store.session.id);
  EXPECT_EQ(store.index->leased_bytes(), 0u);
  EXPECT_EQ(store.index->pinned_bytes(), 0u);
  EXPECT_GT(IndexMetric(store, "cairn_index_hold_seconds"), 30);
  EXPECT_GT(IndexMetric(store, "cairn_index_visits_total"), 5 * 64 * kBlocks);
  EXPECT_LE(IndexMetric(store, "cairn_index_hold_visits_max"), limits::kVisitsPerHoldMax);
}

// Counts, not times: whoever waits for the index has it before a match takes it again.
TEST(MatchTest, OthersReadBetweenTwoHoldsOfAMatch) {
  constexpr uint64_t kBlocks = 400;
  StoreFixture store(256_MiB, /*blocks_max=*/8192);  // so, of 32,768 images
  PutSliced(store, 7, kBlocks);
  const MatchQuery query = SlicedQuery(store, 7, kBlocks, true);
  std::atomic<bool> is_matching{false}, is_over{false};
  std::atomic<int> meanwhile{0};
  std::thread reader([&] {
    const BlockName name = {7, StoreFixture::Key(1)};
    while (!is_over) {
      const bool was_matching = is_matching;
      CAIRN_CHECK(!store.index->Lookup(name, 0, {0, 1, 5, 1}).empty());
      meanwhile += was_matching && is_matching ? 1 : 0;
    }
  });
  // On a busy machine the reader may not run at all while one of them does.
  int matches = 0;
  for (; matches < 200 && meanwhile < 500; ++matches) {
    is_matching = true;
    const auto result = store.index->Match(query);
    is_matching = false;
    ASSERT_TRUE(result.ok() && result->lease.has_value());
    store.index->Release("acme", {*result->lease});
  }
  is_over = true;
  reader.join();
  EXPECT_GT(meanwhile, 10 * matches) << "look-ups that began and ended within a match";
}

TEST(LeaseTest, KeepsBytesUntilReleasedByItsTenant) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto keys = store.PutChain(space, 3);
  const auto result = store.index->Match(store.Query(space, keys, true));
  ASSERT_TRUE(result.ok() && result->lease.has_value());
  EXPECT_EQ(result->lease_ms, limits::kLeaseMs);
  const uint64_t pinned = store.index->pinned_bytes();
  EXPECT_EQ(pinned, store.host->used_bytes());
  EXPECT_EQ(store.index->leased_bytes(), pinned);
  EXPECT_EQ(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_EQ(store.index->Delete(space.id(), keys), 3u);
  EXPECT_EQ(store.host->used_bytes(), 0u) << "leases are of images, and those are gone";
  store.index->Release("rival", {*result->lease});
  EXPECT_EQ(store.index->lease_count(), 1u);
  store.index->Release("acme", {*result->lease});
  EXPECT_EQ(store.index->lease_count(), 0u);
  EXPECT_EQ(store.index->pinned_bytes(), 0u);
  EXPECT_EQ(store.host->used_bytes(), 0u);
}

TEST(LeaseTest, RunsOutUnlessRenewedAndThenTooInTheEnd) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto keys = store.PutChain(space, 1);
  ASSERT_TRUE(store.index->Match(store.Query(space, keys, true)).ok());
  store.clock.Advance(absl::Seconds(50));
  store.index->RenewLeases(store.session.id);
  store.clock.Advance(absl::Seconds(50));
  store.upkeep->RunOnce();
  EXPECT_EQ(store.index->lease_count(), 1u);
  for (int i = 0; i < 9; ++i) {
    store.index->RenewLeases(store.session.id);
    store.clock.Advance(absl::Seconds(55));
  }
  store.index->RenewLeases(store.session.id);
  store.clock.Advance(absl::Seconds(20));
  store.upkeep->RunOnce();
  EXPECT_EQ(store.index->lease_count(), 0u) << "600 s are the most";
  EXPECT_EQ(store.index->pinned_bytes(), 0u);
}

TEST(LeaseTest, EndsWithItsSession) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto keys = store.PutChain(space, 2);
  ASSERT_TRUE(store.index->Match(store.Query(space, keys, true)).ok());
  store.sessions.End(store.session.id);
  EXPECT_EQ(store.index->lease_count(), 0u);
  EXPECT_EQ(store.index->pinned_bytes(), 0u);
  const auto late = store.index->Match(store.Query(space, keys, true));
  ASSERT_TRUE(late.ok());
  EXPECT_FALSE(late->lease.has_value()) << "no lease for a session that is over";
  EXPECT_EQ(store.index->lease_count(), 0u);
}

TEST(LeaseTest, PastTheShareOfTheTenantThePrefixIsShorter) {
  StoreFixture store(16_MiB);
  auto identity = StoreFixture::Identity();
  identity.tokens_per_block = 1024;  // 1 MiB of source a block
  const SpaceEntry& space = store.OpenSpace("raw", identity);
  const auto keys = store.PutChain(space, 14);
  const auto first = store.index->Match(store.Query(space, keys, true));
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(first->is_shortened_by_pins);
  EXPECT_EQ(first->blocks.size(), 3u) << "of half of the tier a tenant alone may lease half";
  EXPECT_LE(store.index->leased_bytes(), store.host->capacity_bytes() / 4);
  const auto again = store.index->Match(store.Query(space, keys, true));
  EXPECT_EQ(again->blocks.size(), first->blocks.size()) << "the same bytes are leased once";
  const auto unleased = store.index->Match(store.Query(space, keys));
  EXPECT_EQ(unleased->blocks.size(), 14u);
  EXPECT_FALSE(unleased->is_shortened_by_pins);
}

TEST(WaitTest, AnsweredByThePublishThatCompletesTheSet) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  std::optional<MatchAnswer> answer;
  int wakes = 0;
  store.index->SetWake([&] { ++wakes; });
  store.index->MatchWhenReady(store.Query(space, Keys(3), true),
                              store.clock.Now() + absl::Seconds(5),
                              [&](absl::StatusOr<MatchAnswer> result) { answer = *result; });
  EXPECT_EQ(wakes, 1);
  store.PutChain(space, 2);
  EXPECT_FALSE(answer.has_value());
  EXPECT_EQ(store.index->waiter_count(), 1u);
  ASSERT_TRUE(
      store.PutSource(space, StoreFixture::Key(3), {0, 2, 0, 1}, StoreFixture::Key(2), 32).ok());
  EXPECT_FALSE(answer.has_value());
  ASSERT_TRUE(
      store.PutSource(space, StoreFixture::Key(3), {0, 2, 1, 3}, StoreFixture::Key(2), 32).ok());
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->blocks.size(), 3u);
  EXPECT_TRUE(answer->lease.has_value());
  EXPECT_EQ(store.index->waiter_count(), 0u);
}

TEST(WaitTest, AnsweredWithWhatThereIsAtTheDeadline) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  store.PutChain(space, 1);
  std::optional<MatchAnswer> answer;
  const absl::Time deadline = store.clock.Now() + absl::Seconds(5);
  store.index->MatchWhenReady(store.Query(space, Keys(3)), deadline,
                              [&](absl::StatusOr<MatchAnswer> result) { answer = *result; });
  EXPECT_EQ(store.upkeep->RunOnce(), std::min(deadline, store.clock.Now() + absl::Seconds(1)));
  store.clock.Advance(absl::Seconds(4.9));
  store.upkeep->RunOnce();
  EXPECT_FALSE(answer.has_value());
  store.clock.Advance(absl::Seconds(0.2));
  store.upkeep->RunOnce();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->blocks.size(), 1u);
  EXPECT_EQ(store.index->waiter_count(), 0u);
}

TEST(WaitTest, AnsweredAtOnceWhenNothingIsMissingAndAtTheEndOfItsSession) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  store.PutChain(space, 1);
  int answers = 0;
  const auto count = [&](absl::StatusOr<MatchAnswer> result) {
    ++answers;
    EXPECT_TRUE(result.ok());
    EXPECT_FALSE(result->lease.has_value());
  };
  const absl::Time deadline = store.clock.Now() + absl::Seconds(5);
  store.index->MatchWhenReady(store.Query(space, Keys(1)), deadline, count);
  EXPECT_EQ(answers, 1);
  store.index->MatchWhenReady(store.Query(space, Keys(2), true), deadline, count);
  EXPECT_EQ(answers, 1);
  store.sessions.End(store.session.id);
  EXPECT_EQ(answers, 2);
  EXPECT_EQ(store.index->lease_count(), 0u);
  EXPECT_EQ(store.index->pinned_bytes(), 0u);
}

TEST(WaitTest, AWaiterThatIsBeingTriedIsAnsweredAtTheEndOfItsSession) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  store.PutChain(space, 1);
  const absl::Time deadline = store.clock.Now() + absl::Seconds(50);
  // Both wait for block 3. The answer to the first ends the session, while the second is tried.
  MatchQuery first = store.Query(space, {StoreFixture::Key(3)});
  MatchQuery second = store.Query(space, Keys(3));
  int answers = 0;
  store.index->MatchWhenReady(first, deadline, [&](absl::StatusOr<MatchAnswer>) {
    ++answers;
    store.sessions.End(store.session.id);
  });
  store.index->MatchWhenReady(second, deadline, [&](absl::StatusOr<MatchAnswer> result) {
    ++answers;
    EXPECT_EQ(result->blocks.size(), 1u);
  });
  EXPECT_EQ(answers, 0);
  EXPECT_TRUE(
      store.PutSource(space, StoreFixture::Key(3), StoreFixture::Whole(space), {}, 32).ok());
  EXPECT_EQ(answers, 2) << "it would wait 50 s for nobody";
  EXPECT_EQ(store.index->waiter_count(), 0u);
}

TEST(WaitTest, ACallThatComesAfterTheEndOfItsSessionDoesNotWait) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  store.sessions.End(store.session.id);
  int answers = 0;
  store.index->MatchWhenReady(store.Query(space, Keys(2), true),
                              store.clock.Now() + absl::Seconds(50),
                              [&](absl::StatusOr<MatchAnswer> result) {
                                ++answers;
                                EXPECT_TRUE(result.ok());
                              });
  EXPECT_EQ(answers, 1);
  EXPECT_EQ(store.index->waiter_count(), 0u);
}

TEST(WaitTest, WaitersAreBounded) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  size_t refused = 0;
  for (size_t i = 0; i < limits::kWaitersPerSessionMax + 3; ++i) {
    store.index->MatchWhenReady(store.Query(space, Keys(1)), store.clock.Now() + absl::Seconds(5),
                                [&](absl::StatusOr<MatchAnswer> result) {
                                  refused += absl::IsResourceExhausted(result.status()) ? 1 : 0;
                                });
  }
  EXPECT_EQ(refused, 3u);
  store.sessions.End(store.session.id);
  EXPECT_EQ(store.index->waiter_count(), 0u);
}

}  // namespace
}  // namespace cairn
