// SPDX-License-Identifier: Apache-2.0
// Images and their copies: what pins, leases and readers see of each event. The table is in
// docs/internals/adr/0012-images-and-copies.md.
#include <gtest/gtest.h>

#include "tests/support/memory_tier.h"
#include "tests/support/metric_capture.h"
#include "tests/support/store_fixture.h"

namespace cairn {
namespace {

constexpr TierTraits kCold = {.id = TierId::kSsd, .may_hold_last = true};
constexpr TierTraits kDevice = {.id = TierId::kGpu, .is_leaf_first = true};

struct TwoTiers {
  explicit TwoTiers(const TierTraits& traits, uint64_t cold_bytes = 16_MiB)
      : store(16_MiB, 4096, 32_MiB, Others(traits, cold_bytes)),
        other(static_cast<MemoryTier&>(*store.tiers->Find(traits.id))),
        space(store.OpenSpace()),
        whole(StoreFixture::Whole(space)) {}

  static std::vector<std::unique_ptr<CopyTier>> Others(const TierTraits& traits, uint64_t bytes) {
    std::vector<std::unique_ptr<CopyTier>> others;
    others.push_back(std::make_unique<MemoryTier>(traits, bytes));
    return others;
  }

  CopyPin Look(uint64_t number) {
    CopyPins pins = store.index->Lookup({space.id(), StoreFixture::Key(number)}, 0, whole);
    return pins.empty() ? CopyPin() : std::move(pins[0]);
  }
  bool Has(uint64_t number) {
    return store.index->Contains(space.id(), {StoreFixture::Key(number)}, space.whole())[0];
  }
  // Copies from the host tier into the other. False where there is nothing to do.
  bool CopyDown(uint64_t number) {
    const CopyPin source = Look(number);
    CopyWriter writer = store.index->BeginCopy(source, other.id());
    if (writer.is_empty()) {
      return false;
    }
    auto extent = other.Reserve(source.bytes().size());
    CAIRN_CHECK_OK(extent);
    CopyFacts facts = source.copy();
    facts.tier = other.id();
    absl::Status written = absl::UnknownError("");
    other.Write(
        {.place = &*extent, .image = source.facts(), .copy = facts, .source = source.bytes()},
        [&](absl::Status status) { written = status; });
    CAIRN_CHECK_OK(written);
    return store.index->FinishCopy(std::move(writer), {.recipe = facts.recipe,
                                                       .extent = *std::move(extent),
                                                       .side_object = {},
                                                       .directory_crc = facts.directory_crc,
                                                       .tenant = "acme"});
  }
  uint64_t EvictHost() {
    return store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity);
  }
  CopyFigures Host() const { return store.index->figures(TierId::kHost); }
  CopyFigures Other() const { return store.index->figures(other.id()); }

  StoreFixture store;
  MemoryTier& other;
  const SpaceEntry& space;
  const codecs::Slice whole;
};

TEST(LeaseTest, SurvivesThatItsBytesAreEncodedAnew) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace("kivi:4");
  const auto whole = StoreFixture::Whole(space);
  std::vector<proto::BlockKey> keys;
  for (uint64_t i = 1; i <= 29; ++i) {
    keys.push_back(StoreFixture::Key(i));
    const auto source = StoreFixture::Source(space, keys.back(), 0, whole);
    ASSERT_TRUE(store
                    .RunPut(StoreFixture::PutFrame(space, keys.back(), whole, source), source,
                            store.session, /*keeps_raw=*/true)
                    .ok());
  }
  const auto leased = store.index->Match(store.Query(space, keys, true));
  ASSERT_TRUE(leased.ok() && leased->lease.has_value());
  ASSERT_EQ(leased->blocks.size(), keys.size());
  const uint64_t raw_bytes = store.index->leased_bytes();
  while (store.index->pending_count() > 0) {
    store.upkeep->RunOnce();
  }
  EXPECT_LT(store.index->leased_bytes(), raw_bytes);
  EXPECT_EQ(store.index->leased_bytes(), store.host->used_bytes());
  EXPECT_EQ(store.index->pinned_bytes(), store.host->used_bytes());
  EXPECT_EQ(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  for (const proto::BlockKey& key : keys) {
    EXPECT_TRUE(store.RunGet(space, key, whole).ok()) << "a leased block is there";
  }
  store.index->Release("acme", {*leased->lease});
  EXPECT_EQ(store.index->leased_bytes(), 0u);
  EXPECT_GT(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
}

TEST(LeaseTest, LeasedBlocksAreThereWhateverIsPut) {
  StoreFixture store(16_MiB);
  auto identity = StoreFixture::Identity();
  identity.tokens_per_block = 1024;
  const SpaceEntry& space = store.OpenSpace("raw", identity);
  const auto keys = store.PutChain(space, 3);
  ASSERT_TRUE(store.index->Match(store.Query(space, keys, true))->lease.has_value());
  for (uint64_t i = 100; i < 160; ++i) {
    ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(i), StoreFixture::Whole(space)).ok());
  }
  for (const proto::BlockKey& key : keys) {
    EXPECT_TRUE(store.RunGet(space, key, StoreFixture::Whole(space)).ok());
  }
}

TEST(CopiesTest, AnImageLeavesWithItsLastCopy) {
  TwoTiers tiers(kCold);
  tiers.store.PutChain(tiers.space, 1);
  ASSERT_TRUE(tiers.CopyDown(1));
  EXPECT_FALSE(tiers.CopyDown(1)) << "one a tier";
  EXPECT_EQ(tiers.Host().copy_count, 1u);
  EXPECT_EQ(tiers.Other().copy_count, 1u);
  EXPECT_EQ(tiers.store.index->figures().image_count, 1u);
  EXPECT_EQ(tiers.Look(1).copy().tier, TierId::kHost) << "the best serves";
  EXPECT_GT(tiers.EvictHost(), 0u);
  EXPECT_TRUE(tiers.Has(1));
  EXPECT_EQ(tiers.Host().block_count, 0u);
  {
    const CopyPin pin = tiers.Look(1);
    EXPECT_EQ(pin.copy().tier, TierId::kSsd);
    EXPECT_EQ(pin.place().substr(0, 6), "ssd+0x");
    EXPECT_TRUE(pin.bytes().empty());
    std::vector<std::byte> read(pin.copy().image_bytes);
    absl::Status status = absl::UnknownError("");
    tiers.other.Read({.place = &pin.extent(), .offset = 0, .target = read},
                     [&](absl::Status s) { status = s; });
    EXPECT_TRUE(status.ok());
    EXPECT_EQ(read, StoreFixture::Image(tiers.space, StoreFixture::Key(1), tiers.whole, "raw"));
    EXPECT_EQ(codecs::PeekDirectoryCrc(read), pin.copy().directory_crc);
    EXPECT_FALSE(tiers.store.index->EvictCopy(TierId::kSsd, pin.facts(), pin.extent().offset(),
                                              EvictionReason::kCapacity))
        << "pinned";
  }
  const CopyPin pin = tiers.Look(1);
  const ImageFacts facts = pin.facts();
  const uint64_t offset = pin.extent().offset();
  EXPECT_EQ(tiers.store.index->Delete(tiers.space.id(), {StoreFixture::Key(1)}), 1u);
  EXPECT_GT(tiers.other.used_bytes(), 0u) << "a reader has it";
  EXPECT_TRUE(tiers.store.index->EvictCopy(TierId::kSsd, facts, offset, EvictionReason::kCapacity))
      << "gone already";
}

TEST(CopiesTest, ATierMovesWhatNobodyReads) {
  TwoTiers tiers(kCold);
  const auto keys = tiers.store.PutChain(tiers.space, 1);
  ASSERT_TRUE(tiers.CopyDown(1));
  EXPECT_GT(tiers.EvictHost(), 0u);
  const auto leased = tiers.store.index->Match(tiers.store.Query(tiers.space, keys, true));
  ASSERT_TRUE(leased.ok() && leased->lease.has_value());
  CopyPin pin = tiers.Look(1);
  const ImageFacts facts = pin.facts();
  const uint64_t offset = pin.extent().offset();
  const uint64_t used_bytes = tiers.other.used_bytes();
  auto to = tiers.other.Reserve(pin.copy().image_bytes);
  ASSERT_TRUE(to.ok());
  const uint64_t new_offset = to->offset();
  const auto move = [&](uint64_t from) {
    return tiers.store.index->MoveCopy(TierId::kSsd, facts, from, *to);
  };
  EXPECT_EQ(move(offset), Evictor::Moved::kBusy);
  pin.Reset();
  EXPECT_EQ(move(offset + 1), Evictor::Moved::kGone);
  EXPECT_FALSE(to->is_empty());
  EXPECT_EQ(move(offset), Evictor::Moved::kMoved) << "a lease is of the image, not of the place";
  EXPECT_TRUE(to->is_empty());
  EXPECT_EQ(tiers.Look(1).extent().offset(), new_offset);
  EXPECT_EQ(tiers.other.used_bytes(), used_bytes);
  tiers.store.index->LoseCopy(TierId::kSsd, facts, offset);
  EXPECT_TRUE(tiers.Has(1)) << "nothing is there any more";
  tiers.store.index->LoseCopy(TierId::kSsd, facts, new_offset);
  EXPECT_FALSE(tiers.Has(1)) << "damaged, though leased";
  EXPECT_EQ(tiers.other.used_bytes(), 0u);
}

TEST(CopiesTest, ALeaseHoldsTheLastCopyOnly) {
  TwoTiers tiers(kCold);
  const auto keys = tiers.store.PutChain(tiers.space, 2);
  const auto leased = tiers.store.index->Match(tiers.store.Query(tiers.space, keys, true));
  ASSERT_TRUE(leased.ok() && leased->lease.has_value());
  EXPECT_EQ(tiers.EvictHost(), 0u);
  ASSERT_TRUE(tiers.CopyDown(2));
  EXPECT_GT(tiers.Other().leased_bytes, 0u);
  EXPECT_EQ(tiers.Other().pinned_bytes, 0u) << "neither of two is the last";
  EXPECT_GT(tiers.EvictHost(), 0u);
  EXPECT_EQ(tiers.EvictHost(), 0u) << "block 1 has one copy";
  EXPECT_GT(tiers.Other().pinned_bytes, 0u) << "now it is the last";
  const CopyPin pin = tiers.Look(2);
  EXPECT_FALSE(tiers.store.index->EvictCopy(TierId::kSsd, pin.facts(), pin.extent().offset(),
                                            EvictionReason::kCapacity));
  const auto again = tiers.store.index->Match(tiers.store.Query(tiers.space, keys));
  ASSERT_EQ(again->blocks.size(), 2u);
  EXPECT_EQ(again->blocks[0].tier, TierId::kHost);
  EXPECT_EQ(again->blocks[1].tier, TierId::kSsd);
}

TEST(CopiesTest, ADeviceCopyIsNeverTheOnlyOne) {
  TwoTiers tiers(kDevice);
  tiers.store.PutChain(tiers.space, 1);
  ASSERT_TRUE(tiers.CopyDown(1));
  const auto keys = std::vector{StoreFixture::Key(1)};
  const auto leased = tiers.store.index->Match(tiers.store.Query(tiers.space, keys, true));
  ASSERT_TRUE(leased->lease.has_value());
  EXPECT_EQ(tiers.EvictHost(), 0u) << "the host's is the last";
  EXPECT_GT(tiers.store.index->EvictOldest(TierId::kGpu, EvictionReason::kCapacity), 0u);
  ASSERT_TRUE(tiers.CopyDown(1));
  tiers.store.index->Release("acme", {*leased->lease});
  EXPECT_GT(tiers.EvictHost(), 0u);
  EXPECT_FALSE(tiers.Has(1));
  EXPECT_EQ(tiers.other.used_bytes(), 0u);
}

TEST(CopiesTest, ADamagedCopyIsLostAndTheOtherServes) {
  TwoTiers tiers(kCold);
  tiers.store.PutChain(tiers.space, 1);
  ASSERT_TRUE(tiers.CopyDown(1));
  {
    const CopyPin host = tiers.Look(1);
    EXPECT_TRUE(tiers.store.index->Drop(host));
    EXPECT_FALSE(tiers.store.index->Drop(host)) << "told once";
    EXPECT_GT(tiers.store.host->used_bytes(), 0u) << "a reader has it";
    EXPECT_EQ(tiers.Look(1).copy().tier, TierId::kSsd);
  }
  EXPECT_EQ(tiers.store.host->used_bytes(), 0u);
  EXPECT_TRUE(tiers.store.index->Drop(tiers.Look(1)));
  EXPECT_FALSE(tiers.Has(1));
  EXPECT_EQ(tiers.store.index->figures().block_count, 0u);
  MetricCapture metrics;
  tiers.store.index->Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_tier_lost_copies_total{tier=\"ssd\"}"), 1);
}

TEST(CopiesTest, ADeviceThatIsOutLosesItsCopiesEvenLeasedOnes) {
  TwoTiers tiers(kCold);
  const auto keys = tiers.store.PutChain(tiers.space, 2);
  ASSERT_TRUE(tiers.CopyDown(1) && tiers.CopyDown(2));
  ASSERT_TRUE(
      tiers.store.index->Match(tiers.store.Query(tiers.space, keys, true))->lease.has_value());
  EXPECT_GT(tiers.EvictHost(), 0u);
  CopyWriter writer = tiers.store.index->BeginCopy(tiers.Look(2), TierId::kHost);
  ASSERT_FALSE(writer.is_empty());
  EXPECT_TRUE(tiers.store.index->BeginCopy(tiers.Look(2), TierId::kHost).is_empty())
      << "one is under way";
  EXPECT_EQ(tiers.store.index->TakeOut(TierId::kSsd), 2u);
  EXPECT_TRUE(tiers.Has(1));
  EXPECT_FALSE(tiers.Has(2)) << "a fault of a device may make it a miss";
  EXPECT_EQ(tiers.Other().copy_count, 0u);
  EXPECT_FALSE(tiers.CopyDown(1));
  // The writer's image is gone: what it brings is freed.
  EXPECT_FALSE(tiers.store.index->FinishCopy(
      std::move(writer),
      {.recipe = {}, .extent = *tiers.store.host->Allocate(4096), .side_object = {}}));
  tiers.store.index->PutBack(TierId::kSsd);
  EXPECT_TRUE(tiers.CopyDown(1));
}

TEST(CopiesTest, AChildInAnotherTierDoesNotKeepItsParentHere) {
  TwoTiers tiers(kDevice);
  tiers.store.PutChain(tiers.space, 3);
  ASSERT_TRUE(tiers.CopyDown(1));
  EXPECT_GT(tiers.store.index->EvictOldest(TierId::kGpu, EvictionReason::kCapacity), 0u)
      << "a leaf there";
  ASSERT_TRUE(tiers.CopyDown(1) && tiers.CopyDown(2));
  const CopyPin keeps = tiers.Look(3);
  EXPECT_GT(tiers.store.index->EvictOldest(TierId::kGpu, EvictionReason::kCapacity), 0u);
  EXPECT_FALSE(tiers.store.index->PinCopy(tiers.store.index->PinImage(tiers.Look(1)), TierId::kGpu)
                   .is_empty())
      << "block 2 was the leaf there";
}

TEST(CopiesTest, APutPinsItsParent) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto keys = store.PutChain(space, 1);
  const auto whole = StoreFixture::Whole(space);
  const auto source = StoreFixture::Source(space, StoreFixture::Key(2), 0, whole);
  proto::Frame frame = StoreFixture::PutFrame(space, StoreFixture::Key(2), whole, source);
  auto& body = std::get<proto::Put>(frame.body);
  body.parent = keys[0];
  body.first_position = space.tokens_per_block();
  {
    const auto put = store.AdmitPut(frame);
    ASSERT_TRUE(put.ok()) << put.status();
    EXPECT_EQ(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  }
  EXPECT_GT(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
}

TEST(CopiesTest, TheIndexHasAMaximumOfImages) {
  StoreFixture store(16_MiB, /*blocks_max=*/8);  // so, of 32 images
  const SpaceEntry& space = store.OpenSpace();
  for (uint64_t i = 1; i <= 10; ++i) {
    for (uint16_t layer = 0; layer < 2; ++layer) {
      for (uint16_t head = 0; head < 4; ++head) {
        ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(i), {layer, 1, head, 1}).ok());
        ASSERT_LE(store.index->figures().image_count, limits::ImagesMax(8));
      }
    }
  }
  EXPECT_EQ(store.index->figures().block_count, 4u);
  MetricCapture metrics;
  store.index->Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_evictions_total{tier=\"host\",reason=\"images\"}"), 6);
}

// --- What watchers are told ----------------------------------------------------------------------

std::vector<IndexEvent> Told(StoreFixture& store, EventCursor* cursor) {
  std::vector<IndexEvent> events;
  EXPECT_TRUE(store.index->events().Read(store.session.tenant.view(), cursor, EventBatchRoom(100),
                                         &events));
  return events;
}

TEST(EventTest, ABlockComesIntoATierAndGoesOnce) {
  TwoTiers t(kCold);
  EventLog& log = t.store.index->events();
  t.store.PutChain(t.space, 1);
  EXPECT_FALSE(log.is_recording());
  EventCursor cursor;
  bool can_go_on = true;
  ASSERT_TRUE(log.Begin(t.store.session.tenant.view(), &cursor, &can_go_on).ok());
  EXPECT_FALSE(can_go_on);
  EXPECT_TRUE(Told(t.store, &cursor).empty());  // not what was there
  codecs::Slice half = t.whole;
  half.head_count = 2;
  ASSERT_TRUE(
      t.store.PutSource(t.space, StoreFixture::Key(2), half, StoreFixture::Key(1), 16).ok());
  half.head_first = 2;
  ASSERT_TRUE(
      t.store.PutSource(t.space, StoreFixture::Key(2), half, StoreFixture::Key(1), 16).ok());
  auto events = Told(t.store, &cursor);
  ASSERT_EQ(events.size(), 1);
  EXPECT_TRUE(events[0].is_stored && events[0].tier == TierId::kHost && events[0].tokens == 16);
  EXPECT_EQ(events[0].name, (BlockName{t.space.id(), StoreFixture::Key(2)}));
  EXPECT_EQ(events[0].parent, StoreFixture::Key(1));
  EXPECT_EQ(events[0].first_position, 16);
  ASSERT_TRUE(t.CopyDown(1));
  events = Told(t.store, &cursor);
  ASSERT_EQ(events.size(), 1);
  EXPECT_TRUE(events[0].is_stored && events[0].tier == TierId::kSsd);
  ASSERT_GT(t.EvictHost(), 0);  // the leaf
  ASSERT_EQ(t.store.index->Delete(t.space.id(), {StoreFixture::Key(1)}), 1);
  events = Told(t.store, &cursor);
  ASSERT_EQ(events.size(), 3);
  EXPECT_EQ(events[0].name.key, StoreFixture::Key(2));
  for (const IndexEvent& event : events) {
    EXPECT_FALSE(event.is_stored);
  }
  EXPECT_NE(events[1].tier, events[2].tier);
  log.End(t.store.session.tenant.view());
}

TEST(EventTest, WhatIsEncodedAnewNeitherComesNorGoes) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace("kivi:4");
  EventCursor cursor;
  bool can_go_on = false;
  ASSERT_TRUE(store.index->events().Begin(store.session.tenant.view(), &cursor, &can_go_on).ok());
  const auto whole = StoreFixture::Whole(space);
  const auto source = StoreFixture::Source(space, StoreFixture::Key(1), 0, whole);
  ASSERT_TRUE(store
                  .RunPut(StoreFixture::PutFrame(space, StoreFixture::Key(1), whole, source),
                          source, store.session, /*keeps_raw=*/true)
                  .ok());
  while (store.index->pending_count() > 0) {
    store.upkeep->RunOnce();
  }
  EXPECT_EQ(Told(store, &cursor).size(), 1);
  store.index->events().End(store.session.tenant.view());
}

}  // namespace
}  // namespace cairn
