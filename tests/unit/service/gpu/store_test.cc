// SPDX-License-Identifier: Apache-2.0
// A store with a GPU tier, on an emulated device, between the host tier and one that lasts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "service/tier/gpu/gpu_tier.h"
#include "tests/support/emulated_memory.h"
#include "tests/support/log_capture.h"
#include "tests/support/memory_tier.h"
#include "tests/support/metric_capture.h"
#include "tests/unit/service/store/promote_fixture.h"

namespace cairn {
namespace {

using Faults = EmulatedMemory::Faults;

constexpr TierTraits kLasting = {.id = TierId::kSsd, .may_hold_last = true, .is_lasting = true};

class GpuStoreTest : public testing::Test {
 protected:
  void Open(uint64_t gpu_bytes = 4_MiB, absl::Duration late_after = absl::Seconds(30)) {
    std::vector<std::unique_ptr<CopyTier>> others;
    auto gpu = GpuTier::Make(
        std::make_shared<GpuDevice>(std::make_unique<EmulatedMemory>(faults_), "gpu:0"),
        {.capacity_bytes = gpu_bytes, .late_after = late_after});
    CAIRN_CHECK_OK(gpu);
    others.push_back(*std::move(gpu));
    others.push_back(
        std::make_unique<MemoryTier>(kLasting, 64_MiB, std::make_shared<MemoryDisk>()));
    store_ = std::make_unique<StoreFixture>(16_MiB, 4096, 32_MiB, std::move(others));
    drive_ = static_cast<MemoryTier*>(store_->tiers->Find(TierId::kSsd));
    space_ = &store_->OpenSpace("exact");
  }
  void TearDown() override {
    faults_->hangs = false;
    store_->gets->Stop();
    store_->pool->Stop();
    store_->upkeep->Stop();
    store_->tiers->Stop();  // as the daemon: what the device's thread has of a read goes with it
  }
  void PutChain(uint64_t count) {
    store_->PutChain(*space_, count);
    ASSERT_TRUE(WaitFor([&] {
      store_->upkeep->RunOnce();
      return store_->upkeep->unwritten_count() == 0;
    }));
  }
  // The block's bytes, right, out of that tier.
  void ExpectFrom(TierId tier, uint64_t block) {
    StartedGet get(*store_, *space_, block);
    ExpectRight(get, tier, block);
  }
  void ExpectRight(StartedGet& get, TierId tier, uint64_t block) {
    absl::StatusOr<Answer>& answer = get.Await();
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(Name(static_cast<TierId>(answer->reply.tier)), Name(tier)) << "block " << block;
    const auto source =
        StoreFixture::Source(*space_, StoreFixture::Key(block), 0, StoreFixture::Whole(*space_));
    EXPECT_TRUE(std::ranges::equal(source, answer->payload)) << "wrong bytes of block " << block;
    answer = absl::NotFoundError("");  // sent
  }
  uint64_t Copies(TierId tier) const { return store_->index->figures(tier).copy_count; }
  // What is due is on the device.
  void AwaitCopies(uint64_t count) {
    EXPECT_TRUE(WaitFor([&] {
      store_->upkeep->RunOnce();
      return Copies(TierId::kGpu) == count && Metric("cairn_gpu_copying_bytes") == 0;
    })) << Copies(TierId::kGpu);
  }
  // Blocks 1 to `count`, read often: on the device and the drive, and not in memory any more.
  void LeaveOnDevice(uint64_t count) {
    PutChain(count);
    for (uint64_t block = 1; block <= count; ++block) {
      ExpectFrom(TierId::kHost, block);
      ExpectFrom(TierId::kHost, block);
    }
    AwaitCopies(count);
    EvictHost();
  }
  void EvictHost() {
    EXPECT_TRUE(WaitFor([&] {
      store_->EvictHost();
      return Copies(TierId::kHost) == 0;
    }));
    drive_->TakeReads();
  }
  double Metric(const std::string& series) const {
    MetricCapture metrics;
    store_->gets->Report(metrics);
    store_->upkeep->Report(metrics);
    store_->index->Report(metrics);
    store_->tiers->Report(metrics);
    return metrics.Value(series);
  }

  const std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
  std::unique_ptr<StoreFixture> store_;
  MemoryTier* drive_ = nullptr;
  SpaceEntry* space_ = nullptr;
};

TEST_F(GpuStoreTest, WhatIsReadOftenComesFromTheDeviceOnceMemoryGaveItUp) {
  Open();
  PutChain(4);
  for (const uint64_t block : {1, 2, 1, 2, 1, 3}) {
    ExpectFrom(TierId::kHost, block);
  }
  AwaitCopies(2);
  EXPECT_EQ(Metric("cairn_gpu_copies_total{outcome=\"copied\"}"), 2);
  EvictHost();
  ExpectFrom(TierId::kGpu, 1);
  ExpectFrom(TierId::kHost, 1);
  EXPECT_TRUE(drive_->TakeReads().empty());
  ExpectFrom(TierId::kSsd, 3);
  EXPECT_EQ(Metric("cairn_gets_total{outcome=\"hit\",tier=\"gpu\"}"), 1);
  EXPECT_EQ(Metric("cairn_tier_copies{tier=\"gpu\"}"), 2);
  EXPECT_GT(Metric("cairn_tier_used_bytes{tier=\"gpu\"}"), 0);
  AwaitCopies(3);  // what a drive had to serve is copied at once
  EvictHost();
  ExpectFrom(TierId::kGpu, 3);
}

TEST_F(GpuStoreTest, ADeviceCopyIsNeverTheOnlyOne) {
  Open();
  drive_->HoldCompletions(true);
  store_->PutChain(*space_, 1);
  ExpectFrom(TierId::kHost, 1);
  ExpectFrom(TierId::kHost, 1);
  AwaitCopies(1);
  drive_->CompleteAll(absl::UnavailableError("not now"));
  EXPECT_TRUE(WaitFor([&] {
    store_->EvictHost();
    return Copies(TierId::kHost) == 0;
  }));
  EXPECT_EQ(Copies(TierId::kGpu), 0u) << "no drive has it, so it goes with the host's";
  EXPECT_EQ(store_->tiers->Find(TierId::kGpu)->used_bytes(), 0u);
  EXPECT_EQ(store_->index->figures().block_count, 0u);
}

TEST_F(GpuStoreTest, DeletedBlocksLeaveTheDevice) {
  Open();
  LeaveOnDevice(2);
  EXPECT_EQ(store_->index->Delete(space_->id(), {StoreFixture::Key(2)}), 1u);
  EXPECT_EQ(Copies(TierId::kGpu), 1u);
  store_->index->Invalidate(space_->id());
  EXPECT_EQ(store_->tiers->Find(TierId::kGpu)->used_bytes(), 0u);
}

TEST_F(GpuStoreTest, ADamagedDeviceCopyIsDroppedAndTheDriveServes) {
  const LogCapture log;
  Open();
  faults_->damaged_copy = 2;
  LeaveOnDevice(2);
  ExpectFrom(TierId::kGpu, 1);
  ExpectFrom(TierId::kSsd, 2);
  EXPECT_EQ(Copies(TierId::kGpu), 1u);
  EXPECT_EQ(log.Count("image is damaged: dropped"), 1u);
  EXPECT_EQ(log.Count("gpu+0x"), 1u);
  EXPECT_EQ(Metric("cairn_corrupt_tiles_total{where=\"gpu\"}"), 1);
  EXPECT_EQ(Metric("cairn_gets_total{outcome=\"corrupt\",tier=\"gpu\"}"), 0);
  AwaitCopies(2);  // a whole one this time
  EvictHost();
  ExpectFrom(TierId::kGpu, 2);
}

TEST_F(GpuStoreTest, ALossWhileItReadsCostsNoGet) {
  const LogCapture log;
  Open();
  LeaveOnDevice(3);
  const uint64_t before = faults_->copies_out;
  faults_->hangs = true;
  StartedGet first(*store_, *space_, 1), second(*store_, *space_, 2);
  ASSERT_TRUE(WaitFor([&] { return faults_->copies_out > before; }));
  EXPECT_FALSE(first.is_over() || second.is_over());
  faults_->is_dead = true;
  ExpectRight(first, TierId::kSsd, 1);
  ExpectRight(second, TierId::kSsd, 2);
  ExpectFrom(TierId::kSsd, 3);
  EXPECT_EQ(Copies(TierId::kGpu), 0u);
  // A read that failed may have its place for a little longer than its get.
  EXPECT_TRUE(WaitFor([&] { return store_->tiers->Find(TierId::kGpu)->used_bytes() == 0; }));
  EXPECT_EQ(store_->tiers->Devices().front().state, DeviceState::kOut);
  EXPECT_EQ(log.Count("device is out"), 1u);
  EXPECT_EQ(log.Count("damaged"), 0u);
  // Work goes on, and nothing is launched any more.
  const uint64_t launched = faults_->copies_in + faults_->copies_out;
  ExpectFrom(TierId::kHost, 3);
  ASSERT_TRUE(store_->PutSource(*space_, StoreFixture::Key(9), StoreFixture::Whole(*space_)).ok());
  ExpectFrom(TierId::kHost, 9);
  ExpectFrom(TierId::kHost, 9);
  EXPECT_TRUE(WaitFor([&] {
    store_->upkeep->RunOnce();
    return Metric("cairn_gpu_copies_waiting") == 0;
  }));
  EXPECT_EQ(faults_->copies_in + faults_->copies_out, launched);
}

TEST_F(GpuStoreTest, AHungDeviceIsLeftAloneAndTheNextGetIsServed) {
  const LogCapture log;
  Open(4_MiB, absl::Milliseconds(20));
  LeaveOnDevice(2);
  faults_->hangs = true;
  StartedGet first(*store_, *space_, 1);
  EXPECT_TRUE(WaitFor([&] { return Copies(TierId::kGpu) == 0; }));
  ExpectFrom(TierId::kSsd, 2);
  EXPECT_FALSE(first.is_over()) << "its memory is the device's";
  faults_->hangs = false;
  ExpectRight(first, TierId::kSsd, 1);
}

TEST_F(GpuStoreTest, TheDeviceHoldsNoMoreThanItsBudget) {
  constexpr uint64_t kBudget = 64_KiB, kBlocks = 12;
  Open(kBudget);
  PutChain(kBlocks);
  for (uint64_t block = 1; block <= kBlocks; ++block) {
    ExpectFrom(TierId::kHost, block);
    ExpectFrom(TierId::kHost, block);
    EXPECT_TRUE(WaitFor([&] {
      store_->upkeep->RunOnce();
      EXPECT_LE(store_->tiers->Find(TierId::kGpu)->used_bytes(), kBudget);
      return Metric("cairn_gpu_copies_total{outcome=\"copied\"}") == static_cast<double>(block);
    }));
  }
  EXPECT_LT(Copies(TierId::kGpu), kBlocks / 2);
  EXPECT_GT(Metric("cairn_evictions_total{tier=\"gpu\",reason=\"capacity\"}"), 0);
  EXPECT_EQ(Copies(TierId::kSsd), kBlocks) << "the others are not evicted for it";
  EXPECT_EQ(Copies(TierId::kHost), kBlocks);
}

TEST_F(GpuStoreTest, ASmallDeviceShortensNoLease) {
  Open(64_KiB);
  PutChain(3);
  for (const uint64_t block : {1, 1, 2, 2, 3, 3}) {
    ExpectFrom(TierId::kHost, block);
  }
  AwaitCopies(3);  // more than half of it
  const auto leased = store_->index->Match(
      store_->Query(*space_, {StoreFixture::Key(1), StoreFixture::Key(2), StoreFixture::Key(3)},
                    /*wants_lease=*/true));
  ASSERT_TRUE(leased.ok());
  EXPECT_EQ(leased->blocks.size(), 3u);
  EXPECT_FALSE(leased->is_shortened_by_pins);
  EXPECT_GT(store_->index->EvictOldest(TierId::kGpu, EvictionReason::kCapacity), 0u)
      << "a lease holds what may be the last copy";
  store_->index->Release("acme", {*leased->lease});
}

// Copies on a device keep blocks from resting, so they go where the index has too many of those.
TEST(GpuIndexTest, CopiesOnADeviceMakeRoomInTheIndex) {
  constexpr uint64_t kBudget = 64_KiB, kBlocks = 400;
  constexpr TierTraits kDevice = {.id = TierId::kGpu, .is_leaf_first = true};
  auto made = HostTier::Make({.capacity_bytes = 64_MiB, .staging_bytes = 4_MiB, .fault_in = false});
  ASSERT_TRUE(made.ok());
  std::vector<std::unique_ptr<CopyTier>> others;
  others.push_back(std::make_unique<MemoryTier>(kDevice, 64_MiB));
  others.push_back(std::make_unique<MemoryTier>(kLasting, 64_MiB));
  Tiers tiers(*std::move(made), std::move(others));
  BlockIndex index({.blocks_max = 10 * kBlocks,
                    .images_max = 10 * kBlocks,
                    .lease_bytes_max = 64_MiB,
                    .awake_bytes_max = kBudget,
                    .bytes_max = 16_MiB},
                   tiers, RealClock::Get());
  const auto copy_in = [&](TierId tier) {
    NewCopy copy;
    copy.recipe = codecs::AllRecipes().front();
    copy.extent = *tiers.Find(tier)->Reserve(200);
    return copy;
  };
  for (uint64_t i = 1; i <= kBlocks; ++i) {
    const BlockName name = {1, StoreFixture::Key(i)};
    NewImage image;
    image.claim = {.name = name, .parent = {}, .tokens = 16, .group = 0, .slice = {0, 1, 0, 1}};
    image.source_bytes = 4096;
    image.copy = copy_in(TierId::kHost);
    ASSERT_TRUE(index.Publish(std::move(image)).ok()) << i << ": every put has room";
    const ImagePin pin = std::move(index.PinImages(name)[0]);
    for (const TierId tier : {TierId::kSsd, TierId::kGpu}) {
      CopyWriter writer = index.BeginCopy(index.PinCopy(pin, TierId::kHost), tier);
      ASSERT_TRUE(!writer.is_empty() && index.FinishCopy(std::move(writer), copy_in(tier)));
    }
    index.EvictOldest(TierId::kHost, EvictionReason::kCapacity);
  }
  EXPECT_EQ(index.figures(TierId::kSsd).copy_count, kBlocks);
  EXPECT_GT(index.figures(TierId::kGpu).copy_count, 10u);
  EXPECT_LT(index.figures(TierId::kGpu).copy_count, kBlocks / 2);
  MetricCapture metrics;
  index.Report(metrics);
  EXPECT_GT(metrics.Value("cairn_evictions_total{tier=\"gpu\",reason=\"index\"}"), kBlocks / 2);
}

}  // namespace
}  // namespace cairn
