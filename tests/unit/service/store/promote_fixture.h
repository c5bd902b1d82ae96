// SPDX-License-Identifier: Apache-2.0
#pragma once
// A store with a tier that has to be read, whose completions come when the test says, and gets that
// wait for it.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/log_capture.h"
#include "tests/support/memory_tier.h"
#include "tests/support/metric_capture.h"
#include "tests/support/random.h"
#include "tests/support/store_fixture.h"
#include "tests/support/wait.h"

namespace cairn {

// A get that may be answered later, by another thread.
class StartedGet {
 public:
  struct Ask {
    codecs::Slice slice = {0, 2, 0, 4};
    proto::Form form = proto::Form::kSource;
  };
  StartedGet(StoreFixture& store, const SpaceEntry& space, uint64_t block,
             absl::Time deadline = absl::InfiniteFuture())
      : StartedGet(store, space, block, Ask(), deadline) {}
  StartedGet(StoreFixture& store, const SpaceEntry& space, uint64_t block, const Ask& ask,
             absl::Time deadline = absl::InfiniteFuture()) {
    proto::Get body;
    body.space_id = space.id();
    body.key = StoreFixture::Key(block);
    body.slice = {ask.slice.layer_first, ask.slice.layer_count, ask.slice.head_first,
                  ask.slice.head_count};
    body.form = ask.form;
    StoreFixture::RunGet(*store.gets, body, StoreFixture::RequestOf(store.session, deadline),
                         limits::kTransferBytesMax, [this](absl::StatusOr<Answer> answer) {
                           answer_ = std::move(answer);
                           CAIRN_CHECK(!is_over_.exchange(true), "answered twice");
                         });
  }
  bool is_over() const { return is_over_; }
  absl::StatusOr<Answer>& Await() {
    CAIRN_CHECK(WaitFor([&] { return is_over(); }));
    return answer_;
  }

 private:
  absl::StatusOr<Answer> answer_;
  std::atomic<bool> is_over_{false};
};

class PromoteTest : public ::testing::Test {
 protected:
  explicit PromoteTest(uint64_t staging_bytes = 32_MiB, uint32_t tokens_per_block = 16,
                       const char* recipe = "raw", uint32_t layers = 2)
      : store(16_MiB, 4096, staging_bytes, Others()),
        cold(static_cast<MemoryTier&>(*store.tiers->Find(TierId::kSsd))),
        space(store.OpenSpace(recipe, Identity(tokens_per_block, layers))),
        whole(StoreFixture::Whole(space)) {}
  ~PromoteTest() override {
    EXPECT_EQ(store.gets->waiting().count(), 0u);
    // A get may be answered just before its read is over and what that holds goes.
    AwaitReads();
    EXPECT_TRUE(WaitFor([&] {
      return store.host->staging_bytes() == 0 && store.index->pinned_bytes() == 0;
    })) << store.host->staging_bytes()
        << " bytes of staging, " << store.index->pinned_bytes() << " of pins";
    store.index->Invalidate(space.id());
    EXPECT_TRUE(WaitFor([&] { return store.host->used_bytes() == 0 && cold.used_bytes() == 0; }))
        << "no pin of a place is left";
  }

  static std::vector<std::unique_ptr<CopyTier>> Others() {
    std::vector<std::unique_ptr<CopyTier>> others;
    others.push_back(std::make_unique<MemoryTier>(
        TierTraits{.id = TierId::kSsd, .may_hold_last = true}, 64_MiB));
    return others;
  }
  static proto::SpaceIdentity Identity(uint32_t tokens_per_block, uint32_t layers) {
    proto::SpaceIdentity identity = StoreFixture::Identity();
    identity.tokens_per_block = tokens_per_block;
    identity.groups[0].layers.resize(layers);
    std::iota(identity.groups[0].layers.begin(), identity.groups[0].layers.end(), 0U);
    return identity;
  }

  // Puts a slice of a block and leaves the cold tier the only one that has it.
  void PutCold(uint64_t block, const codecs::Slice& slice) {
    const proto::BlockKey key = StoreFixture::Key(block);
    CAIRN_CHECK_OK(store.PutSource(space, key, slice));
    const CopyPins pins = store.index->Lookup({space.id(), key}, 0, slice);
    CopyWriter writer = store.index->BeginCopy(pins[0], TierId::kSsd);
    auto extent = cold.Reserve(pins[0].bytes().size());
    CAIRN_CHECK_OK(extent);
    CopyFacts facts = pins[0].copy();
    facts.tier = TierId::kSsd;
    absl::Status written;
    cold.Write(
        {.place = &*extent, .image = pins[0].facts(), .copy = facts, .source = pins[0].bytes()},
        [&](absl::Status status) { written = std::move(status); });
    CAIRN_CHECK_OK(written);
    NewCopy copy;
    copy.recipe = facts.recipe;
    copy.extent = *std::move(extent);
    copy.directory_crc = facts.directory_crc;
    copy.tenant = "acme";
    CAIRN_CHECK(store.index->FinishCopy(std::move(writer), std::move(copy)));
  }
  void EvictHost() {
    store.EvictHost();
    CAIRN_CHECK(store.host->used_bytes() == 0);
  }
  // Blocks 1 to `count`.
  void PutColdBlocks(uint64_t count) {
    for (uint64_t block = 1; block <= count; ++block) {
      PutCold(block, whole);
    }
    EvictHost();
  }
  // On a thread of its own, as a device would.
  void Complete(const std::vector<TransferId>& transfers,
                const absl::Status& status = absl::OkStatus()) {
    std::thread device([&] {
      for (const TransferId transfer : transfers) {
        cold.Complete(transfer, status);
      }
    });
    device.join();
  }
  void AwaitReads() {
    EXPECT_TRUE(WaitFor([&] { return store.gets->promotions().count() == 0; }));
  }
  void ExpectRight(StartedGet& get, uint64_t block) { ExpectRight(get, block, whole); }
  void ExpectRight(StartedGet& get, uint64_t block, const codecs::Slice& slice) {
    absl::StatusOr<Answer>& answer = get.Await();
    ASSERT_TRUE(answer.ok()) << answer.status();
    const auto source = StoreFixture::Source(space, StoreFixture::Key(block), 0, slice);
    EXPECT_TRUE(
        std::equal(source.begin(), source.end(), answer->payload.begin(), answer->payload.end()))
        << "wrong bytes of block " << block;
    answer = absl::NotFoundError("");  // sent
  }
  // A device that answers at random, beside readers that come at random, for one of the slices.
  void RunReaders(uint64_t block_count, const std::vector<codecs::Slice>& slices) {
    const LogCapture log;
    constexpr int kReaders = 3, kRounds = 200;
    PutColdBlocks(block_count);
    cold.HoldCompletions(true);
    std::atomic<int> readers{kReaders};
    std::atomic<int> hits{0};
    std::thread device([&] {
      std::mt19937_64 random = SeededRandom(99);
      while (readers > 0 || store.gets->promotions().count() > 0) {
        const std::vector<TransferId> waiting = cold.waiting();
        if (!waiting.empty()) {
          cold.Complete(
              waiting[random() % waiting.size()],
              random() % 4 == 0 ? absl::UnavailableError("now and then") : absl::OkStatus());
        }
        if (random() % 8 == 0) {
          store.clock.Advance(absl::Milliseconds(300));
          store.pool->Wake();
          store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity);
        }
        std::this_thread::yield();
      }
    });
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kReaders; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937_64 random = SeededRandom(static_cast<uint64_t>(thread));
        for (int round = 0; round < kRounds; ++round) {
          const uint64_t block = 1 + random() % block_count;
          const codecs::Slice& slice = slices[random() % slices.size()];
          StartedGet get(store, space, block, {.slice = slice},
                         store.clock.Now() + absl::Seconds(random() % 3));
          if (get.Await().ok()) {
            ++hits;
            ExpectRight(get, block, slice);
          }
        }
        --readers;
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    device.join();
    EXPECT_GT(hits, 0);
  }
  double Metric(const std::string& series) {
    MetricCapture metrics;
    store.gets->Report(metrics);
    return metrics.Value(series);
  }

  StoreFixture store;
  MemoryTier& cold;
  const SpaceEntry& space;
  const codecs::Slice whole;
};

}  // namespace cairn
