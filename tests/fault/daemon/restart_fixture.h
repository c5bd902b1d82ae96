// SPDX-License-Identifier: Apache-2.0
#pragma once
// Daemons over the same devices, one after the other, each ended while clients work.

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/cpp/admin.h"
#include "tests/e2e/client/client_fixture.h"
#include "tests/fault/daemon/keeper.h"
#include "tests/support/from_environment.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tier_folder.h"
#include "tests/support/wait.h"

namespace cairn {

inline int Rounds(int cheap) { return FromEnvironment("CAIRN_KILLS", cheap); }

// Devices, and what each of three clients has there.
struct Load {
  size_t devices = 3;
  uint32_t blocks = 24;  // of a chain
  uint32_t heads = 4;    // of a block
  uint32_t durable_percent = 25, delete_percent = 7;
  uint64_t host_bytes = 64_MiB;  // where it is little, gets keep places of the device
  bool is_reclaiming = false;    // a process ends while a segment is reclaimed
};
// One device that is written over every second or so: most of what was written is deleted again,
// and less than half of it is in use, so that reclaim carries along what is left and evicts
// nothing.
inline constexpr Load kReclaiming = {.devices = 1,
                                     .blocks = 8,
                                     .heads = 64,
                                     .durable_percent = 50,
                                     .delete_percent = 25,
                                     .host_bytes = 32_MiB,
                                     .is_reclaiming = true};

class RestartFixture : public testing::Test {
 protected:
  enum class End : uint8_t { kKill, kStop };
  static constexpr uint64_t kDeviceBytes = 256_MiB;
  // Each end of a process costs one of a device's 16 segments, so that reclaim is at work from the
  // twelfth kill on. It evicts nothing while less than half of a device is in use.
  static constexpr double kUsedBytesMax = kDeviceBytes / 2;
  // Then devices are empty again.
  static constexpr int kEndsEach = 64;

  RestartFixture() : RestartFixture(Load{}) {}
  explicit RestartFixture(const Load& load) : load_(load) {
    for (size_t i = 0; i < load_.devices; ++i) {
      devices_.emplace_back(disk_.File(absl::StrCat("device", i)));
    }
    BeginAnew();
  }

  // Empty devices, and clients that expect nothing.
  void BeginAnew() {
    for (const auto& keeper : keepers_) {
      Add(keeper->counts());
    }
    keepers_.clear();
    for (const TierFolder& device : devices_) {
      std::filesystem::remove_all(device.path());
    }
    for (const char* recipe : {"raw", "exact", "raw"}) {
      keepers_.push_back(
          std::make_unique<Keeper>(Keeper::Options{.name = absl::StrCat("keeper-", keepers_.size()),
                                                   .recipe = recipe,
                                                   .seed = random_(),
                                                   .blocks = load_.blocks,
                                                   .heads = load_.heads,
                                                   .durable_percent = load_.durable_percent,
                                                   .delete_percent = load_.delete_percent,
                                                   .is_roomy = !load_.is_reclaiming}));
    }
    may_evict_ = false;
  }

  void Start() {
    std::vector<std::string> flags = {"--ssd-io=" + io_,
                                      absl::StrCat("--host-bytes=", load_.host_bytes)};
    for (const TierFolder& device : devices_) {
      flags.push_back(absl::StrCat("--ssd=", device.path(), "=", kDeviceBytes));
    }
    auto started = DaemonProcess::Start(flags);
    ASSERT_TRUE(started.ok()) << started.status();
    daemon_ = *std::move(started);
    for (const auto& keeper : keepers_) {
      const absl::Status connected = keeper->Connect(daemon_->endpoint("control"));
      ASSERT_TRUE(connected.ok()) << connected;
    }
  }

  // A start, a look at what is there, work, and the end. `is_damaged`: blocks may have gone.
  void Round(const Keeper::Expected& expected, bool is_damaged, End end = End::kKill) {
    ASSERT_NO_FATAL_FAILURE(Start());
    evicting_ += may_evict_ ? 1 : 0;
    for (const auto& keeper : keepers_) {
      keeper->Check(expected);
    }
    CheckAccounts(is_damaged);
    if (HasFailure()) {
      FAIL() << daemon_->ReadLog();
    }
    WorkAndEnd(end);
    if (++ends_ % kEndsEach == 0) {
      BeginAnew();
    }
  }

  // The index, the tier and its devices tell the same, and none holds more than it may.
  void CheckAccounts(bool is_damaged) {
    uint64_t there = 0;
    for (const auto& keeper : keepers_) {
      there += keeper->CountThere();
    }
    const auto stats = keepers_[0]->client().GetStats(kPatience);
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_EQ(stats->block_count, there);
    EXPECT_EQ(stats->image_count, there);
    EXPECT_EQ(stats->session_count, keepers_.size());
    EXPECT_EQ(stats->lease_count, 0u);
    const auto admin = AdminClient::Open(daemon_->endpoint("control"));
    ASSERT_TRUE(admin.ok()) << admin.status();
    std::string told;
    const bool agree = WaitFor(
        [&] {
          const auto tiers = (*admin)->ListTiers(MonotonicNow() + kPatience);
          uint64_t images = 0, used = 0, tier_images = 0, tier_used = 0;
          for (const v1::TierInfo& tier : tiers->tiers()) {
            if (tier.devices().empty()) continue;
            tier_images += tier.image_count();
            tier_used += tier.used_bytes();
            for (const v1::DeviceInfo& device : tier.devices()) {
              images += device.image_count();
              used += device.used_bytes();
              EXPECT_LE(device.used_bytes(), kDeviceBytes);
            }
          }
          told = absl::StrCat(there, " blocks; tier ", tier_images, " images, ", tier_used,
                              " bytes; devices ", images, " images, ", used, " bytes");
          return images == there && tier_images == there && used == tier_used;
        },
        absl::Seconds(10), absl::Milliseconds(20));
    // What rests of damaged copies is freed as it is found.
    EXPECT_TRUE(agree || is_damaged) << told;
    EXPECT_TRUE(daemon_->AwaitMetric("cairn_tier_pinned_bytes", 0, absl::Seconds(10)));
    for (const TierFolder& device : devices_) {
      if (std::filesystem::is_directory(device.path())) {
        EXPECT_LE(device.AllocatedBytes(), kDeviceBytes) << device.path();
      }
    }
  }

  void WorkAndEnd(End end) {
    std::atomic<bool> is_over{false};
    // So many clients delete much; the first that is answered ends the daemon.
    std::atomic<size_t> deleting{0};
    const auto signal = [&] {
      is_over = true;
      daemon_->process().Signal(end == End::kKill ? SIGKILL : SIGTERM);
    };
    std::vector<std::thread> workers;
    for (size_t i = 0; i < keepers_.size(); ++i) {
      workers.emplace_back([&, i] {
        Keeper& keeper = *keepers_[i];
        bool goes_on = true;
        while (goes_on && deleting <= i) {  // ends: with the daemon
          goes_on = keeper.Step();
        }
        EXPECT_TRUE(is_over || goes_on) << "it did not answer before it was ended";
        if (goes_on) {
          keeper.DeleteEnds();
        }
        if (!is_over) {
          signal();
        }
      });
    }
    absl::SleepFor(absl::Milliseconds(100 + random_() % 700));
    // On a busy machine nothing may have come to be put by then.
    EXPECT_TRUE(WaitFor([&] { return daemon_->Metric("cairn_puts_total{outcome=\"stored\"") > 0; },
                        absl::Seconds(60), absl::Milliseconds(1)));
    EXPECT_TRUE(daemon_->process().is_running()) << "it ended by itself";
    may_evict_ |= daemon_->Metric("cairn_tier_used_bytes{tier=\"ssd\"") > kUsedBytesMax;
    if (load_.is_reclaiming) {
      EXPECT_TRUE(
          WaitFor([&] { return IsReclaiming(); }, absl::Seconds(60), absl::Milliseconds(1)));
      may_evict_ |= daemon_->Metric("cairn_evictions_total{tier=\"ssd\"") > 0;
    }
    if (load_.is_reclaiming && random_() % 4 != 0) {
      deleting = 1 + random_() % keepers_.size();
      // What it told last of its segments is how it ends.
      bool is_reclaiming = false;
      while (!is_over) {  // ends: the client says so
        const bool told = IsReclaiming();
        is_reclaiming = is_over ? is_reclaiming : told;
      }
      in_reclaim_ += is_reclaiming ? 1 : 0;
    } else {
      signal();
      in_reclaim_ += load_.is_reclaiming ? 1 : 0;
    }
    for (std::thread& worker : workers) {
      worker.join();
    }
    for (const auto& keeper : keepers_) {
      keeper->Disconnect();
    }
    EXPECT_EQ(daemon_->process().Wait(kPatience).value_or(-1),
              end == End::kKill ? 128 + SIGKILL : 0);
    daemon_.reset();
  }

  // A segment is under reclaim.
  bool IsReclaiming() const {
    for (const auto& [series, value] : daemon_->Metrics()) {
      if (series.starts_with("cairn_ssd_segments") && value > 0 &&
          series.find("reclaiming") != std::string::npos) {
        return true;
      }
    }
    return false;
  }

  void Add(const Keeper::Counts& counts) {
    sum_.puts += counts.puts;
    sum_.durable_puts += counts.durable_puts;
    sum_.deleted += counts.deleted;
    sum_.hits += counts.hits;
    sum_.hits_from_ssd += counts.hits_from_ssd;
    sum_.leases += counts.leases;
    sum_.checked += counts.checked;
    sum_.lost += counts.lost;
    sum_.came_back += counts.came_back;
  }
  void Print() {
    for (const auto& keeper : keepers_) {
      Add(keeper->counts());
    }
    std::cout << ends_ << " ends (" << evicting_ << " of them where blocks may have been evicted, "
              << in_reclaim_ << " while a segment was reclaimed), " << sum_.puts << " puts ("
              << sum_.durable_puts << " durable), " << sum_.deleted << " deleted, " << sum_.leases
              << " leases, " << sum_.hits << " gets with the right bytes (" << sum_.hits_from_ssd
              << " from SSD); " << sum_.checked
              << " times a durable block had to be there and was, " << sum_.lost
              << " went with what was damaged, away or reclaimed, " << sum_.came_back
              << " came back\n";
  }

  const Load load_;
  // A disk: a folder of the system's may be in memory, where nothing bypasses the page cache.
  const TempDir disk_{std::filesystem::path(CAIRN_TEST_DISK)};
  std::mt19937_64 random_ = SeededRandom();
  std::vector<TierFolder> devices_;
  std::vector<std::unique_ptr<Keeper>> keepers_;
  std::string io_ = "auto";
  std::unique_ptr<DaemonProcess> daemon_;
  bool may_evict_ = false;  // from the drives
  Keeper::Counts sum_;      // of keepers that are no more
  int ends_ = 0, evicting_ = 0;
  int in_reclaim_ = 0;  // ends while a segment was reclaimed, as the daemon said last
};

}  // namespace cairn
