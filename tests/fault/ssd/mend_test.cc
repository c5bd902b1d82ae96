// SPDX-License-Identifier: Apache-2.0
// Calls of a device to its file system fail while it works: it goes on with what is left, and is
// whole again once they do not, without a restart.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/strings/str_format.h"
#include "tests/support/faulty_calls.h"
#include "tests/support/faulty_io_engine.h"
#include "tests/support/log_capture.h"
#include "tests/support/ssd_shelf.h"

namespace cairn {
namespace {

using Numbers = std::set<uint64_t>;

constexpr uint64_t kImages = 30;

class SsdMend : public testing::Test {
 protected:
  SsdMend() {
    for (uint64_t number = 1; number <= kImages; ++number) {
      EXPECT_TRUE(shelf_.Put(number).ok());
    }
  }
  ~SsdMend() override { FaultyCalls::Clear(); }

  DeviceReport Describe() { return shelf_.tier().Devices().at(0); }
  // Puts until the device takes no more.
  void AwaitReadOnly() {
    ASSERT_TRUE(WaitFor([&] { return absl::IsUnavailable(shelf_.Put(next_++)); }));
    EXPECT_EQ(Describe().state, DeviceState::kReadOnly) << Describe().reason;
  }
  void ExpectAllRead() {
    for (uint64_t number = 1; number <= kImages; ++number) {
      EXPECT_TRUE(shelf_.Get(number).ok()) << number;
    }
  }
  void ExpectMended() {
    EXPECT_TRUE(WaitFor([&] { return Describe().state == DeviceState::kOk; })) << Describe().reason;
    EXPECT_EQ(Describe().reason, "");
    EXPECT_TRUE(shelf_.Put(1000).ok());
  }
  std::string FileOf(uint64_t number) {
    return absl::StrFormat("/segments/%06d",
                           shelf_.OffsetOf(number) / shelf_.options().segment_bytes);
  }
  bool IsGone() { return shelf_.tier().AwaitFreed(MonotonicNow() + absl::Seconds(30)); }

  LogCapture log_;
  SsdShelf shelf_{{.probe_after = absl::Milliseconds(200)}};
  uint64_t next_ = 100;
};

TEST_F(SsdMend, ALedgerThatFailsAWriteIsOpenedAnew) {
  for (const int error : {EIO, ENOSPC}) {
    FaultyCalls::Inject({.call = FaultyCalls::kWrite, .path = "/index/", .error = error});
    AwaitReadOnly();
    ExpectAllRead();
    FaultyCalls::Clear();
    ExpectMended();
  }
  ExpectAllRead();
  shelf_.Crash();
  ExpectAllRead();
  EXPECT_TRUE(shelf_.Get(1000).ok());
}

// A drive that fails everything: segments first, and the ledger as a segment is tried again.
TEST_F(SsdMend, ALedgerThatFailsAsSegmentsAreTriedIsOpenedAnew) {
  FaultyCalls::Inject({.call = FaultyCalls::kWrite, .path = "/segments/"});
  AwaitReadOnly();
  FaultyCalls::Inject({.call = FaultyCalls::kWrite, .path = "/index/"});
  const uint64_t met = FaultyCalls::met();
  // At most one of these is of a try that began before.
  ASSERT_TRUE(WaitFor([&] { return FaultyCalls::met() >= met + 2; }));
  FaultyCalls::Clear();
  ExpectMended();
  ExpectAllRead();
}

TEST_F(SsdMend, WhatIsDeletedMeanwhileStaysGone) {
  FaultyCalls::Inject({.call = FaultyCalls::kWrite, .path = "/index/"});
  AwaitReadOnly();
  shelf_.Delete(5);
  EXPECT_FALSE(shelf_.tier().AwaitFreed(MonotonicNow() + absl::Milliseconds(50)))
      << "a restart would bring it back";
  FaultyCalls::Clear();
  EXPECT_TRUE(IsGone()) << "once the device is whole again";
  const Numbers before = shelf_.Numbers();
  shelf_.Crash();
  EXPECT_EQ(shelf_.Numbers(), before) << "nothing more, nothing less";
  EXPECT_FALSE(before.contains(5));
}

TEST_F(SsdMend, ALedgerThatFailsASyncIsOpenedAnew) {
  FaultyCalls::Inject({.call = FaultyCalls::kSync, .path = "/index/"});
  AwaitReadOnly();  // as soon as a segment is to be sealed
  EXPECT_GT(FaultyCalls::met(), 0U);
  ExpectAllRead();
  FaultyCalls::Clear();
  ExpectMended();
  const Numbers before = shelf_.Numbers();
  shelf_.Crash();
  EXPECT_EQ(shelf_.Numbers(), before);
}

TEST_F(SsdMend, ALedgerThatCannotBeOpenedIsTriedAgain) {
  FaultyCalls::Inject({.call = FaultyCalls::kWrite, .path = "/index/"});
  FaultyCalls::Inject({.call = FaultyCalls::kOpen, .path = "/index/CURRENT"});
  AwaitReadOnly();
  EXPECT_TRUE(WaitFor(
      [&] { return Describe().reason.find("cannot be opened anew") != std::string::npos; }));
  ExpectAllRead();
  FaultyCalls::Clear();
  ExpectMended();
}

TEST_F(SsdMend, ADamagedLedgerBeginsEmpty) {
  FaultyCalls::Inject({.call = FaultyCalls::kWrite, .path = "/index/"});
  AwaitReadOnly();
  std::filesystem::remove(shelf_.folder() + "/index/CURRENT");
  FaultyCalls::Clear();
  EXPECT_TRUE(WaitFor([&] { return shelf_.Numbers().empty(); })) << "nothing in it is believed";
  ExpectMended();
}

// As a disk that is pulled, and put in again.
TEST_F(SsdMend, AFolderThatGoesAndComesBackHasWhatItHad) {
  const Numbers before = shelf_.Numbers();
  const std::string aside = shelf_.folder() + ".aside";
  for (const auto call : {FaultyCalls::kRead, FaultyCalls::kWrite, FaultyCalls::kSync}) {
    FaultyCalls::Inject({.call = call, .path = shelf_.folder()});
  }
  std::filesystem::rename(shelf_.folder(), aside);
  std::filesystem::create_symlink("/no/such", shelf_.folder());
  EXPECT_TRUE(WaitFor([&] { return absl::IsUnavailable(shelf_.Put(next_++)); }));
  EXPECT_TRUE(WaitFor([&] { return Describe().state == DeviceState::kOut; }));
  EXPECT_TRUE(WaitFor([&] { return shelf_.Numbers().empty(); })) << "no read waits for it";
  FaultyCalls::Clear();
  EXPECT_TRUE(absl::IsUnavailable(shelf_.Put(next_++)));
  std::filesystem::remove(shelf_.folder());
  std::filesystem::rename(aside, shelf_.folder());
  ExpectMended();
  EXPECT_TRUE(std::ranges::includes(shelf_.Numbers(), before));
  ExpectAllRead();
}

TEST_F(SsdMend, AFullDiskIsGoneOnWithUntilThereIsRoom) {
  FaultyCalls::Inject({.call = FaultyCalls::kAllocate, .path = "/segments/", .error = ENOSPC});
  EXPECT_TRUE(WaitFor([&] {
    EXPECT_TRUE(shelf_.Put(next_++).ok());
    return Describe().state == DeviceState::kCapped;
  }));
  for (int i = 0; i < 60; ++i) {
    EXPECT_TRUE(shelf_.Put(next_++).ok()) << "what is oldest goes";
  }
  for (const uint64_t number : shelf_.Numbers()) {
    const absl::Status status = shelf_.Get(number);
    EXPECT_TRUE(status.ok() || absl::IsNotFound(status)) << number << " " << status;
  }
  FaultyCalls::Clear();
  ASSERT_TRUE(shelf_.tier().SetRetired(shelf_.folder(), false).ok()) << "it is tried at once";
  ExpectMended();
}

// The kernel forgets what it could not write: the next flush of the segment would succeed.
TEST_F(SsdMend, WhatLandsAfterItsSegmentFailedASyncFails) {
  FaultyIoEngine* engine = nullptr;
  shelf_.options().make_engine = [&engine]() -> absl::StatusOr<std::unique_ptr<IoEngine>> {
    auto made = std::make_unique<FaultyIoEngine>();
    engine = made.get();
    return made;
  };
  shelf_.Restart();
  ASSERT_TRUE(shelf_.Put(40).ok());
  const std::string file = FileOf(40);
  engine->Inject(
      {.act = FaultyIoEngine::kHold, .kind = IoKind::kWrite, .file = file, .calls_max = 1});
  absl::Status landed;
  std::thread writer([&] { landed = shelf_.Put(41); });
  ASSERT_TRUE(WaitFor([&] { return engine->held() == 1; }));
  FaultyCalls::Inject({.call = FaultyCalls::kSync, .path = file, .calls_max = 1});
  EXPECT_TRUE(absl::IsUnavailable(shelf_.Put(42, /*is_durable=*/true)));
  EXPECT_EQ(FaultyCalls::met(), 1U);
  engine->Clear();
  writer.join();
  EXPECT_FALSE(landed.ok()) << "the next sync would call it durable";
  EXPECT_FALSE(shelf_.Numbers().contains(40));
  ASSERT_TRUE(shelf_.Put(41, /*is_durable=*/true).ok());
  EXPECT_NE(FileOf(41), file);
  shelf_.Crash();
  EXPECT_TRUE(shelf_.Get(41).ok());
}

// An error of a file is told once: of two threads that flush it one would be told that all is well.
TEST_F(SsdMend, OneThreadFlushesASegment) {
  FaultyCalls::Inject(
      {.call = FaultyCalls::kSync, .path = FileOf(kImages), .error = FaultyCalls::kHang});
  std::atomic<bool> is_over{false};
  std::thread filler([&] {
    while (!is_over) {
      EXPECT_TRUE(shelf_.Put(next_++).ok());
    }
  });
  EXPECT_TRUE(WaitFor([] { return FaultyCalls::met() == 1; })) << "it is full, and to be sealed";
  is_over = true;  // there is room left
  std::thread durable([&] { EXPECT_TRUE(shelf_.Put(10'000, /*is_durable=*/true).ok()); });
  EXPECT_FALSE(WaitFor([] { return FaultyCalls::met() > 1; }, absl::Milliseconds(300)));
  FaultyCalls::Clear();
  filler.join();
  durable.join();
}

TEST_F(SsdMend, ASegmentThatFailedItsSyncIsEmptiedAndUsedAgain) {
  FaultyCalls::Inject({.call = FaultyCalls::kSync, .path = FileOf(kImages), .calls_max = 1});
  EXPECT_TRUE(absl::IsUnavailable(shelf_.Put(next_++, /*is_durable=*/true)));
  EXPECT_GT(shelf_.lost(), 0u);
  FaultyCalls::Inject({.call = FaultyCalls::kWrite, .path = "/segments/"});
  AwaitReadOnly();
  FaultyCalls::Clear();
  ExpectMended();
  EXPECT_TRUE(WaitFor([&] {
    const auto segments = Describe().segments;
    return std::ranges::none_of(
        segments, [](const auto& of) { return of.first == "set aside" && of.second > 0; });
  }));
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(shelf_.Put(next_++).ok());
  }
  const Numbers before = shelf_.Numbers();
  shelf_.Crash();
  EXPECT_EQ(shelf_.Numbers(), before);
}

TEST_F(SsdMend, ASegmentThatFailsItsSyncIsLostAlone) {
  FaultyCalls::Inject({.call = FaultyCalls::kSync, .path = FileOf(kImages), .calls_max = 1});
  EXPECT_TRUE(WaitFor([&] {
    EXPECT_TRUE(shelf_.Put(next_++).ok());
    return shelf_.lost() > 0;
  }));
  EXPECT_EQ(Describe().state, DeviceState::kOk);
  const Numbers before = shelf_.Numbers();
  for (const uint64_t number : before) {
    EXPECT_TRUE(shelf_.Get(number).ok()) << number;
  }
}

}  // namespace
}  // namespace cairn
