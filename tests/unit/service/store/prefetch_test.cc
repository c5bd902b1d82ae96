// SPDX-License-Identifier: Apache-2.0
// Reads ahead of gets: those that a client asked for, and those along a leased prefix.
#include "service/get/prefetches.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tests/support/lasting_store.h"
#include "tests/support/metric_capture.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

using KeyList = std::vector<proto::BlockKey>;

class PrefetchTest : public testing::Test {
 protected:
  ~PrefetchTest() override {
    store_.lasting.HoldCompletions(false);
    store_.lasting.CompleteAll();
    AwaitReads();
    store_.upkeep->Stop();
  }
  // A chain that lies in the lasting tier alone.
  KeyList PutCold(uint64_t count, uint64_t first = 1) {
    KeyList keys = store_.PutChain(space_, count, first);
    store_.WriteAllDown();
    store_.EvictHost();
    return keys;
  }
  Prefetches::Answer Prefetch(const KeyList& keys) {
    return store_.gets->prefetches().QueueReads(space_.id(), keys, space_.whole());
  }
  void AwaitReads() {
    EXPECT_TRUE(WaitFor([&] { return store_.gets->promotions().count() == 0; }));
  }
  size_t InMemory() const { return store_.index->figures(TierId::kHost).block_count; }
  double Metric(const std::string& series) {
    MetricCapture metrics;
    store_.gets->Report(metrics);
    return metrics.Value(series);
  }

  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  LastingStore store_{disk_};
  SpaceEntry& space_ = store_.OpenSpace("raw");
};

TEST_F(PrefetchTest, SaysAtOnceWhereTheBlocksAre) {
  KeyList keys = PutCold(3);
  store_.PutChain(space_, 1, /*first=*/50);
  keys.push_back(StoreFixture::Key(50));
  keys.push_back(StoreFixture::Key(99));
  store_.lasting.HoldCompletions(true);
  Prefetches::Answer answer = Prefetch(keys);
  EXPECT_EQ(answer.on_their_way, 3u);
  EXPECT_EQ(answer.in_memory, 1u);
  EXPECT_EQ(answer.absent, 1u);
  EXPECT_EQ(answer.refused, 0u);
  EXPECT_EQ(InMemory(), 1u) << "none is read yet";
  EXPECT_EQ(store_.lasting.waiting().size(), 3u);
  store_.lasting.CompleteAll();
  AwaitReads();
  EXPECT_EQ(InMemory(), 4u);
  answer = Prefetch(keys);
  EXPECT_EQ(answer.in_memory, 4u);
  EXPECT_EQ(answer.on_their_way, 0u);
  EXPECT_EQ(store_.lasting.waiting().size(), 0u) << "nothing is read twice";
}

TEST_F(PrefetchTest, ToAskWakesNobody) {
  KeyList keys = PutCold(300);
  const auto awake = [&] {
    MetricCapture metrics;
    store_.index->Report(metrics);
    return metrics.Value("cairn_index_awake_blocks");
  };
  EXPECT_EQ(awake(), 0);
  using Where = BlockIndex::Where;
  keys.push_back(StoreFixture::Key(999));
  std::vector<Where> expected(300, Where::kCold);
  expected.push_back(Where::kNowhere);
  EXPECT_EQ(store_.index->Locate(space_.id(), keys, space_.whole()), expected);
  EXPECT_EQ(awake(), 0);
  store_.Fetch(space_, keys[7]);
  AwaitReads();
  expected[7] = Where::kInMemory;
  EXPECT_EQ(store_.index->Locate(space_.id(), keys, space_.whole()), expected);
}

TEST_F(PrefetchTest, EachTenantHasAShareOfWhatWaits) {
  proto::SpaceIdentity identity = StoreFixture::Identity();
  identity.groups[0].layers = {0, 1, 2, 3};
  identity.groups[0].k_dim = identity.groups[0].v_dim = 8;
  SpaceEntry& space = store_.OpenSpace("raw", identity);
  const KeyList keys = store_.PutChain(space, 660);
  identity.tenant = "other";
  SpaceEntry& other = store_.OpenSpace("raw", identity);
  store_.session = store_.OpenSession("other");
  const KeyList their_keys = store_.PutChain(other, 2);
  store_.WriteAllDown();
  store_.EvictHost();
  store_.lasting.HoldCompletions(true);
  // Each slice of a block waits by itself, and there are 100 of four layers and four heads.
  std::vector<std::pair<uint16_t, uint16_t>> ranges;
  for (uint16_t first = 0; first < 4; ++first) {
    for (uint16_t count = 1; first + count <= 4; ++count) {
      ranges.emplace_back(first, count);
    }
  }
  std::vector<WantedGroup> wanted;
  for (const auto& [layer, layer_count] : ranges) {
    for (const auto& [head, head_count] : ranges) {
      wanted.push_back({.group = 0, .slice = {layer, layer_count, head, head_count}});
    }
  }
  const Prefetches::Answer answer = store_.gets->prefetches().QueueReads(space.id(), keys, wanted);
  EXPECT_EQ(answer.on_their_way, limits::kPrefetchesMax / 2 / wanted.size());
  EXPECT_EQ(answer.refused, keys.size() - answer.on_their_way);
  EXPECT_EQ(Metric("cairn_limit_refusals_total{limit=\"prefetches\"}"), 1) << "of the call";
  EXPECT_EQ(store_.gets->prefetches().QueueReads(other.id(), their_keys, wanted).on_their_way, 2u);
}

TEST_F(PrefetchTest, TakesAtMostHalfOfWhatReadsMayTake) {
  const KeyList keys = PutCold(200);
  store_.lasting.HoldCompletions(true);
  EXPECT_EQ(Prefetch(keys).on_their_way, 200u);
  const uint64_t share = 16_MiB / limits::kPromotedShareOfHost / 2;
  EXPECT_LE(Metric("cairn_promoting_bytes"), share);
  EXPECT_GT(Metric("cairn_promoting_bytes"), share / 2);
  const size_t first = store_.lasting.waiting().size();
  EXPECT_LT(first, 200u);
  EXPECT_EQ(Metric("cairn_waiting_prefetches"), 200 - static_cast<double>(first));
  // One that ends makes room for the next.
  store_.lasting.Complete(store_.lasting.waiting()[0], absl::OkStatus());
  EXPECT_TRUE(WaitFor([&] { return store_.lasting.waiting().size() == first; }));
  store_.lasting.HoldCompletions(false);
  EXPECT_TRUE(WaitFor([&] {
    store_.lasting.CompleteAll();
    return InMemory() == 200;
  }));
  EXPECT_EQ(Metric("cairn_prefetches_total{outcome=\"begun\"}"), 200);
}

TEST_F(PrefetchTest, WhatWaitsIsNotQueuedAgain) {
  const KeyList keys = PutCold(200);
  store_.lasting.HoldCompletions(true);
  Prefetch(keys);
  const double waiting = Metric("cairn_waiting_prefetches");
  EXPECT_GT(waiting, 100);
  EXPECT_EQ(Prefetch(keys).on_their_way, 200u) << "asked again, as who looks how far it is does";
  // Those that are being read are found out when it is their turn.
  EXPECT_LE(Metric("cairn_waiting_prefetches"), 200);
  EXPECT_EQ(Prefetch(keys).on_their_way, 200u);
  EXPECT_LE(Metric("cairn_waiting_prefetches"), 200);
}

TEST_F(PrefetchTest, AGetSharesTheRead) {
  const KeyList keys = PutCold(1);
  store_.lasting.HoldCompletions(true);
  Prefetch(keys);
  std::atomic<bool> is_hit{false};
  proto::Get body;
  body.space_id = space_.id();
  body.key = keys[0];
  const auto whole = StoreFixture::Whole(space_);
  body.slice = {whole.layer_first, whole.layer_count, whole.head_first, whole.head_count};
  StoreFixture::RunGet(*store_.gets, body, StoreFixture::RequestOf(store_.session),
                       limits::kTransferBytesMax,
                       [&](const absl::StatusOr<Answer>& answer) { is_hit = answer.ok(); });
  EXPECT_EQ(store_.lasting.waiting().size(), 1u);
  store_.lasting.CompleteAll();
  EXPECT_TRUE(WaitFor([&] { return is_hit.load(); }));
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"shared\"}"), 1);
}

TEST_F(PrefetchTest, NoRoomIsNoError) {
  const KeyList keys = PutCold(4);
  std::vector<Extent> all;
  for (auto room = store_.host->Allocate(64_KiB, nullptr); room.ok();
       room = store_.host->Allocate(64_KiB, nullptr)) {
    all.push_back(*std::move(room));
  }
  EXPECT_EQ(Prefetch(keys).on_their_way, 4u);
  EXPECT_EQ(Metric("cairn_prefetches_total{outcome=\"dropped\"}"), 4);
  all.clear();
  Prefetch(keys);
  EXPECT_TRUE(WaitFor([&] { return InMemory() == 4; }));
}

TEST_F(PrefetchTest, AGetOfALeasedBlockReadsThoseThatFollow) {
  const KeyList keys = PutCold(30);
  const auto match = store_.index->Match(store_.Query(space_, keys, /*wants_lease=*/true));
  ASSERT_TRUE(match.ok() && match->blocks.size() == 30);
  store_.Fetch(space_, keys[2]);
  EXPECT_TRUE(WaitFor([&] { return InMemory() == 1 + limits::kReadAheadBlocksMax; }));
  const auto again = store_.index->Match(store_.Query(space_, keys));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->blocks[1].tier, TierId::kSsd);
  EXPECT_EQ(again->blocks[2].tier, TierId::kHost);
  EXPECT_EQ(again->blocks[2 + limits::kReadAheadBlocksMax].tier, TierId::kHost);
  EXPECT_EQ(again->blocks[3 + limits::kReadAheadBlocksMax].tier, TierId::kSsd);
}

TEST_F(PrefetchTest, WithoutALeaseNothingIsReadAhead) {
  const KeyList keys = PutCold(5);
  store_.Fetch(space_, keys[0]);
  AwaitReads();
  EXPECT_EQ(InMemory(), 1u);
}

TEST_F(PrefetchTest, ASliceThatIsReadAloneReadsNothingAhead) {
  proto::SpaceIdentity identity = StoreFixture::Identity();
  identity.tokens_per_block = 512;
  SpaceEntry& space = store_.OpenSpace("raw", identity);
  const KeyList keys = store_.PutChain(space, 3);
  store_.WriteAllDown();
  store_.EvictHost();
  const auto match = store_.index->Match(store_.Query(space, keys, /*wants_lease=*/true));
  ASSERT_TRUE(match.ok() && match->blocks.size() == 3);
  constexpr codecs::Slice kHead = {0, 2, 1, 1};
  EXPECT_EQ(store_.Fetch(space, keys[0], kHead), StoreFixture::Source(space, keys[0], 0, kHead));
  AwaitReads();
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"sliced\"}"), 1);
  EXPECT_EQ(InMemory(), 0u);
  // The lease holds on to it: the whole of it comes as any other block does, and what follows.
  EXPECT_EQ(store_.Fetch(space, keys[0]),
            StoreFixture::Source(space, keys[0], 0, StoreFixture::Whole(space)));
  EXPECT_TRUE(WaitFor([&] { return InMemory() == 3; }));
}

}  // namespace
}  // namespace cairn
