// SPDX-License-Identifier: Apache-2.0
// A daemon under everything at once: puts, gets from both tiers, deletions, leases, sessions that
// come and go, policies that change, upkeep, reclaim and the scrubber. Every so often the load
// stops and all is deleted: what the daemon holds then is what it held after the first time.
// CAIRN_SOAK_MINUTES=N says how long: half an hour in the soak, seconds otherwise.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/cpp/admin.h"
#include "tests/e2e/client/client_fixture.h"
#include "tests/fault/daemon/keeper.h"
#include "tests/support/process_weight.h"
#include "tests/support/random.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tier_folder.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

constexpr int kRounds = 5;  // of load, each followed by rest
constexpr uint64_t kDeviceBytes = 256_MiB;
constexpr uint32_t kChains = 64, kBlocks = 32;  // of each client
// Over the first rest. Allocators and the ledgers' tables keep some of what they had, and gRPC's
// threads come and go.
constexpr uint64_t kMemorySlackBytes = 32_MiB, kIndexSlackBytes = 1_MiB;
constexpr uint64_t kThreadSlack = 8, kDescriptorSlack = 32;

// Gauges of what is held for somebody.
constexpr std::array<std::string_view, 22> kHeld = {"cairn_sessions",
                                                    "cairn_leases",
                                                    "cairn_leased_images",
                                                    "cairn_blocks",
                                                    "cairn_images",
                                                    "cairn_waiting_gets",
                                                    "cairn_waiting_prefetches",
                                                    "cairn_waiting_durable_puts",
                                                    "cairn_promoting_bytes",
                                                    "cairn_writing_down_bytes",
                                                    "cairn_tier_copies",
                                                    "cairn_tier_used_bytes",
                                                    "cairn_tier_pinned_bytes",
                                                    "cairn_staging_used_bytes",
                                                    "cairn_put_in_flight_bytes",
                                                    "cairn_quarantine_bytes",
                                                    "cairn_data_requests_in_flight",
                                                    "cairn_data_peers",
                                                    "cairn_transport_region_bytes",
                                                    "cairn_transport_quarantine_bytes",
                                                    "cairn_query_squares_bytes",
                                                    "cairn_side_object_bytes"};

absl::Duration SoakTime() {
  const char* given = std::getenv("CAIRN_SOAK_MINUTES");
  if (given != nullptr) {
    return absl::Minutes(1) * std::atof(given);
  }
  return std::getenv("CAIRN_IS_SOAK") == nullptr ? absl::Seconds(4) : absl::Minutes(30);
}

struct Rest {
  ProcessWeight process;
  double index_bytes = 0;
  uint64_t disk_bytes = 0;
};

class DaemonSoak : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::string> flags = {"--ssd-scrub-rate=32MiB", "--host-bytes=32MiB"};
    for (const char* name : {"device0", "device1"}) {
      devices_.emplace_back(disk_.File(name));
      flags.push_back(absl::StrCat("--ssd=", devices_.back().path(), "=", kDeviceBytes));
    }
    auto started = DaemonProcess::Start(flags);
    ASSERT_TRUE(started.ok()) << started.status();
    daemon_ = *std::move(started);
    for (const char* recipe : {"raw", "exact", "raw"}) {
      keepers_.push_back(
          std::make_unique<Keeper>(Keeper::Options{.name = absl::StrCat("keeper-", keepers_.size()),
                                                   .recipe = recipe,
                                                   .seed = random_(),
                                                   .chains = kChains,
                                                   .blocks = kBlocks,
                                                   .durable_percent = 5,
                                                   .is_roomy = false}));
    }
  }

  std::string control() const { return daemon_->endpoint("control"); }

  // Works until `until`, in a session after the other.
  void Keep(Keeper& keeper, absl::Time until) {
    constexpr int kStepsPerSession = 500;
    while (MonotonicNow() < until && !HasFailure()) {
      const absl::Status connected = keeper.Connect(control());
      ASSERT_TRUE(connected.ok()) << connected;
      for (int i = 0; i < kStepsPerSession && MonotonicNow() < until && !HasFailure(); ++i) {
        ASSERT_TRUE(keeper.Step()) << keeper.ended_by();
      }
    }
    keeper.Disconnect();
  }
  // Sessions that are dropped with a lease and a prefetch under way.
  void DropSessions(absl::Time until) {
    while (MonotonicNow() < until && !HasFailure()) {
      Keeper visitor({.name = "keeper-0", .chains = kChains, .blocks = kBlocks, .is_roomy = false});
      const absl::Status connected = visitor.Connect(control());
      ASSERT_TRUE(connected.ok()) << connected;
      const std::vector<BlockKey> keys = visitor.Keys();
      const std::span<const BlockKey> chain =
          std::span(keys).subspan(sessions_ % kChains * kBlocks, kBlocks);
      EXPECT_TRUE(visitor.space().Match({.keys = chain, .timeout = kPatience}).ok());
      EXPECT_TRUE(visitor.space().Prefetch({.keys = chain, .timeout = kPatience}).ok());
      ++sessions_;
      absl::SleepFor(absl::Milliseconds(20));
    }
  }
  void ChangePolicies(absl::Time until) {
    const auto admin = AdminClient::Open(control());
    ASSERT_TRUE(admin.ok()) << admin.status();
    for (uint64_t turn = 0; MonotonicNow() < until && !HasFailure(); ++turn) {
      const auto spaces = (*admin)->ListSpaces(MonotonicNow() + kPatience);
      ASSERT_TRUE(spaces.ok()) << spaces.status();
      for (const v1::SpaceInfo& space : spaces->spaces()) {
        v1::SetPolicyRequest request;
        request.set_space_id(space.space_id());
        request.mutable_policy()->set_recipe(turn % 2 == 0 ? "raw" : "exact");
        request.mutable_policy()->set_cold_recipe(turn % 2 == 0 ? "exact" : "");
        request.mutable_policy()->set_ttl_seconds(turn % 3 == 0 ? 3600 : 0);
        const auto set = (*admin)->SetPolicy(request, MonotonicNow() + kPatience);
        EXPECT_TRUE(set.ok()) << set.status();
        ++policies_;
      }
      absl::SleepFor(absl::Milliseconds(100));
    }
  }
  void Load(absl::Duration time) {
    const absl::Time until = MonotonicNow() + time;
    std::vector<std::thread> threads;
    for (const auto& keeper : keepers_) {
      threads.emplace_back([this, &keeper, until] { Keep(*keeper, until); });
    }
    threads.emplace_back([this, until] { DropSessions(until); });
    threads.emplace_back([this, until] { ChangePolicies(until); });
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  // Deletes everything, and waits until nothing is held for anybody.
  Rest ComeToRest() {
    for (const auto& keeper : keepers_) {
      EXPECT_TRUE(keeper->Connect(control()).ok());
      EXPECT_TRUE(keeper->space().Invalidate(kPatience).ok());
      keeper->Disconnect();
    }
    std::string held;
    const auto is_nothing_held = [&] {
      held.clear();
      for (const auto& [series, value] : daemon_->Metrics()) {
        const std::string name = series.substr(0, series.find('{'));
        if (std::ranges::count(kHeld, name) > 0 && value != 0) {
          absl::StrAppend(&held, series, " ", value, "\n");
        }
      }
      return held.empty();
    };
    EXPECT_TRUE(WaitFor(is_nothing_held, absl::Seconds(60), absl::Milliseconds(20))) << held;
    const Scrape scrape = daemon_->Metrics();
    EXPECT_EQ(scrape.at("cairn_arena_allocated_bytes_total"),
              scrape.at("cairn_arena_freed_bytes_total"));
    EXPECT_EQ(scrape.at("cairn_image_published_bytes_total"),
              scrape.at("cairn_image_unlinked_bytes_total"));
    for (const std::string_view name : kHeld) {
      EXPECT_TRUE(std::ranges::any_of(
          scrape, [&](const auto& sample) { return sample.first.starts_with(name); }))
          << "no " << name;
    }
    for (const auto& [series, value] : scrape) {
      for (const char* wrong : {"cairn_corrupt_tiles_total", "cairn_tier_lost_copies_total",
                                "cairn_transport_stuck_transfers_total"}) {
        EXPECT_TRUE(value == 0 || !series.starts_with(wrong)) << series << " " << value;
      }
    }
    Rest rest = Weigh();
    std::cout << "at rest: " << rest.process.bytes / 1_MiB << " MiB, " << rest.process.threads
              << " threads, " << rest.process.descriptors << " descriptors, index "
              << rest.index_bytes / 1024 << " KiB, drives " << rest.disk_bytes / 1_MiB << " MiB\n";
    return rest;
  }
  Rest Weigh() const {
    Rest rest{.process = WeightOf(daemon_->process().pid()),
              .index_bytes = daemon_->Metric("cairn_index_bytes"),
              .disk_bytes = 0};
    for (const TierFolder& device : devices_) {
      rest.disk_bytes += device.AllocatedBytes();
    }
    return rest;
  }
  bool IsBackAt(const Rest& base, const Rest& now) const {
    return (kIsSanitized || now.process.bytes <= base.process.bytes + kMemorySlackBytes) &&
           now.process.threads <= base.process.threads + kThreadSlack &&
           now.process.descriptors <= base.process.descriptors + kDescriptorSlack &&
           now.index_bytes <= base.index_bytes + double{kIndexSlackBytes} &&
           now.disk_bytes <= devices_.size() * kDeviceBytes;
  }

  const TempDir disk_{std::filesystem::path(CAIRN_TEST_DISK)};
  std::mt19937_64 random_ = SeededRandom();
  std::vector<TierFolder> devices_;
  std::vector<std::unique_ptr<Keeper>> keepers_;
  std::unique_ptr<DaemonProcess> daemon_;
  uint64_t sessions_ = 0, policies_ = 0;
};

TEST_F(DaemonSoak, HoldsNothingOnceTheLoadIsOver) {
  const Rest start = Weigh();
  std::cout << "started: " << start.process.bytes / 1_MiB << " MiB, " << start.process.threads
            << " threads, " << start.process.descriptors << " descriptors\n";
  Rest base;
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    Load(SoakTime() / kRounds);
    Rest rest = ComeToRest();
    if (round == 0) {
      base = rest;
    }
    EXPECT_TRUE(WaitFor([&] { return IsBackAt(base, rest = Weigh()); }, absl::Seconds(30),
                        absl::Milliseconds(200)))
        << "after round " << round << ": MiB " << rest.process.bytes / 1_MiB << ", threads "
        << rest.process.threads << ", descriptors " << rest.process.descriptors << ", index "
        << rest.index_bytes;
  }
  Keeper::Counts sum;
  for (const auto& keeper : keepers_) {
    sum.puts += keeper->counts().puts;
    sum.deleted += keeper->counts().deleted;
    sum.leases += keeper->counts().leases;
    sum.hits += keeper->counts().hits;
    sum.hits_from_ssd += keeper->counts().hits_from_ssd;
  }
  std::cout << sum.puts << " puts, " << sum.deleted << " deleted, " << sum.leases << " leases, "
            << sum.hits << " gets with the right bytes (" << sum.hits_from_ssd << " from SSD), "
            << sessions_ << " sessions dropped, " << policies_ << " policies set, "
            << daemon_->Metric("cairn_evictions_total{tier=\"ssd\"") << " evicted from SSD, "
            << daemon_->Metric("cairn_scrubbed_images_total") << " scrubbed\n";
  EXPECT_GT(sum.hits, 0u);
  EXPECT_GT(sessions_ * policies_, 0u);
  EXPECT_TRUE(daemon_->process().is_running());
}

}  // namespace
}  // namespace cairn
