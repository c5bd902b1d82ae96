// SPDX-License-Identifier: Apache-2.0
// Many threads on one small store: writers, readers, leases, waiters, sessions that end at any
// moment, deletes, a damaged byte now and then, upkeep. Whatever happens: no wrong bytes, and in
// the end nothing is held.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "service/path_pool.h"
#include "tests/support/log_capture.h"
#include "tests/support/metric_capture.h"
#include "tests/support/random.h"
#include "tests/support/sanitizer.h"
#include "tests/support/store_fixture.h"

namespace cairn {
namespace {

constexpr uint64_t kBlocks = 60;
constexpr int kThreads = 4;
constexpr int kRounds = 1500 / kSlowdown;

class Stress {
 public:
  Stress() : store_(16_MiB), space_(store_.OpenSpace("raw", Identity())) {
    for (uint64_t block = 1; block <= kBlocks; ++block) {
      sources_.push_back(
          StoreFixture::Source(space_, StoreFixture::Key(block), 0, StoreFixture::Whole(space_)));
    }
    store_.index->SetWake([this] { store_.upkeep->Wake(); });
  }

  void Work(int thread) {
    std::mt19937_64 random = SeededRandom(static_cast<uint64_t>(thread));
    Session session = store_.OpenSession("acme");
    for (int i = 0; i < kRounds; ++i) {
      const uint64_t block = 1 + random() % kBlocks;
      switch (random() % 12) {
        case 0:
        case 1:
        case 2:
        case 3:
          Put(session, block, random() % 8 == 0);
          break;
        case 4:
        case 5:
        case 6:
          Get(session, block);
          break;
        case 7:
        case 8:
          Match(session, block, random() % 2 == 0);
          break;
        case 9:
          store_.index->Delete(space_.id(), {StoreFixture::Key(block)});
          break;
        case 10:
          Wait(session, block);
          break;
        default:
          if (random() % 4 == 0) {
            store_.sessions.End(session.id);
            session = store_.OpenSession("acme");
          }
          store_.clock.Advance(absl::Milliseconds(700));
          store_.index->RenewLeases(session.id);
      }
    }
    store_.sessions.End(session.id);
  }

  void Run() {
    store_.upkeep->Start();
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([this, i] { Work(i); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    store_.upkeep->Stop();
    EXPECT_EQ(wrong_, 0);
    EXPECT_GT(hits_, 0);
    EXPECT_EQ(waits_, answers_) << "each waiter is answered, once";
    EXPECT_EQ(store_.index->pinned_bytes(), 0u);
    EXPECT_EQ(store_.index->lease_count(), 0u);
    EXPECT_EQ(store_.index->waiter_count(), 0u);
    EXPECT_EQ(store_.host->staging_bytes(), 0u);
    EXPECT_EQ(store_.sessions.quarantine_bytes(), 0u);
    store_.index->Invalidate(space_.id());
    EXPECT_EQ(store_.host->used_bytes(), 0u);
    std::cout << "hits " << hits_ << ", stored " << stored_ << ", waits " << waits_ << "\n";
  }

 private:
  // 512 KiB a block: the tier holds about half of them.
  static proto::SpaceIdentity Identity() {
    proto::SpaceIdentity identity = StoreFixture::Identity();
    identity.tokens_per_block = 512;
    return identity;
  }

  void Put(const Session& session, uint64_t block, bool ends_midway) {
    const auto& source = sources_[block - 1];
    proto::Frame frame = StoreFixture::PutFrame(space_, StoreFixture::Key(block),
                                                StoreFixture::Whole(space_), source);
    auto& body = std::get<proto::Put>(frame.body);
    body.first_position = block * space_.tokens_per_block();
    body.parent = block % 10 == 0 ? proto::BlockKey{} : StoreFixture::Key(block - 1);
    auto put = store_.AdmitPut(frame, session);
    if (!put.ok() || (*put)->is_duplicate) {
      return;
    }
    if (ends_midway) {
      return;  // the client died
    }
    const absl::Status status = store_.Land(*std::move(put), source).status();
    stored_ += status.ok() ? 1 : 0;
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
  }

  void Get(const Session& session, uint64_t block) {
    proto::Get body;
    body.space_id = space_.id();
    body.key = StoreFixture::Key(block);
    body.slice = {0, 2, 0, 4};
    body.form = proto::Form::kSource;
    const auto answer = store_.RunGet(body, session);
    if (answer.ok()) {
      const auto& source = sources_[block - 1];
      ++hits_;
      wrong_ +=
          std::equal(source.begin(), source.end(), answer->payload.begin(), answer->payload.end())
              ? 0
              : 1;
    }
  }

  MatchQuery Query(const Session& session, uint64_t block) {
    std::vector<proto::BlockKey> keys;
    for (uint64_t i = block; i < block + 4; ++i) {
      keys.push_back(StoreFixture::Key(i));
    }
    MatchQuery query = store_.Query(space_, std::move(keys), true);
    query.session_id = session.id;
    return query;
  }

  void Match(const Session& session, uint64_t block, bool releases) {
    const auto result = store_.index->Match(Query(session, block));
    if (result.ok() && result->lease.has_value() && releases) {
      store_.index->Release("acme", {*result->lease});
    }
  }

  void Wait(const Session& session, uint64_t block) {
    ++waits_;
    store_.index->MatchWhenReady(Query(session, block), store_.clock.Now() + absl::Seconds(3),
                                 [this](const absl::StatusOr<MatchAnswer>&) { ++answers_; });
  }

  StoreFixture store_;
  const SpaceEntry& space_;
  std::vector<std::vector<std::byte>> sources_;
  std::atomic<int> hits_{0}, wrong_{0}, stored_{0}, waits_{0}, answers_{0};
};

TEST(StoreStressTest, NothingWrongAndNothingLeft) {
  auto stress = std::make_unique<Stress>();
  stress->Run();
}

// Every bit of a published image may turn: what is read is right or a miss.
TEST(StoreFaultTest, DamageAnywhereIsAMissNeverData) {
  LogCapture log;
  std::mt19937_64 random = SeededRandom();
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace("kivi:4");
  const auto whole = StoreFixture::Whole(space);
  const auto expected = StoreFixture::Image(space, StoreFixture::Key(1), whole, "kivi:4");
  int misses = 0;
  for (int i = 0; i < 400; ++i) {
    store.index->Invalidate(space.id());
    ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(1), whole).ok());
    {
      const auto pins = store.index->Lookup({space.id(), StoreFixture::Key(1)}, 0, whole);
      const uint64_t at = i < 350 ? static_cast<uint64_t>(i) : random() % pins[0].bytes().size();
      store.host->arena().mapping()[pins[0].extent().offset() + at] ^=
          static_cast<std::byte>(1 << (random() % 8));
    }
    for (const auto form : {proto::Form::kImage, proto::Form::kSource}) {
      const auto answer = store.RunGet(space, StoreFixture::Key(1), whole, form);
      ASSERT_TRUE(!answer.ok() && absl::IsNotFound(answer.status())) << "byte " << i;
    }
    ++misses;
  }
  MetricCapture metrics;
  store.gets->Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_corrupt_tiles_total{where=\"host\"}"), misses);
  EXPECT_THAT(log.Lines().size(), testing::AllOf(testing::Ge(100u), testing::Le(400u)))
      << "one line each, up to the log's limit of a kind";
  EXPECT_EQ(store.index->figures().image_count, 0u);
}

}  // namespace
}  // namespace cairn
