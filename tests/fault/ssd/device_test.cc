// SPDX-License-Identifier: Apache-2.0
// A device that fails, hangs or lies: what the tier makes of it.
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/faulty_io_engine.h"
#include "tests/support/metric_capture.h"
#include "tests/support/ssd_shelf.h"

namespace cairn {
namespace {

using Fault = FaultyIoEngine::Fault;

// A shelf over an engine that does as it is told. The engine is the tier's.
struct FaultyShelf {
  FaultyShelf() {
    shelf.options().make_engine = [this]() -> absl::StatusOr<std::unique_ptr<IoEngine>> {
      auto made = std::make_unique<FaultyIoEngine>();
      engine = made.get();
      if (at_open.has_value()) {
        engine->Inject(*at_open);
      }
      return made;
    };
    shelf.Restart();
  }
  double Metric(const std::string& series) {
    MetricCapture metrics;
    shelf.tier().Report(metrics);
    return metrics.Value(series);
  }
  bool IsIn(std::string_view state) {
    return Metric(absl::StrCat("cairn_ssd_state{device=\"0\",state=\"", ToAbsl(state), "\"}")) == 1;
  }
  DeviceReport Describe() { return shelf.tier().Devices().at(0); }
  std::string FileOf(uint64_t number) {
    return absl::StrCat("segments/00000", shelf.OffsetOf(number) / shelf.options().segment_bytes);
  }

  SsdShelf shelf;
  FaultyIoEngine* engine = nullptr;
  std::optional<Fault> at_open;  // of the processes to come
};

TEST(SsdFaultTest, ReadsThatFailCostTheirImagesOnly) {
  FaultyShelf faulty;
  SsdShelf& shelf = faulty.shelf;
  for (uint64_t number = 1; number <= 60; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  const std::string bad = faulty.FileOf(1);
  faulty.engine->Inject({.act = FaultyIoEngine::kFail, .kind = IoKind::kRead, .file = bad});
  int failed = 0;
  for (uint64_t number = 1; number <= 60; ++number) {
    const absl::Status status = shelf.Get(number);
    EXPECT_EQ(absl::IsDataLoss(status), faulty.FileOf(number) == bad) << number << " " << status;
    failed += status.ok() ? 0 : 1;
  }
  EXPECT_GT(failed, 0);
  EXPECT_TRUE(faulty.IsIn("ok"));
  EXPECT_TRUE(shelf.Put(100).ok()) << "writes know nothing of it";
}

TEST(SsdFaultTest, AFailedWriteSetsItsSegmentAside) {
  FaultyShelf faulty;
  SsdShelf& shelf = faulty.shelf;
  ASSERT_TRUE(shelf.Put(1).ok());
  faulty.engine->Inject({.act = FaultyIoEngine::kFail,
                         .kind = IoKind::kWrite,
                         .file = faulty.FileOf(1),
                         .calls_max = 1});
  EXPECT_TRUE(absl::IsDataLoss(shelf.Put(2)));
  EXPECT_EQ(faulty.Metric("cairn_ssd_segments{device=\"0\",state=\"set aside\"}"), 1);
  EXPECT_TRUE(shelf.Put(3).ok()) << "into the next";
  EXPECT_TRUE(shelf.Get(1).ok()) << "what was there is read";
  shelf.Crash();
  EXPECT_EQ(shelf.Numbers(), (std::set<uint64_t>{1, 3}));
}

TEST(SsdFaultTest, ADeviceThatFailsAllWritesIsReadOnlyUntilItDoesNot) {
  FaultyShelf faulty;
  SsdShelf& shelf = faulty.shelf;
  shelf.options().probe_after = absl::Milliseconds(50);
  shelf.Restart();
  for (uint64_t number = 1; number <= 20; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  faulty.engine->Inject({.act = FaultyIoEngine::kFail, .kind = IoKind::kWrite});
  ASSERT_TRUE(WaitFor([&] { return absl::IsUnavailable(shelf.Put(100)); }));
  EXPECT_TRUE(faulty.IsIn("read-only"));
  for (uint64_t number = 1; number <= 20; ++number) {
    EXPECT_TRUE(shelf.Get(number).ok()) << number;
  }
  faulty.engine->Clear();
  EXPECT_TRUE(WaitFor([&] { return shelf.Put(101).ok(); })) << "without a restart";
  EXPECT_TRUE(faulty.IsIn("ok"));
  shelf.Crash();
  for (const uint64_t number : {uint64_t{1}, uint64_t{20}, uint64_t{101}}) {
    EXPECT_TRUE(shelf.Get(number).ok()) << number;
  }
}

TEST(SsdFaultTest, ADeviceThatHangsHoldsNobodyUp) {
  FaultyShelf faulty;
  SsdShelf& shelf = faulty.shelf;
  ASSERT_TRUE(shelf.Put(1).ok());
  faulty.engine->Inject({.act = FaultyIoEngine::kHold, .file = faulty.FileOf(1)});
  std::thread reader([&] { EXPECT_TRUE(shelf.Get(1).ok()); });
  std::thread writer([&] { EXPECT_TRUE(shelf.Put(2).ok()); });
  // The device may prepare a segment meanwhile, which is held too.
  ASSERT_TRUE(WaitFor([&] { return faulty.engine->held() >= 2; }));
  EXPECT_GT(shelf.tier().used_bytes(), 0u);
  { const auto place = shelf.tier().Reserve(4096); }
  // The write may be of something that was deleted meanwhile: nobody is told that it is gone.
  EXPECT_FALSE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Milliseconds(50)));
  faulty.engine->Clear();
  reader.join();
  writer.join();
  EXPECT_TRUE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Seconds(30)));
}

TEST(SsdFaultTest, ASegmentWhoseHeaderCannotBeReadIsThereWithTheNextStart) {
  FaultyShelf faulty;
  SsdShelf& shelf = faulty.shelf;
  for (uint64_t number = 1; number <= 40; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  std::set<uint64_t> in_it, others;
  for (const uint64_t number : shelf.Numbers()) {
    (faulty.FileOf(number) == faulty.FileOf(1) ? in_it : others).insert(number);
  }
  ASSERT_GT(in_it.size(), 3u);
  faulty.at_open = {.act = FaultyIoEngine::kFail,
                    .kind = IoKind::kRead,
                    .file = faulty.FileOf(1),
                    .end_byte = 4096,
                    .calls_max = 1};
  shelf.Restart();
  EXPECT_EQ(shelf.Numbers(), others);
  // Deletions are of what is not read, too, whatever becomes of the ledger meanwhile.
  shelf.Delete(2);
  EXPECT_TRUE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Seconds(30)));
  ASSERT_TRUE(shelf.Put(100).ok());
  faulty.at_open.reset();
  shelf.Crash();
  std::set<uint64_t> expected = others;
  expected.insert(in_it.begin(), in_it.end());
  expected.insert(100);
  expected.erase(2);
  EXPECT_EQ(shelf.Numbers(), expected);
  for (const uint64_t number : expected) {
    EXPECT_TRUE(shelf.Get(number).ok()) << number;
  }
}

// --- Deletions while a segment is reclaimed ------------------------------------------------------

// Ends of the process at that moment: true is a kill, false an orderly end.
class SsdReclaimTest : public testing::TestWithParam<bool> {
 protected:
  SsdReclaimTest() {
    for (uint64_t number = 1; number <= 20; ++number) {
      EXPECT_TRUE(shelf_.Put(number).ok());
    }
    first_ = NumbersIn(faulty_.FileOf(1));
    EXPECT_GT(first_.size(), 5u);
  }
  ~SsdReclaimTest() override {
    faulty_.engine->Clear();
    if (reader_.joinable()) {
      reader_.join();
    }
  }
  std::vector<uint64_t> NumbersIn(const std::string& file) {
    std::vector<uint64_t> numbers;
    for (const uint64_t number : shelf_.Numbers()) {
      if (faulty_.FileOf(number) == file) {
        numbers.push_back(number);
      }
    }
    return numbers;
  }
  // Somebody reads it until End(): its segment stays under reclaim.
  void BeginReading(uint64_t number) {
    faulty_.engine->Inject({.act = FaultyIoEngine::kHold, .kind = IoKind::kRead, .calls_max = 1});
    reader_ = std::thread([this, number] { EXPECT_TRUE(shelf_.Get(number).ok()); });
    ASSERT_TRUE(WaitFor([&] { return faulty_.engine->held() == 1; }));
  }
  void PutUntilReclaim() {
    shelf_.options().room_wait = absl::Milliseconds(10);  // reclaim makes none
    for (uint64_t number = 1000; !IsReclaiming(); ++number) {
      const absl::Status status = shelf_.Put(number);
      ASSERT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    }
  }
  bool IsReclaiming() {
    return faulty_.Metric("cairn_ssd_segments{device=\"0\",state=\"reclaiming\"}") == 1;
  }
  void DeleteForGood(const std::vector<uint64_t>& numbers) {
    for (const uint64_t number : numbers) {
      shelf_.Delete(number);
    }
    ASSERT_TRUE(shelf_.tier().AwaitFreed(MonotonicNow() + absl::Seconds(30)));
  }
  void End() {
    ASSERT_TRUE(IsReclaiming());
    const auto end_reading = [this] {
      faulty_.engine->Clear();
      reader_.join();
    };
    if (GetParam()) {
      shelf_.CrashThen(end_reading);
    } else {  // a device that is retired goes on with nothing meanwhile
      ASSERT_TRUE(shelf_.tier().SetRetired(shelf_.folder(), true).ok());
      end_reading();
      shelf_.Restart();
    }
  }
  void ExpectGone(const std::vector<uint64_t>& numbers) {
    const std::set<uint64_t> there = shelf_.Numbers();
    for (const uint64_t number : numbers) {
      EXPECT_FALSE(there.contains(number)) << number << " came back";
    }
  }

  FaultyShelf faulty_;
  SsdShelf& shelf_ = faulty_.shelf;
  std::vector<uint64_t> first_;  // numbers in the segment that is reclaimed first
  std::thread reader_;
};
INSTANTIATE_TEST_SUITE_P(By, SsdReclaimTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Kill" : "Restart"; });

TEST_P(SsdReclaimTest, WhatIsDeletedMeanwhileStaysGone) {
  BeginReading(first_.front());  // nothing behind it is carried along or evicted
  PutUntilReclaim();
  const std::vector<uint64_t> doomed(first_.begin() + 1, first_.end());
  DeleteForGood(doomed);
  End();
  ExpectGone(doomed);
}

// The ledger has two records of what was moved, until the segment is reclaimed.
TEST_P(SsdReclaimTest, WhatWasMovedAndIsDeletedThenStaysGone) {
  const std::string file = faulty_.FileOf(first_.front());
  for (const uint64_t number : first_) {
    ASSERT_TRUE(shelf_.Get(number).ok());  // it is carried along, then
  }
  BeginReading(first_.back());
  PutUntilReclaim();
  const auto moved = [&] {
    std::vector<uint64_t> numbers;
    const std::set<uint64_t> there = shelf_.Numbers();
    for (const uint64_t number : first_) {
      if (there.contains(number) && faulty_.FileOf(number) != file) {
        numbers.push_back(number);
      }
    }
    return numbers;
  };
  ASSERT_TRUE(WaitFor([&] { return moved().size() >= first_.size() / 2; }));
  const std::vector<uint64_t> doomed = moved();
  DeleteForGood(doomed);
  End();
  ExpectGone(doomed);
}

// A deletion waits for what may still record the image: else a kill between the record of its new
// place and the end of that would bring it back.
TEST(SsdFaultTest, ADeletionWaitsForWhatIsCarriedAlong) {
  FaultyShelf faulty;
  SsdShelf& shelf = faulty.shelf;
  for (uint64_t number = 1; number <= 20; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  ASSERT_TRUE(shelf.Get(1).ok());
  faulty.engine->Inject(
      {.act = FaultyIoEngine::kHold, .kind = IoKind::kRead, .file = faulty.FileOf(1)});
  shelf.options().room_wait = absl::Milliseconds(10);  // what is held makes none
  for (uint64_t number = 1000; faulty.engine->held() == 0; ++number) {
    const absl::Status status = shelf.Put(number);
    ASSERT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
  }
  shelf.Delete(1);
  EXPECT_FALSE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Milliseconds(100)));
  faulty.engine->Clear();
  EXPECT_TRUE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Seconds(30)));
  shelf.Crash();
  EXPECT_FALSE(shelf.Numbers().contains(1));
}

TEST(SsdFaultTest, ADeletionWaitsForAPlaceThatIsReserved) {
  SsdShelf shelf;
  absl::StatusOr<TierExtent> place;
  ASSERT_TRUE(WaitFor([&] {
    place = shelf.tier().Reserve(4096);
    return place.ok();
  }));
  EXPECT_FALSE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Milliseconds(50)))
      << "what is written there may be deleted already";
  place->Reset();
  EXPECT_TRUE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Seconds(30)));
}

// Each start seals what the process before left open: segments come free though nothing is full.
TEST(SsdFaultTest, EndsOfTheProcessCostNothingWhereThereIsRoom) {
  constexpr uint64_t kEnds = 40;  // more than there are segments
  SsdShelf shelf;
  for (uint64_t number = 1; number <= kEnds; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
    shelf.Restart();
  }
  EXPECT_EQ(shelf.evicted(), 0u);
  EXPECT_GT(shelf.moved(), 0u) << "nothing was reclaimed";
  for (uint64_t number = 1; number <= kEnds; ++number) {
    EXPECT_TRUE(shelf.Get(number).ok()) << number;
  }
}

// A drive that says that it wrote, and did not.
TEST(SsdFaultTest, LostWritesAreNeverServed) {
  FaultyShelf faulty;
  SsdShelf& shelf = faulty.shelf;
  ASSERT_TRUE(shelf.Put(1).ok());
  const std::string file = faulty.FileOf(1);
  for (uint64_t number = 2; number <= 200; ++number) {
    if (number % 10 == 0) {
      faulty.engine->Inject({.act = FaultyIoEngine::kLose, .kind = IoKind::kWrite, .calls_max = 1});
    }
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  faulty.engine->Clear();
  shelf.Crash();
  int wrong = 0, right = 0;
  for (const uint64_t number : shelf.Numbers()) {
    // What the tier hands out is checked by the reader: another image, or torn, and never served.
    const absl::Status status = shelf.Get(number);
    right += status.ok() ? 1 : 0;
    wrong += absl::IsDataLoss(status) ? 1 : 0;
  }
  EXPECT_GE(right, 100);
  EXPECT_GT(wrong, 0);
}

TEST(SsdFaultTest, ADeviceSaysHowItIs) {
  FaultyShelf faulty;
  SsdShelf& shelf = faulty.shelf;
  uint64_t bytes = 0;
  for (uint64_t number = 1; number <= 20; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
    bytes += SsdShelf::Image(number).size();
  }
  ASSERT_TRUE(shelf.Get(1).ok());
  const DeviceReport well = faulty.Describe();
  EXPECT_EQ(well.path, shelf.folder());
  EXPECT_EQ(well.state, DeviceState::kOk);
  EXPECT_EQ(well.reason, "");
  EXPECT_EQ(well.engine, "threads");
  EXPECT_EQ(well.image_count, 20u);
  EXPECT_EQ(well.written_bytes, bytes);
  EXPECT_EQ(well.read_bytes, SsdShelf::Image(1).size());
  EXPECT_EQ(well.used_bytes, shelf.tier().used_bytes());
  EXPECT_EQ(well.capacity_bytes, shelf.tier().capacity_bytes());
  EXPECT_EQ(well.fault_count, 0u);
  EXPECT_TRUE(WaitFor([&] { return faulty.Describe().transfer_count == 0; }));

  faulty.engine->Inject({.act = FaultyIoEngine::kFail, .kind = IoKind::kWrite});
  ASSERT_TRUE(WaitFor([&] { return absl::IsUnavailable(shelf.Put(100)); }));
  const DeviceReport ill = faulty.Describe();
  EXPECT_EQ(ill.state, DeviceState::kReadOnly);
  EXPECT_EQ(ill.reason.substr(0, 17), "segments failed: ");
  EXPECT_FALSE(ill.is_retired);
  EXPECT_GE(ill.fault_count, 3u);
  uint64_t set_aside = 0;
  for (const auto& [state, count] : ill.segments) {
    set_aside += state == "set aside" ? count : 0;
  }
  EXPECT_GE(set_aside, 3u);
}

TEST(SsdFaultTest, AHungTransferIsCounted) {
  FaultyShelf faulty;
  ASSERT_TRUE(faulty.shelf.Put(1).ok());
  faulty.engine->Inject({.act = FaultyIoEngine::kHold, .kind = IoKind::kRead});
  std::thread get([&] { EXPECT_TRUE(faulty.shelf.Get(1).ok()); });
  EXPECT_TRUE(WaitFor([&] { return faulty.engine->held() == 1; }));
  EXPECT_GE(faulty.Describe().transfer_count, 1u);
  faulty.engine->Clear();
  get.join();
}

TEST(SsdFaultTest, ARetiredDeviceIsReadAndNotWritten) {
  SsdShelf shelf({.devices = 2});
  for (uint64_t number = 1; number <= 20; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  SsdTier& tier = shelf.tier();
  const uint64_t image_count = tier.Devices()[0].image_count;
  ASSERT_GT(image_count, 0u);
  ASSERT_TRUE(tier.SetRetired(shelf.folder(0), true).ok());
  EXPECT_EQ(tier.Devices()[0].state, DeviceState::kReadOnly);
  EXPECT_EQ(tier.Devices()[0].reason, "retired");
  EXPECT_EQ(tier.Devices()[1].state, DeviceState::kOk);
  for (uint64_t number = 21; number <= 40; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
    EXPECT_EQ(shelf.OffsetOf(number) >> SsdDevice::kNumberShift, 1u) << number;
  }
  EXPECT_EQ(tier.Devices()[0].image_count, image_count);
  for (uint64_t number = 1; number <= 40; ++number) {
    EXPECT_TRUE(shelf.Get(number).ok()) << number;
  }
  ASSERT_TRUE(tier.SetRetired(shelf.folder(1), true).ok());
  EXPECT_TRUE(absl::IsUnavailable(shelf.Put(41)));
  // What is deleted there stays so.
  shelf.Delete(2);
  EXPECT_TRUE(tier.AwaitFreed(MonotonicNow() + absl::Seconds(10)));

  ASSERT_TRUE(tier.SetRetired(shelf.folder(0), false).ok());
  EXPECT_EQ(tier.Devices()[0].state, DeviceState::kOk);
  EXPECT_TRUE(shelf.Put(41).ok());
  EXPECT_EQ(shelf.OffsetOf(41) >> SsdDevice::kNumberShift, 0u);
  EXPECT_TRUE(absl::IsNotFound(tier.SetRetired("/no/such", true)));

  shelf.Crash();
  EXPECT_FALSE(shelf.Numbers().contains(2));
  EXPECT_EQ(shelf.Numbers().size(), 40u);
  EXPECT_EQ(shelf.tier().Devices()[1].state, DeviceState::kOk) << "of the process alone";
}

TEST(SsdFaultTest, ADeviceThatIsTakenBackIsTriedAtOnce) {
  FaultyShelf faulty;
  SsdShelf& shelf = faulty.shelf;
  shelf.options().probe_after = absl::Hours(1);
  shelf.Restart();
  ASSERT_TRUE(shelf.Put(1).ok());
  faulty.engine->Inject({.act = FaultyIoEngine::kFail, .kind = IoKind::kWrite});
  ASSERT_TRUE(WaitFor([&] { return absl::IsUnavailable(shelf.Put(100)); }));
  const auto take_back = [&] {
    EXPECT_TRUE(shelf.tier().SetRetired(shelf.folder(), false).ok());
    EXPECT_TRUE(WaitFor([&] { return !faulty.Describe().is_trying; }));
    return faulty.Describe().state;
  };
  EXPECT_EQ(take_back(), DeviceState::kReadOnly);
  faulty.engine->Clear();
  EXPECT_TRUE(absl::IsUnavailable(shelf.Put(100)));
  EXPECT_EQ(take_back(), DeviceState::kOk);
  EXPECT_EQ(faulty.Describe().reason, "");
  EXPECT_TRUE(shelf.Put(100).ok());
}

}  // namespace
}  // namespace cairn
