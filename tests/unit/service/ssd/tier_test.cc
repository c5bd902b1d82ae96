// SPDX-License-Identifier: Apache-2.0
// The SSD tier from outside: what it finds again, what it lets go, what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/metric_capture.h"
#include "tests/support/ssd_shelf.h"

namespace cairn {
namespace {

using ::testing::Contains;
using ::testing::Not;

std::set<uint64_t> Range(uint64_t first, uint64_t last) {
  std::set<uint64_t> numbers;
  for (uint64_t number = first; number <= last; ++number) {
    numbers.insert(number);
  }
  return numbers;
}

uint64_t DiskBytes(const std::string& folder) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    struct stat status = {};
    bytes += ::stat(entry.path().c_str(), &status) == 0
                 ? static_cast<uint64_t>(status.st_blocks) * 512
                 : 0;
  }
  return bytes;
}

void Flip(const std::string& path, uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 1));
  CAIRN_CHECK(file.good());
}

// Until reclaim has made the room that it keeps.
void AwaitRest(SsdShelf& shelf) {
  ASSERT_TRUE(WaitFor([&] {
    MetricCapture metrics;
    shelf.tier().Report(metrics);
    const auto count = [&](std::string_view state) {
      return metrics.Value(
          absl::StrCat("cairn_ssd_segments{device=\"0\",state=\"", ToAbsl(state), "\"}"));
    };
    return count("reclaiming") == 0 && count("clean") + count("ready") + count("absent") >= 3;
  }));
}

TEST(SsdTierTest, FindsAgainWhatItWrote) {
  SsdShelf shelf;
  for (uint64_t number = 1; number <= 40; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  const uint64_t used_bytes = shelf.tier().used_bytes();
  for (const auto restart : {&SsdShelf::Restart, &SsdShelf::Crash, &SsdShelf::Restart}) {
    (shelf.*restart)();
    EXPECT_EQ(shelf.Numbers(), Range(1, 40));
    EXPECT_EQ(shelf.tier().used_bytes(), used_bytes);
    for (uint64_t number = 1; number <= 40; ++number) {
      EXPECT_TRUE(shelf.Get(number).ok()) << number;
    }
  }
}

TEST(SsdTierTest, ThoseThatWaitForASyncTogetherShareIt) {
  SsdShelf shelf({.devices = 2});
  std::vector<std::thread> threads;
  for (uint64_t first = 0; first < 8; ++first) {
    threads.emplace_back([&shelf, first] {
      for (uint64_t number = 1 + first; number <= 64; number += 8) {
        EXPECT_TRUE(shelf.Put(number, /*is_durable=*/true).ok()) << number;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  // Nothing is new: nobody waits.
  absl::Status synced = absl::UnknownError("");
  shelf.tier().Sync(kAllParts, [&](absl::Status status) { synced = std::move(status); });
  EXPECT_TRUE(synced.ok()) << synced;
  shelf.Crash();
  EXPECT_EQ(shelf.Numbers(), Range(1, 64));
  shelf.tier().Stop();
  shelf.tier().Sync(kAllParts, [&](absl::Status status) { synced = std::move(status); });
  EXPECT_TRUE(absl::IsUnavailable(synced)) << "the tier is stopping";
}

TEST(SsdTierTest, WhatWasFreedStaysGone) {
  SsdShelf shelf;
  for (uint64_t number = 1; number <= 20; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  shelf.Delete(7);
  shelf.Delete(20);
  EXPECT_TRUE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Seconds(10)));
  shelf.Crash();
  EXPECT_EQ(shelf.Numbers().size(), 18u);
  EXPECT_THAT(shelf.Numbers(), Not(Contains(7u)));
  EXPECT_THAT(shelf.Numbers(), Not(Contains(20u)));
}

TEST(SsdTierTest, APolicyIsKeptAsItWasSetLast) {
  SsdShelf shelf;
  SpaceRecord space = SsdShelf::Space();
  space.version = 7;
  space.recipe = "exact";
  shelf.tier().PolicyChanged(space);
  ASSERT_TRUE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Seconds(20)));
  ASSERT_TRUE(shelf.Put(1).ok());
  shelf.Crash();
  EXPECT_EQ(shelf.recipe(), "raw") << "a space that the tier does not know comes with its images";
  ASSERT_TRUE(shelf.Put(2).ok());
  shelf.tier().PolicyChanged(space);
  ASSERT_TRUE(shelf.Put(3).ok()) << "begun before the change, as its version says";
  ASSERT_TRUE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Seconds(20)));
  shelf.Crash();
  EXPECT_EQ(shelf.recipe(), "exact");
  EXPECT_THAT(shelf.Numbers(), testing::ElementsAre(1, 2, 3));
}

TEST(SsdTierTest, WhatIsFreedByAnEndIsKept) {
  SsdShelf shelf;
  ASSERT_TRUE(shelf.Put(1).ok());
  shelf.tier().Stop();
  shelf.Delete(1);
  shelf.Restart();
  EXPECT_EQ(shelf.Numbers(), Range(1, 1));
}

TEST(SsdTierTest, TheOldestGoWhenItIsFull) {
  SsdShelf shelf;
  constexpr uint64_t kCount = 600;  // twice what fits
  for (uint64_t number = 1; number <= kCount; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok()) << number;
    EXPECT_LE(shelf.tier().used_bytes(), shelf.tier().capacity_bytes());
  }
  AwaitRest(shelf);
  const std::set<uint64_t> numbers = shelf.Numbers();
  EXPECT_GT(shelf.evicted(), kCount / 4);
  EXPECT_GT(numbers.size(), 100u);
  EXPECT_EQ(*numbers.rbegin() - *numbers.begin() + 1, numbers.size()) << "in the order written";
  EXPECT_GE(shelf.tier().used_bytes(), shelf.tier().capacity_bytes() / 2);
  EXPECT_LE(DiskBytes(shelf.folder()), shelf.options().budget_bytes);
  for (const uint64_t number : numbers) {
    EXPECT_TRUE(shelf.Get(number).ok()) << number;
  }
  shelf.Crash();
  EXPECT_EQ(shelf.Numbers(), numbers);
}

// As many as it may have, long before its bytes are used.
TEST(SsdTierTest, TheOldestGoWhenThereAreTooManyToo) {
  SsdShelf::Options options;
  options.extents_max = 384;
  SsdShelf shelf(options);
  constexpr uint64_t kCount = 700;
  for (uint64_t number = 1; number <= kCount; ++number) {
    ASSERT_TRUE(shelf.Put(8 * number).ok()) << number;  // of one layer
  }
  EXPECT_GT(shelf.evicted(), kCount / 4);
  EXPECT_EQ(shelf.evicted_for_index(), shelf.evicted()) << "not for want of bytes";
  EXPECT_GT(shelf.Numbers().size(), 200u);
  EXPECT_LT(shelf.tier().used_bytes(), shelf.tier().capacity_bytes() / 2);
  EXPECT_TRUE(shelf.Get(8 * kCount).ok());
}

TEST(SsdTierTest, AnOpenSegmentThatHoldsAllThereMayBeIsClosed) {
  SegmentMap segments(4, 1_MiB, 3);
  segments.SetState(0, SegmentMap::State::kReady);
  segments.SetState(1, SegmentMap::State::kReady);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(segments.Allocate(4_KiB, false).has_value());
  }
  EXPECT_EQ(segments.at(0).state, SegmentMap::State::kOpen);
  EXPECT_TRUE(segments.is_crowded());
  EXPECT_FALSE(segments.Allocate(4_KiB, false).has_value());
  EXPECT_EQ(segments.at(0).state, SegmentMap::State::kFull) << "or it could not be reclaimed";
  EXPECT_TRUE(segments.Allocate(4_KiB, true).has_value()) << "carried along";
}

// Or a full file system, whose missing segments nobody can make, would leave reclaim none.
TEST(SsdTierTest, TheLastSegmentIsKeptForReclaimWhereNoneCanBeMade) {
  SegmentMap segments(4, 1_MiB, 1000);
  segments.SetState(0, SegmentMap::State::kReady);
  EXPECT_EQ(segments.spare_count(), 4u);
  segments.SetCanGrow(false);
  EXPECT_EQ(segments.spare_count(), 1u);
  EXPECT_FALSE(segments.Allocate(4_KiB, /*is_carried=*/false).has_value());
  EXPECT_TRUE(segments.Allocate(4_KiB, /*is_carried=*/true).has_value());
  EXPECT_FALSE(segments.Allocate(4_KiB, /*is_carried=*/false).has_value()) << "in there, too";
  segments.SetState(1, SegmentMap::State::kClean);
  EXPECT_TRUE(segments.Allocate(4_KiB, /*is_carried=*/false).has_value());
}

// As where the process ended while the last segment was written by reclaim.
TEST(SsdTierTest, ADeviceWithoutASpareSegmentIsWrittenAgain) {
  SsdShelf shelf;
  constexpr uint64_t kEnds = 8;  // each leaves a segment with little in it
  for (uint64_t number = 1; number <= kEnds; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
    shelf.Restart();
  }
  const auto segments = [&](std::string_view state) {
    MetricCapture metrics;
    shelf.tier().Report(metrics);
    return metrics.Value(
        absl::StrCat("cairn_ssd_segments{device=\"0\",state=\"", ToAbsl(state), "\"}"));
  };
  ASSERT_EQ(segments("sealed"), kEnds);
  // A budget for no more segments than there are.
  shelf.options().budget_bytes = 26_MiB;
  shelf.Restart();
  // In whatever state reclaim has got them to by now.
  MetricCapture metrics;
  shelf.tier().Report(metrics);
  double count = 0;
  for (const auto& [series, value] : metrics.values()) {
    count += series.starts_with("cairn_ssd_segments{") ? value : 0;
  }
  EXPECT_EQ(count, kEnds) << "none is spare";
  EXPECT_TRUE(shelf.Put(100).ok());
}

TEST(SsdTierTest, WhatIsReadInTheBackgroundCountsAsUnused) {
  SsdShelf shelf;
  for (uint64_t number = 1; number <= 40; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  EXPECT_EQ(shelf.Read(5, /*is_background=*/true).value(), SsdShelf::Image(5));
  const DeviceReport report = shelf.tier().Devices()[0];
  EXPECT_EQ(report.read_bytes, 0u) << "of gets";
  for (uint64_t number = 100; number <= 900; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  EXPECT_FALSE(shelf.Numbers().contains(5));
  EXPECT_EQ(shelf.moved(), 0u);
}

TEST(SsdTierTest, WhatIsHeldOrReadIsCarriedAlong) {
  SsdShelf shelf;
  for (uint64_t number = 1; number <= 40; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  shelf.Hold(3);
  for (uint64_t number = 100; number <= 900; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
    if (number % 20 == 0) {
      EXPECT_TRUE(shelf.Get(5).ok()) << number;
    }
  }
  EXPECT_GT(shelf.moved(), 2u);
  EXPECT_THAT(shelf.Numbers(), Contains(3u)) << "held";
  EXPECT_THAT(shelf.Numbers(), Contains(5u)) << "read again and again";
  EXPECT_THAT(shelf.Numbers(), Not(Contains(4u)));
  shelf.Crash();
  EXPECT_TRUE(shelf.Get(3).ok());
  EXPECT_TRUE(shelf.Get(5).ok());
}

TEST(SsdTierTest, DamageIsFoundWhereItMatters) {
  SsdShelf shelf;
  for (uint64_t number = 1; number <= 60; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  const auto damage = [&](uint64_t number) {
    const uint64_t offset = shelf.OffsetOf(number);
    Flip(absl::StrCat(shelf.folder(), "/segments/00000", offset / shelf.options().segment_bytes),
         offset % shelf.options().segment_bytes + 8000);
  };
  damage(2);   // in a sealed segment
  damage(60);  // in the open one
  shelf.Crash();
  EXPECT_THAT(shelf.Numbers(), Not(Contains(60u))) << "what was not sealed is checked";
  EXPECT_TRUE(absl::IsDataLoss(shelf.Get(2))) << "the reader checks what it reads";
  shelf.Hold(2);
  for (uint64_t number = 100; number <= 700; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  EXPECT_EQ(shelf.lost(), 1u) << "reclaim carries nothing along that is damaged";
}

TEST(SsdTierTest, ALargeImageIsRefusedAndCounted) {
  SsdShelf shelf;
  const uint64_t quarter = shelf.options().segment_bytes / 4;
  EXPECT_TRUE(absl::IsResourceExhausted(shelf.tier().Reserve(quarter + 1).status()));
  MetricCapture metrics;
  shelf.tier().Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_ssd_refused_total{device=\"0\",reason=\"size\"}"), 1);
}

TEST(SsdTierTest, AChainLiesOnOneDeviceAndALostOneCostsItsOwn) {
  SsdShelf shelf({.devices = 2});
  for (uint64_t number = 0; number < 40; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
    EXPECT_EQ(shelf.OffsetOf(number) >> SsdDevice::kNumberShift, number % 2);
  }
  {
    const auto parent = shelf.tier().Reserve(4096, Placement{.hash = 1});
    ASSERT_TRUE(parent.ok());
    const auto child = shelf.tier().Reserve(4096, Placement{.parent_copy = &*parent, .hash = 0});
    ASSERT_TRUE(child.ok());
    EXPECT_EQ(child->offset() >> SsdDevice::kNumberShift, 1u);
  }
  shelf.Close();
  std::filesystem::remove_all(shelf.folder(0));
  shelf.Open();
  EXPECT_EQ(shelf.Numbers().size(), 20u);
  for (const uint64_t number : shelf.Numbers()) {
    EXPECT_EQ(number % 2, 1u);
    EXPECT_TRUE(shelf.Get(number).ok());
  }
}

TEST(SsdTierTest, ADeviceThatCannotBeRecoveredIsOutAndTheOthersServe) {
  SsdShelf::Options options;
  options.devices = 2;
  SsdShelf shelf(options);
  for (uint64_t number = 0; number < 20; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  shelf.Close();
  const std::string segment = absl::StrCat(shelf.folder(0), "/segments/000000");
  std::filesystem::rename(segment, segment + ".aside");
  std::filesystem::create_directory(segment);  // opens as nothing that is read
  shelf.Open();
  EXPECT_EQ(shelf.Numbers().size(), 10u);
  for (uint64_t number = 100; number < 104; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
    EXPECT_EQ(shelf.OffsetOf(number) >> SsdDevice::kNumberShift, 1u);
  }
  shelf.Delete(101);
  EXPECT_TRUE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Seconds(30))) << "none of it is out";
  shelf.Close();
  std::filesystem::remove(segment);
  std::filesystem::rename(segment + ".aside", segment);
  shelf.Open();
  EXPECT_EQ(shelf.Numbers().size(), 23u) << "it is back with what it had";
}

TEST(SsdTierTest, AnotherBudgetKeepsWhatFits) {
  SsdShelf shelf;
  for (uint64_t number = 1; number <= 150; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  shelf.options().budget_bytes = 30_MiB;
  shelf.Restart();
  AwaitRest(shelf);
  EXPECT_FALSE(shelf.Numbers().empty());
  EXPECT_LE(DiskBytes(shelf.folder()), 30_MiB);
  for (const uint64_t number : shelf.Numbers()) {
    EXPECT_TRUE(shelf.Get(number).ok());
  }
  shelf.options().budget_bytes = 64_MiB;
  shelf.Restart();
  for (uint64_t number = 1000; number <= 1200; ++number) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
}

}  // namespace
}  // namespace cairn
