// SPDX-License-Identifier: Apache-2.0
// A device that is full, late, lost or stopped costs no put more than time.
#include <thread>

#include "tests/unit/service/codec/codec_fixture.h"

namespace cairn {
namespace {

using testing::HasSubstr;

class FailureTest : public CodecTest {
 protected:
  void ExpectPut(uint64_t number) {
    const auto put = StartPut(space_, number);
    ASSERT_TRUE(put->Await().ok()) << put->Await().status();
    ExpectRight(space_, number);
  }

  const SpaceEntry& space_ = store_.OpenSpace("kivi:2");
  uint64_t number_ = 0;
};

TEST_F(FailureTest, ADeviceThatCannotBeHadIsNamedWithItsReason) {
  device_ = std::make_shared<GpuDevice>(std::make_unique<EmulatedDevice>(faults_), "gpu:3");
  faults_->is_full = true;
  const auto full = DeviceCodec::Make(device_, {.bytes = 32_MiB, .host = store_.host});
  EXPECT_TRUE(absl::IsResourceExhausted(full.status()));
  EXPECT_THAT(std::string(full.status().message()),
              HasSubstr("gpu:3 (emulated) has no room for 16MiB of work"));
  faults_->is_full = false;
  faults_->refuses_host = true;
  const auto refused = DeviceCodec::Make(device_, {.bytes = 32_MiB, .host = store_.host});
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("refuses to register them"));
}

TEST_F(FailureTest, SmallAndLargeImagesAreLeftToTheProcessor) {
  Open({.patience = absl::Seconds(60), .late_after = absl::Seconds(60)});
  const auto ask = [&](uint64_t source_bytes_min, uint64_t bytes) {
    const auto codec = *DeviceCodec::Make(
        device_, {.bytes = bytes, .host = store_.host, .source_bytes_min = source_bytes_min});
    store_.puts->SetDevice(codec.get());
    const auto put = StartPut(space_, ++number_);
    EXPECT_TRUE(put->is_over()) << "in the thread of the put";
    ExpectRight(space_, number_);
    MetricCapture metrics;
    codec->Report(metrics);
    const std::string reason = source_bytes_min > 1 ? "small" : "large";
    EXPECT_EQ(
        metrics.Value("cairn_gpu_codec_fallbacks_total{op=\"encode\",reason=\"" + reason + "\"}"),
        1);
    codec->Stop();
  };
  ask(16_KiB + 1, 16_MiB);
  ask(1, 2 * (16_MiB - RoomForImages(16_MiB)) + 64_KiB);
}

TEST_F(FailureTest, AFullQueueIsNotWaitedFor) {
  Open({.queue_max = 1, .patience = absl::Seconds(60), .late_after = absl::Seconds(60)});
  faults_->hangs = true;
  const auto first = StartPut(space_, 1);
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(2));
  const auto second = StartPut(space_, 2);
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(4));
  const auto third = StartPut(space_, 3);
  EXPECT_FALSE(third->is_over());
  const auto fourth = StartPut(space_, 4);
  EXPECT_TRUE(fourth->is_over()) << "in the thread of the put";
  EXPECT_EQ(FellBack("full"), 1);
  faults_->hangs = false;
  for (const auto* put : {&first, &second, &third, &fourth}) {
    EXPECT_TRUE((*put)->Await().ok());
  }
  for (uint64_t number = 1; number <= 4; ++number) {
    ExpectRight(space_, number);
  }
  EXPECT_EQ(Made(), 3);
  ExpectAccounts();
}

TEST_F(FailureTest, WhatADeviceHasNotDoneInTimeTheProcessorDoes) {
  Open({.patience = absl::Milliseconds(20), .late_after = absl::Seconds(60)});
  faults_->hangs = true;
  std::vector<std::unique_ptr<StartedPut>> puts;
  for (uint64_t number = 1; number <= 4; ++number) {  // on the device, and behind it
    puts.push_back(StartPut(space_, number));
  }
  for (uint64_t number = 1; number <= 4; ++number) {
    ASSERT_TRUE(puts[number - 1]->Await().ok()) << "while it hangs";
    ExpectRight(space_, number);
  }
  EXPECT_EQ(FellBack("late"), 4);
  EXPECT_GT(codec_->Device().transfer_count, 0u) << "those that are on it still";
  EXPECT_GE(store_.host->staging_bytes(), 16_KiB) << "what the device reads stays";
  faults_->hangs = false;
  EXPECT_TRUE(WaitFor([&] { return store_.host->staging_bytes() == 0; }));
  EXPECT_FALSE(device_->is_out());
  ExpectAccounts();
}

// A copy out of memory that is not registered would wait for what hangs, and with it the thread
// that hands work back.
TEST_F(FailureTest, SideObjectsAreNotWaitedForEither) {
  Open({.patience = absl::Milliseconds(20), .late_after = absl::Seconds(60)});
  identity_.weights_revision = kProfileCase.recipe;
  SpaceEntry& space = store_.OpenSpace(kProfileCase.recipe, identity_);
  Install(space, kProfileCase);
  faults_->hangs = true;
  const auto first = StartPut(space_, 1);
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(2));
  const auto second = StartPut(space, 1);
  EXPECT_TRUE(first->Await().ok());
  EXPECT_TRUE(second->Await().ok()) << "while it hangs";
  EXPECT_EQ(FellBack("late"), 2);
  EXPECT_EQ(faults_->slow_copies, 0u);
}

// The thread was away for longer than a device may be: it looks before it says so.
TEST_F(FailureTest, WhatIsOverIsNotLateHoweverLateItIsSeen) {
  Open({.patience = absl::Seconds(60), .late_after = absl::Seconds(2)});
  faults_->hangs = true;
  const auto first = StartPut(space_, 1);
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(2));
  emulated_->DelayCopy(absl::Seconds(3));
  const auto second = StartPut(space_, 2);
  // The delay begins before the copy is counted, so that the device is at work again in it.
  absl::SleepFor(absl::Milliseconds(50));
  faults_->hangs = false;
  EXPECT_TRUE(first->Await().ok() && second->Await().ok());
  EXPECT_FALSE(device_->is_out());
  EXPECT_EQ(Made(), 2);
}

TEST_F(FailureTest, APutWithLittleTimeKeepsHalfOfIt) {
  Open({.patience = absl::Seconds(60), .late_after = absl::Seconds(60)});
  faults_->hangs = true;
  const absl::Time began = MonotonicNow();
  const auto put =
      StartPut(space_, 1, /*keeps_raw=*/false, store_.clock.Now() + absl::Milliseconds(100));
  EXPECT_TRUE(put->Await().ok());
  EXPECT_LT(MonotonicNow() - began, absl::Seconds(20));
  EXPECT_EQ(FellBack("late"), 1);
}

TEST_F(FailureTest, ADeviceThatDoesNothingIsOut) {
  const LogCapture log;
  Open({.patience = absl::Seconds(60), .late_after = absl::Milliseconds(20)});
  faults_->hangs = true;
  const auto first = StartPut(space_, 1);
  EXPECT_TRUE(first->Await().ok());
  ExpectRight(space_, 1);
  EXPECT_EQ(FellBack("lost"), 1);
  EXPECT_EQ(codec_->Device().state, DeviceState::kOut);
  EXPECT_EQ(codec_->Device().reason, "it has not coded 1 images within 20ms");
  EXPECT_EQ(log.Count("device is out"), 1u);
  faults_->hangs = false;
  const uint64_t launched = faults_->copies_in + faults_->copies_out;
  ExpectPut(2);
  EXPECT_EQ(faults_->copies_in + faults_->copies_out, launched) << "nothing more is launched";
  EXPECT_EQ(FellBack("lost"), 2);
}

// Whichever call it is that fails: copies in, the launch, copies out, the images' copies.
TEST_F(FailureTest, ALossCostsNoPut) {
  constexpr int kCalls = 8;
  double lost = 0;
  for (int calls = 0; calls < kCalls; ++calls) {
    SCOPED_TRACE(calls);
    faults_->calls_left = -1;
    faults_->is_dead = false;
    codec_ = nullptr;
    device_ = nullptr;
    OpenPatient();
    faults_->hangs = true;
    faults_->calls_left = calls;
    const auto first = StartPut(space_, ++number_);
    const auto second = StartPut(space_, ++number_);
    faults_->hangs = false;
    ASSERT_TRUE(first->Await().ok() && second->Await().ok());
    ExpectRight(space_, number_ - 1);
    ExpectRight(space_, number_);
    ExpectAccounts();
    lost += FellBack("lost");
    EXPECT_EQ(FellBack("lost") + Made(), 2);
  }
  EXPECT_GE(lost, kCalls);
}

TEST_F(FailureTest, ADeviceThatTheTierLosesIsOutForTheCodecToo) {
  OpenPatient();
  ExpectPut(1);
  device_->Lose("a copy failed");
  ExpectPut(2);
  EXPECT_EQ(Made(), 1);
  EXPECT_EQ(FellBack("lost"), 1);
}

// What the device made needs room: in staging, else in the tier, else the put ends as it would
// have.
TEST_F(FailureTest, WhereTheHostHasNoRoomThePutIsRefusedAsEver) {
  OpenPatient();
  faults_->hangs = true;
  const auto first = StartPut(space_, 1);
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(2));
  const auto second = StartPut(space_, 2);
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(4));
  std::vector<Extent> taken;
  const auto fill = [&](auto allocate) {
    for (uint64_t bytes = 1_MiB; bytes >= 4_KiB; bytes /= 2) {
      for (auto extent = allocate(bytes); extent.ok(); extent = allocate(bytes)) {
        taken.push_back(*std::move(extent));
      }
    }
  };
  fill([&](uint64_t bytes) { return store_.host->AllocateStaging(bytes); });
  {
    auto room = store_.host->Allocate(8_KiB);  // for one of them
    ASSERT_TRUE(room.ok());
    fill([&](uint64_t bytes) { return store_.host->Allocate(bytes); });
  }
  faults_->hangs = false;
  const auto status = first->Await().status();
  EXPECT_EQ(status.ok() + second->Await().ok(), 1) << status << second->Await().status();
  EXPECT_TRUE(absl::IsResourceExhausted(status.ok() ? second->Await().status() : status));
  EXPECT_EQ(Made(), 1);
  EXPECT_EQ(FellBack("no_room"), 1);
  ExpectAccounts();
}

TEST_F(FailureTest, StopEndsWhatWaits) {
  OpenPatient();
  faults_->hangs = true;
  const auto first = StartPut(space_, 1);
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(2));
  const auto second = StartPut(space_, 2);
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(4));
  const auto third = StartPut(space_, 3);
  std::thread device([&] {
    third->Await();
    faults_->hangs = false;
  });
  codec_->Stop();
  device.join();
  EXPECT_TRUE(first->Await().ok() && second->Await().ok() && third->Await().ok());
  EXPECT_EQ(Made(), 2);
  ExpectPut(4);
  EXPECT_EQ(FellBack("stopping"), 2);
  for (uint64_t number = 1; number <= 3; ++number) {
    ExpectRight(space_, number);
  }
  ExpectAccounts();
}

}  // namespace
}  // namespace cairn
