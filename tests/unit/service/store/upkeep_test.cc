// SPDX-License-Identifier: Apache-2.0
// Blocks that puts kept raw and upkeep encodes: what happens when it cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/units.h"
#include "tests/support/log_capture.h"
#include "tests/support/metric_capture.h"
#include "tests/support/store_fixture.h"

namespace cairn {
namespace {

constexpr uint64_t kSourceBytes = 16_KiB;  // of a block of the fixture's space

// Block `key` of the chain 1, 2, …
void PutRaw(StoreFixture& store, const SpaceEntry& space, uint64_t key) {
  const auto whole = StoreFixture::Whole(space);
  const auto source = StoreFixture::Source(space, StoreFixture::Key(key), 0, whole);
  ASSERT_EQ(source.size(), kSourceBytes);
  auto frame = StoreFixture::PutFrame(space, StoreFixture::Key(key), whole, source);
  auto& body = std::get<proto::Put>(frame.body);
  body.parent = key == 1 ? proto::BlockKey{} : StoreFixture::Key(key - 1);
  body.first_position = (key - 1) * space.tokens_per_block();
  const auto reply = store.RunPut(frame, source, store.session, /*keeps_raw=*/true);
  ASSERT_TRUE(reply.ok()) << reply.status();
}

double Metric(StoreFixture& store, const std::string& name) {
  MetricCapture metrics;
  store.upkeep->Report(metrics);
  return metrics.Value(name);
}

TEST(UpkeepTest, WhatCanNeverBeEncodedIsCountedLoggedAndLeft) {
  // Enough for a put, but not for a block that is decoded to go on with the one before.
  StoreFixture store(16_MiB, 4096, /*staging_bytes=*/28_KiB);
  const SpaceEntry& space = store.OpenSpace("ott:2");
  for (uint64_t key = 1; key <= 3; ++key) PutRaw(store, space, key);
  ASSERT_EQ(store.index->pending_count(), 3u);
  const LogCapture log;
  for (int i = 0; i < 10; ++i) {
    store.upkeep->RunOnce();
    store.clock.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(store.index->pending_count(), 0u) << "it is not tried for ever";
  EXPECT_EQ(log.Count("cannot be encoded"), 2);
  EXPECT_THAT(log.Lines()[0], testing::HasSubstr("staging"));
  EXPECT_EQ(Metric(store, "cairn_upkeep_encode_failed_total{reason=\"room\"}"), 2);
  EXPECT_EQ(Metric(store, "cairn_upkeep_encode_failed_total{reason=\"codec\"}"), 0);
  EXPECT_EQ(Metric(store, "cairn_upkeep_encoded_total"), 1) << "the first of the chain";
  EXPECT_TRUE(store.RunGet(space, StoreFixture::Key(2), StoreFixture::Whole(space)).ok());
}

TEST(UpkeepTest, WhatIsPendingIsFoundAtOnceHoweverMuchThereIs) {
  StoreFixture store(64_MiB, 8192);
  auto identity = StoreFixture::Identity();
  identity.groups[0].k_dim = identity.groups[0].v_dim = 8;
  const SpaceEntry& space = store.OpenSpace("raw", identity);
  store.PutChain(space, 4200);
  const SpaceEntry& coded = store.OpenSpace("kivi:4");
  for (uint64_t key = 1; key <= 4; ++key) PutRaw(store, coded, key);
  ASSERT_EQ(store.index->pending_count(), 4u);
  const auto is_of = [](const CopyPins& pins, std::vector<uint64_t> keys) {
    ASSERT_EQ(pins.size(), keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(pins[i].facts().key, StoreFixture::Key(keys[i]));
    }
  };
  const CopyPins first = store.index->TakePending(1);
  is_of(first, {1});
  store.index->PutBackPending(first[0]);
  store.index->Delete(coded.id(), {StoreFixture::Key(3)});
  is_of(store.index->TakePending(10), {2, 4, 1});
  EXPECT_EQ(store.index->pending_count(), 0u);
}

TEST(UpkeepTest, WithoutRoomItTriesEverMoreRarely) {
  StoreFixture store(16_MiB, 4096, /*staging_bytes=*/1_MiB);
  const SpaceEntry& space = store.OpenSpace("kivi:4");
  PutRaw(store, space, 1);
  auto held = store.host->AllocateStaging(1_MiB - 16_KiB);
  ASSERT_TRUE(held.ok()) << held.status();
  const LogCapture log;
  for (const int ms : {100, 200, 400}) {
    EXPECT_EQ(store.upkeep->RunOnce(), store.clock.Now() + absl::Milliseconds(ms));
    EXPECT_EQ(store.index->pending_count(), 1u);
    store.clock.Advance(absl::Milliseconds(ms));
  }
  held->Reset();
  store.upkeep->RunOnce();
  EXPECT_EQ(store.index->pending_count(), 0u);
  EXPECT_EQ(Metric(store, "cairn_upkeep_encoded_total"), 1);
  EXPECT_EQ(log.Lines().size(), 0u) << "no room is no failure";
}

}  // namespace
}  // namespace cairn
