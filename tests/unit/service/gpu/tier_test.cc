// SPDX-License-Identifier: Apache-2.0
// What the conformance suite does not ask of the GPU tier: its device failing, hanging, and being
// none that can be had.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "base/units.h"
#include "service/tier/gpu/gpu_tier.h"
#include "tests/support/awaited_transfer.h"
#include "tests/support/emulated_memory.h"
#include "tests/support/log_capture.h"
#include "tests/support/metric_capture.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

// Counts what it is asked.
class CountingEvictor final : public Evictor {
 public:
  uint64_t EvictOldest(TierId, EvictionReason, const BlockName*) override {
    ++evictions;
    return 0;
  }
  bool EvictWindow(uint64_t, const BlockName*, uint64_t*) override { return false; }
  bool EvictCopy(TierId, const ImageFacts&, uint64_t, EvictionReason) override { return false; }
  Moved MoveCopy(TierId, const ImageFacts&, uint64_t, TierExtent&) override { return Moved::kBusy; }
  void LoseCopy(TierId, const ImageFacts&, uint64_t) override {}
  void LoseCopies(TierId tier, uint64_t begin, uint64_t end) override {
    CAIRN_CHECK(tier == TierId::kGpu && begin == 0 && end == UINT64_MAX);
    ++losses;
  }

  std::atomic<int> evictions{0}, losses{0};
};

using Transfer = AwaitedTransfer;

class GpuTierTest : public testing::Test {
 protected:
  using Faults = EmulatedMemory::Faults;

  absl::Status Open(GpuTier::Options options = {}) {
    options.capacity_bytes = 1_MiB;
    device_ = std::make_shared<GpuDevice>(std::make_unique<EmulatedMemory>(faults_), "gpu:3");
    auto made = GpuTier::Make(device_, options);
    if (made.ok()) {
      tier_ = *std::move(made);
      tier_->SetEvictor(&evictor_);
    }
    return made.status();
  }
  TransferId Write(const TierExtent& place, const Bytes& source, Transfer& transfer) {
    TierWrite write = {.place = &place, .image = {}, .copy = {}, .source = source};
    return tier_->Write(write, transfer.Done());
  }
  void AwaitOnDevice(uint64_t copies) {
    ASSERT_TRUE(WaitFor([&] { return faults_->copies_in + faults_->copies_out >= copies; }));
  }
  DeviceReport Device() const { return tier_->Devices().front(); }

  const std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
  CountingEvictor evictor_;
  Bytes bytes_ = Bytes(64_KiB, std::byte{7}), target_ = Bytes(64_KiB);
  std::shared_ptr<GpuDevice> device_;
  std::unique_ptr<GpuTier> tier_;
};

TEST_F(GpuTierTest, ADeviceThatCannotBeHadIsNamedWithItsReason) {
  faults_->is_full = true;
  const absl::Status full = Open();
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("gpu:3 (emulated) has no room for 1MiB"));
  faults_->is_full = false;
  faults_->refuses_host = true;
  const absl::Status refused = Open({.host_memory = bytes_});
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("its driver refuses to register them"));
  faults_->refuses_host = false;
  EXPECT_TRUE(Open({.host_memory = bytes_}).ok());
}

TEST_F(GpuTierTest, MakesRoomAndGivesUpWhereNothingGoes) {
  ASSERT_TRUE(Open().ok());
  std::vector<TierExtent> places;
  for (auto place = tier_->Reserve(100'000); place.ok(); place = tier_->Reserve(100'000)) {
    places.push_back(*std::move(place));
    ASSERT_LE(tier_->used_bytes(), tier_->capacity_bytes());
  }
  EXPECT_EQ(places.size(), 1_MiB / RoundedExtentBytes(100'000));
  EXPECT_EQ(evictor_.evictions, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(tier_->Reserve(2_MiB).status()));
  EXPECT_EQ(evictor_.evictions, 1) << "nothing goes for what never fits";
  EXPECT_EQ(tier_->image_bytes_max(), 1_MiB);
}

TEST_F(GpuTierTest, ADeviceThatFailsIsOutAndAllThatWaitsEnds) {
  const LogCapture log;
  ASSERT_TRUE(Open().ok());
  const auto place = tier_->Reserve(bytes_.size());
  Transfer written;
  Write(*place, bytes_, written);
  ASSERT_TRUE(written.Await().ok());

  faults_->hangs = true;
  constexpr size_t kReads = limits::kGpuBatchMax + 3;  // some of them wait in the queue
  std::vector<Bytes> targets(kReads, Bytes(bytes_.size()));
  std::vector<Transfer> reads(kReads);
  for (size_t i = 0; i < kReads; ++i) {
    tier_->Read({.place = &*place, .target = targets[i]}, reads[i].Done());
  }
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(2));
  EXPECT_EQ(Device().transfer_count, kReads);
  EXPECT_EQ(Device().state, DeviceState::kOk);
  faults_->is_dead = true;
  for (const Transfer& read : reads) {
    EXPECT_TRUE(absl::IsUnavailable(read.Await())) << read.status;
  }
  EXPECT_EQ(evictor_.losses, 1);
  EXPECT_EQ(log.Count("device is out: its copies are dropped"), 1u);
  EXPECT_EQ(Device().state, DeviceState::kOut);
  EXPECT_EQ(Device().reason, "the device failed");
  EXPECT_EQ(Device().fault_count, kReads);

  const uint64_t launched = faults_->copies_in + faults_->copies_out;
  Transfer late_read, late_write;
  EXPECT_EQ(tier_->Read({.place = &*place, .target = target_}, late_read.Done()), 0u);
  EXPECT_EQ(Write(*place, bytes_, late_write), 0u);
  EXPECT_TRUE(absl::IsUnavailable(late_read.Await()) && absl::IsUnavailable(late_write.Await()));
  EXPECT_TRUE(absl::IsUnavailable(tier_->Reserve(1).status()));
  EXPECT_EQ(faults_->copies_in + faults_->copies_out, launched) << "nothing more is launched";
  MetricCapture metrics;
  tier_->Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_gpu_state{state=\"out\"}"), 1);
  EXPECT_EQ(metrics.Value("cairn_gpu_state{state=\"ok\"}"), 0);
}

TEST_F(GpuTierTest, ACopyThatTheDeviceRefusesTakesItOutToo) {
  ASSERT_TRUE(Open().ok());
  const auto place = tier_->Reserve(bytes_.size());
  faults_->calls_left = 0;
  Transfer written;
  Write(*place, bytes_, written);
  EXPECT_TRUE(absl::IsUnavailable(written.Await()));
  EXPECT_EQ(evictor_.losses, 1);
  EXPECT_EQ(Device().state, DeviceState::kOut);
}

TEST_F(GpuTierTest, ALateDeviceIsOutAndMemoryIsItsOwnUntilItIsDone) {
  const LogCapture log;
  ASSERT_TRUE(Open({.late_after = absl::Milliseconds(20)}).ok());
  const auto place = tier_->Reserve(bytes_.size());
  Transfer written, read;
  Write(*place, bytes_, written);
  ASSERT_TRUE(written.Await().ok());
  faults_->hangs = true;
  tier_->Read({.place = &*place, .target = target_}, read.Done());
  EXPECT_TRUE(WaitFor([&] { return Device().state == DeviceState::kOut; }));
  EXPECT_THAT(Device().reason, HasSubstr("has not moved 1 copies within 20ms"));
  EXPECT_TRUE(WaitFor([&] { return evictor_.losses == 1; }));
  EXPECT_FALSE(read.is_over) << "the device may still write there";
  EXPECT_EQ(Device().transfer_count, 1u);
  faults_->hangs = false;
  EXPECT_TRUE(absl::IsUnavailable(read.Await()));
  EXPECT_EQ(log.Count("device is out"), 1u);
}

TEST_F(GpuTierTest, WhatNobodyWaitsForStaysBehindAndWhatIsLateDoesNotBegin) {
  ASSERT_TRUE(Open().ok());
  const auto place = tier_->Reserve(bytes_.size());
  faults_->hangs = true;
  Transfer first, background, late, cancelled;
  std::atomic<bool> was_last{false};
  tier_->Read({.place = &*place, .target = target_}, first.Done());
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(1));
  std::vector<Bytes> targets(limits::kGpuBatchMax, Bytes(100));
  std::vector<Transfer> reads(limits::kGpuBatchMax);
  tier_->Read(
      {.place = &*place, .target = target_, .is_background = true}, [&](absl::Status status) {
        was_last = std::ranges::all_of(reads, [](const Transfer& t) { return t.is_over.load(); });
        background.Done()(std::move(status));
      });
  for (size_t i = 0; i < reads.size(); ++i) {
    tier_->Read({.place = &*place, .target = targets[i]}, reads[i].Done());
  }
  tier_->Read({.place = &*place, .target = target_, .deadline = absl::InfinitePast()}, late.Done());
  tier_->Cancel(tier_->Read({.place = &*place, .target = target_}, cancelled.Done()));
  EXPECT_TRUE(absl::IsCancelled(cancelled.Await()));
  faults_->hangs = false;
  EXPECT_TRUE(background.Await().ok());
  EXPECT_TRUE(was_last);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.Await()));
  MetricCapture metrics;
  tier_->Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_gpu_bytes_total{op=\"read\"}"),
            2.0 * static_cast<double>(target_.size()) + 100.0 * limits::kGpuBatchMax);
  EXPECT_EQ(metrics.Value("cairn_gpu_copy_seconds{op=\"read\"}"), 2 + limits::kGpuBatchMax);
}

TEST_F(GpuTierTest, ARetiredDeviceTakesNothingNewUntilItIsTakenBack) {
  ASSERT_TRUE(Open().ok());
  const auto place = tier_->Reserve(bytes_.size());
  EXPECT_TRUE(absl::IsNotFound(tier_->SetRetired("gpu:0", true)));
  ASSERT_TRUE(tier_->SetRetired("gpu:3", true).ok());
  EXPECT_EQ(Device().state, DeviceState::kReadOnly);
  EXPECT_TRUE(absl::IsUnavailable(tier_->Reserve(1).status()));
  Transfer read;
  tier_->Read({.place = &*place, .target = target_}, read.Done());
  EXPECT_TRUE(read.Await().ok()) << "what it holds is read";
  ASSERT_TRUE(tier_->SetRetired("gpu:3", false).ok());
  EXPECT_TRUE(tier_->Reserve(1).ok());
  faults_->is_dead = true;
  Transfer lost;
  tier_->Read({.place = &*place, .target = target_}, lost.Done());
  EXPECT_FALSE(lost.Await().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(tier_->SetRetired("gpu:3", false)));
}

// As the codec finds it, on streams of its own.
TEST_F(GpuTierTest, ADeviceThatOthersLoseIsOutForTheTierToo) {
  ASSERT_TRUE(Open().ok());
  const auto place = tier_->Reserve(bytes_.size());
  faults_->hangs = true;
  Transfer writing, waiting, late;
  Write(*place, bytes_, writing);
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(1));
  Write(*place, bytes_, waiting);
  device_->Lose("another's kernel failed");
  EXPECT_TRUE(absl::IsUnavailable(waiting.Await()));
  EXPECT_EQ(evictor_.losses, 1);
  EXPECT_EQ(Device().reason, "another's kernel failed");
  faults_->hangs = false;
  EXPECT_TRUE(absl::IsUnavailable(writing.Await())) << "it would be published after the loss";
  tier_->Read({.place = &*place, .target = target_}, late.Done());
  EXPECT_TRUE(absl::IsUnavailable(late.Await()));
  EXPECT_EQ(faults_->copies_in + faults_->copies_out, 1u) << "nothing more is launched";
}

TEST_F(GpuTierTest, ADeviceThatIsLostWhileTheTierRestsIsSeenAllTheSame) {
  ASSERT_TRUE(Open().ok());
  device_->Lose("");
  EXPECT_TRUE(WaitFor([&] { return evictor_.losses == 1; }));
  EXPECT_EQ(Device().state, DeviceState::kOut);
  EXPECT_EQ(Device().reason, "the device failed");
}

TEST_F(GpuTierTest, StopEndsWhatWaits) {
  ASSERT_TRUE(Open().ok());
  const auto place = tier_->Reserve(bytes_.size());
  faults_->hangs = true;
  Transfer on_stream, waiting, late;
  tier_->Read({.place = &*place, .target = target_}, on_stream.Done());
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(1));
  Bytes other(bytes_.size());
  tier_->Read({.place = &*place, .target = other}, waiting.Done());
  std::thread device([&] {
    waiting.Await();
    faults_->hangs = false;
  });
  tier_->Stop();
  device.join();
  EXPECT_TRUE(absl::IsUnavailable(waiting.Await()));
  EXPECT_TRUE(on_stream.Await().ok());
  tier_->Read({.place = &*place, .target = target_}, late.Done());
  EXPECT_TRUE(absl::IsUnavailable(late.Await()));
}

}  // namespace
}  // namespace cairn
