// SPDX-License-Identifier: Apache-2.0
// Devices that are not there: the others serve, and one that comes is taken in without a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/log_capture.h"
#include "tests/support/ssd_shelf.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Numbers = std::set<uint64_t>;

constexpr uint64_t kBayImages = 60;

class SsdBays : public testing::Test {
 protected:
  // Puts that many chains of five.
  void Fill(SsdShelf& shelf, uint64_t first = 0) {
    for (uint64_t number = first; number < first + kBayImages; ++number) {
      EXPECT_TRUE(shelf.Put(number).ok()) << number;
    }
  }
  // As a disk that is not mounted.
  static void TakeAway(const std::string& folder) {
    if (fs::exists(folder)) {
      fs::rename(folder, folder + ".aside");
    }
    fs::create_symlink("/no/such", folder);
  }
  static void BringBack(const std::string& folder) {
    fs::remove(folder);
    if (fs::exists(folder + ".aside")) {
      fs::rename(folder + ".aside", folder);
    }
  }
  static bool IsOk(SsdShelf& shelf, size_t device) {
    return shelf.tier().Devices().at(device).state == DeviceState::kOk;
  }

  LogCapture log_;
  SsdShelf::Options options_{
      .devices = 3, .chain_blocks = 5, .probe_after = absl::Milliseconds(200)};
};

TEST_F(SsdBays, AMissingDeviceCostsItsPrefixesUntilItComes) {
  SsdShelf shelf(options_);
  Fill(shelf);
  shelf.Close();
  TakeAway(shelf.folder(1));
  shelf.Open();
  const DeviceReport missing = shelf.tier().Devices().at(1);
  EXPECT_EQ(missing.state, DeviceState::kOut);
  EXPECT_EQ(missing.path, shelf.folder(1));
  EXPECT_NE(missing.reason, "");
  for (uint64_t number = 0; number < kBayImages; ++number) {
    EXPECT_EQ(shelf.Numbers().contains(number), number / 5 % 3 != 1) << "chains are whole or gone";
  }
  for (const uint64_t number : shelf.Numbers()) {
    EXPECT_TRUE(shelf.Get(number).ok());
  }
  Fill(shelf, 100);  // its share goes to the others
  BringBack(shelf.folder(1));
  EXPECT_TRUE(WaitFor([&] { return IsOk(shelf, 1); })) << shelf.tier().Devices().at(1).reason;
  EXPECT_EQ(shelf.Numbers().size(), 2 * kBayImages);
  for (const uint64_t number : shelf.Numbers()) {
    EXPECT_TRUE(shelf.Get(number).ok()) << number;
  }
  Fill(shelf, 200);
  shelf.Crash();
  EXPECT_EQ(shelf.Numbers().size(), 3 * kBayImages);
}

TEST_F(SsdBays, ALostDeviceCutsEveryStripedChain) {
  options_.placement = SsdPlacement::kStripe;
  SsdShelf shelf(options_);
  Fill(shelf);
  for (size_t device = 0; device < 3; ++device) {
    EXPECT_EQ(shelf.tier().Devices().at(device).image_count, kBayImages / 3);
  }
  shelf.Close();
  TakeAway(shelf.folder(1));
  shelf.Open();
  std::set<uint64_t> cut;
  for (uint64_t number = 0; number < kBayImages; ++number) {
    if (!shelf.Numbers().contains(number)) {
      cut.insert(number / 5);
    }
  }
  EXPECT_EQ(cut.size(), kBayImages / 5);
}

TEST_F(SsdBays, WithoutAnyTheTierServesNothingAndSaysSo) {
  SsdShelf shelf(options_);
  Fill(shelf);
  shelf.Close();
  for (size_t device = 0; device < 3; ++device) {
    TakeAway(shelf.folder(device));
  }
  shelf.Open();
  EXPECT_EQ(log_.Count("no device is available"), 1u);
  EXPECT_TRUE(absl::IsUnavailable(shelf.Put(1000)));
  EXPECT_GT(shelf.tier().capacity_bytes(), 0u) << "what it may hold";
  EXPECT_GT(shelf.tier().extents_max(), 0u) << "the index has room for what comes back";
  EXPECT_TRUE(absl::IsFailedPrecondition(shelf.tier().SetRetired(shelf.folder(0), true)));
  for (size_t device = 0; device < 3; ++device) {
    BringBack(shelf.folder(device));
    EXPECT_TRUE(shelf.tier().SetRetired(shelf.folder(device), false).ok()) << "it is tried at once";
  }
  EXPECT_TRUE(WaitFor([&] { return IsOk(shelf, 0) && IsOk(shelf, 1) && IsOk(shelf, 2); }));
  EXPECT_EQ(shelf.Numbers().size(), kBayImages);
}

// What was deleted while a device was away does not come back with it, at the start or later.
TEST_F(SsdBays, WhatWasDeletedWhileADeviceWasAwayStaysGone) {
  for (const bool is_restarted : {false, true}) {
    SsdShelf shelf(options_);
    Fill(shelf);
    shelf.Close();
    TakeAway(shelf.folder(1));
    shelf.Open();
    const Numbers deleted = {5, 6, 9, 20, 0};  // the last is not on it
    for (const uint64_t number : deleted) {
      shelf.Delete(number);
    }
    ASSERT_TRUE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Seconds(30)));
    if (is_restarted) {
      shelf.Crash();  // who was told has it written down
      shelf.Close();
    }
    BringBack(shelf.folder(1));
    if (is_restarted) {
      shelf.Open();
    }
    ASSERT_TRUE(WaitFor([&] { return IsOk(shelf, 1); })) << shelf.tier().Devices().at(1).reason;
    for (int life = 0; life < 2; ++life) {
      for (uint64_t number = 0; number < kBayImages; ++number) {
        EXPECT_EQ(shelf.Numbers().contains(number), !deleted.contains(number))
            << number << (is_restarted ? " after a restart" : "");
      }
      shelf.Crash();
    }
  }
}

TEST_F(SsdBays, AnInvalidatedSpaceStaysGoneToo) {
  SsdShelf shelf(options_);
  Fill(shelf);
  shelf.Close();
  TakeAway(shelf.folder(1));
  shelf.Open();
  shelf.tier().Deleted(SsdShelf::Space().fingerprint, {});
  const Numbers there = shelf.Numbers();
  for (const uint64_t number : there) {
    shelf.Drop(number);
  }
  ASSERT_TRUE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Seconds(30)));
  Fill(shelf, 100);  // as new
  BringBack(shelf.folder(1));
  ASSERT_TRUE(WaitFor([&] { return IsOk(shelf, 1); }));
  EXPECT_EQ(shelf.Numbers().size(), kBayImages);
  EXPECT_EQ(*shelf.Numbers().begin(), 100U);
}

TEST_F(SsdBays, ADeviceThatMissedMoreThanIsKnownStartsEmpty) {
  options_.deletions_max = 8;
  SsdShelf shelf(options_);
  Fill(shelf);
  shelf.Close();
  TakeAway(shelf.folder(1));
  shelf.Open();
  for (uint64_t number = 0; number < 10; ++number) {
    shelf.Delete(number);
  }
  ASSERT_TRUE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Seconds(30)));
  BringBack(shelf.folder(1));
  ASSERT_TRUE(WaitFor([&] { return IsOk(shelf, 1); }));
  EXPECT_EQ(log_.Count("it starts empty"), 1U);
  EXPECT_EQ(shelf.tier().Devices().at(1).image_count, 0U);
  Fill(shelf, 100);
  EXPECT_GT(shelf.tier().Devices().at(1).image_count, 0U);
}

TEST_F(SsdBays, WhatSomebodyHasToChangeEndsTheStart) {
  SsdShelf shelf(options_);
  shelf.Close();
  fs::remove_all(shelf.folder(2));
  std::ofstream(shelf.folder(2)) << "a file";
  const absl::Status status = shelf.TryOpen();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(shelf.folder(2) + ": it is not a folder"));
}

}  // namespace
}  // namespace cairn
