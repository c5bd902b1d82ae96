// SPDX-License-Identifier: Apache-2.0
// What rots in a tier on a device is found without anybody asking for it, and by Verify.
#include "service/upkeep/scrub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/lasting_store.h"
#include "tests/support/log_capture.h"
#include "tests/support/metric_capture.h"

namespace cairn {
namespace {

class ScrubTest : public testing::Test {
 protected:
  static constexpr uint64_t kBlocks = 6;

  void SetUp() override {
    keys_ = store_.PutChain(space_, kBlocks);
    store_.WriteAllDown();
  }
  std::unique_ptr<Scrub> Make(std::optional<uint64_t> rate_bytes) {
    return std::make_unique<Scrub>(store_.spaces, *store_.index, *store_.tiers, store_.clock,
                                   rate_bytes, [this] { ++wakes_; });
  }
  // Runs until the scrubber has nothing to do for an hour.
  void RunPass(Scrub& scrub) {
    for (int rounds = 0; rounds < 10'000; ++rounds) {
      const absl::Time now = store_.clock.Now();
      const absl::Time next = scrub.RunOnce(now);
      if (next > now + absl::Hours(1)) {
        return;
      }
      store_.clock.Advance(std::max(next - now, absl::Milliseconds(1)));
    }
    FAIL() << "the pass does not end";
  }
  uint64_t OffsetOf(const proto::BlockKey& key) const {
    for (const auto& [offset, kept] : disk_->copies) {
      if (kept.image.key == key) {
        return offset;
      }
    }
    return UINT64_MAX;
  }
  static double Metric(const Scrub& scrub, const std::string& series) {
    MetricCapture metrics;
    scrub.Report(metrics);
    return metrics.Value(series);
  }
  uint64_t copies(TierId tier) const { return store_.index->figures(tier).copy_count; }

  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  LastingStore store_{disk_};
  SpaceEntry& space_ = store_.OpenSpace("exact");
  std::vector<proto::BlockKey> keys_;
  int wakes_ = 0;
};

TEST_F(ScrubTest, FindsDropsAndCountsWhatIsDamagedAndLeavesTheRest) {
  const auto scrub = Make(1_MiB);
  LogCapture log;
  RunPass(*scrub);
  EXPECT_EQ(scrub->Describe().image_count, kBlocks);
  EXPECT_EQ(scrub->Describe().corrupt_count, 0u);
  EXPECT_EQ(scrub->Describe().pass_count, 1u);
  EXPECT_TRUE(log.Lines().empty());

  const uint64_t damaged = OffsetOf(keys_[2]);
  store_.lasting.Damage(damaged);
  store_.clock.Advance(absl::Hours(24));
  RunPass(*scrub);
  EXPECT_EQ(scrub->Describe().pass_count, 2u);
  EXPECT_EQ(scrub->Describe().corrupt_count, 1u);
  EXPECT_EQ(Metric(*scrub, "cairn_corrupt_tiles_total{where=\"scrub\"}"), 1);
  EXPECT_EQ(Metric(*scrub, "cairn_scrubbed_images_total"), 2 * kBlocks);
  ASSERT_EQ(log.Lines().size(), 1u);
  EXPECT_EQ(log.Count(FormatPlace(TierId::kSsd, damaged)), 1u);
  EXPECT_EQ(copies(TierId::kSsd), kBlocks - 1);
  EXPECT_EQ(copies(TierId::kHost), kBlocks) << "its other copy stays";
  store_.WriteAllDown();
  EXPECT_EQ(copies(TierId::kSsd), kBlocks) << "and is written down again";
}

TEST_F(ScrubTest, ReadsNoFasterThanItMay) {
  constexpr uint64_t kRate = 2_KiB;
  const auto scrub = Make(kRate);
  const uint64_t image = disk_->copies.begin()->second.bytes.size();
  for (int second = 0; second <= 20; ++second) {
    for (int round = 0; round < 10; ++round) {
      scrub->RunOnce(store_.clock.Now());
    }
    EXPECT_LE(scrub->Describe().image_bytes, kRate * second + image) << second;
    store_.clock.Advance(absl::Seconds(1));
  }
  EXPECT_GE(scrub->Describe().image_bytes, 2 * image);
}

TEST_F(ScrubTest, APassADayAndNoneWithoutARate) {
  const auto off = Make(0);
  EXPECT_EQ(off->RunOnce(store_.clock.Now()), absl::InfiniteFuture());
  const auto scrub = Make(std::nullopt);
  EXPECT_EQ(scrub->Describe().rate_bytes, limits::kScrubRateBytesMin) << "of a small tier";
  const absl::Time began = store_.clock.Now();
  RunPass(*scrub);
  EXPECT_EQ(scrub->RunOnce(store_.clock.Now()), began + absl::Hours(24));
  EXPECT_GT(Metric(*scrub, "cairn_scrub_last_pass_seconds"), -1);
  EXPECT_EQ(scrub->Describe().pass_count, 1u);
}

TEST_F(ScrubTest, WhatItReadsCountsAsUnused) {
  const auto idle = [&] {
    bool has_more = false;
    return store_.index
        ->List(space_.id(), std::nullopt, 1, {space_.whole().data(), space_.whole().size()},
               &has_more)
        .front()
        .idle;
  };
  const auto scrub = Make(1_MiB);
  store_.clock.Advance(absl::Minutes(5));
  RunPass(*scrub);
  EXPECT_GE(idle(), absl::Minutes(5));
  // What nobody used goes for good: it does not come back as used since it was written.
  const auto kept = disk_->copies.begin()->second;
  ASSERT_TRUE(store_.index->EvictCopy(TierId::kSsd, kept.image, disk_->copies.begin()->first,
                                      EvictionReason::kCapacity));
  EXPECT_EQ(store_.index->uncopied_count(), 0u);
}

TEST_F(ScrubTest, StopEndsAReadUnderWayAndStartsNoOther) {
  const auto scrub = Make(1_MiB);
  store_.lasting.HoldCompletions(true);
  scrub->RunOnce(store_.clock.Now());
  ASSERT_EQ(store_.lasting.waiting().size(), 1u);
  EXPECT_EQ(scrub->RunOnce(store_.clock.Now()), absl::InfiniteFuture()) << "one at a time";
  scrub->Stop();
  EXPECT_TRUE(store_.lasting.waiting().empty());
  EXPECT_EQ(store_.host->staging_bytes(), 0u);
  scrub->RunOnce(store_.clock.Now() + absl::Hours(1));
  EXPECT_TRUE(store_.lasting.waiting().empty());
  store_.lasting.HoldCompletions(false);
}

TEST_F(ScrubTest, ADeviceThatIsOutIsTriedLater) {
  const auto scrub = Make(1_MiB);
  store_.lasting.HoldCompletions(true);
  scrub->RunOnce(store_.clock.Now());
  store_.lasting.SetOut(true);
  EXPECT_EQ(wakes_, 1);
  EXPECT_GT(scrub->RunOnce(store_.clock.Now()), store_.clock.Now());
  EXPECT_EQ(copies(TierId::kSsd), kBlocks) << "nothing is known of it";
  EXPECT_EQ(scrub->Describe().image_count, 0u);
  store_.lasting.SetOut(false);
  store_.lasting.HoldCompletions(false);
  RunPass(*scrub);
  EXPECT_EQ(scrub->Describe().image_count, kBlocks - 1) << "the next pass has it";
}

TEST_F(ScrubTest, WhatTheDeviceCannotReadIsDropped) {
  const auto scrub = Make(1_MiB);
  store_.lasting.HoldCompletions(true);
  scrub->RunOnce(store_.clock.Now());
  store_.lasting.Complete(store_.lasting.waiting()[0], absl::DataLossError("EIO"));
  store_.lasting.HoldCompletions(false);
  scrub->RunOnce(store_.clock.Now());
  EXPECT_EQ(scrub->Describe().corrupt_count, 1u);
  EXPECT_EQ(copies(TierId::kSsd), kBlocks - 1);
}

TEST_F(ScrubTest, VerifyReadsEveryCopyOfEveryTier) {
  store_.lasting.Damage(OffsetOf(keys_[4]));
  Upkeep::VerifyProgress last;
  const auto note = [&](const Upkeep::VerifyProgress& progress) {
    last = progress;
    return true;
  };
  ASSERT_TRUE(store_.upkeep->Verify(0, note).ok());
  EXPECT_EQ(last.images_checked, 2 * kBlocks);
  EXPECT_EQ(last.images_total, 2 * kBlocks);
  EXPECT_EQ(last.corrupt_images, 1u);
  EXPECT_EQ(copies(TierId::kSsd), kBlocks - 1);
  EXPECT_EQ(copies(TierId::kHost), kBlocks);
  ASSERT_TRUE(store_.upkeep->Verify(space_.id(), note).ok());
  EXPECT_EQ(last.images_checked, 2 * kBlocks - 1);
  EXPECT_EQ(last.corrupt_images, 0u);
  EXPECT_EQ(store_.host->staging_bytes(), 0u);
}

TEST_F(ScrubTest, VerifyWaitsForRoomInStaging) {
  std::vector<Extent> taken;
  for (uint64_t bytes = 1_MiB; bytes >= 64;) {
    absl::StatusOr<Extent> extent = store_.host->AllocateStaging(bytes);
    if (extent.ok()) {
      taken.push_back(*std::move(extent));
    } else {
      bytes /= 2;
    }
  }
  int reports = 0;
  ASSERT_TRUE(store_.upkeep
                  ->Verify(0,
                           [&](const Upkeep::VerifyProgress&) {
                             ++reports;
                             taken.clear();  // as gets and puts do
                             return true;
                           })
                  .ok());
  EXPECT_GE(reports, 2) << "while it waited, and at the end";
}

TEST_F(ScrubTest, VerifyThatNobodyWaitsForEnds) {
  store_.lasting.HoldCompletions(true);
  const absl::Status status =
      store_.upkeep->Verify(0, [](const Upkeep::VerifyProgress&) { return false; });
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(store_.index->pinned_bytes(), 0u);
  store_.lasting.HoldCompletions(false);
}

}  // namespace
}  // namespace cairn
