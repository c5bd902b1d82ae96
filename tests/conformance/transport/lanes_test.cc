// SPDX-License-Identifier: Apache-2.0
// Lanes: connecting, limits, waking and sleeping.
#include <sys/resource.h>

#include <atomic>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/conformance/transport/suite.h"
#include "tests/support/random.h"

namespace cairn::transport {
namespace {

using LanesTest = TransportTest;

TEST_F(LanesTest, ConnectAnswersWhatTheDaemonDecided) {
  daemon_.intercept = [&](Lane& lane, Arrival& arrival, const proto::Frame& frame) {
    if (frame.kind() == proto::FrameKind::kHello) {
      daemon_.AnswerError(lane, arrival.reply_to(), absl::PermissionDeniedError("no such ticket"));
      return true;
    }
    return false;
  };
  StartServer();
  EXPECT_EQ(TryConnect().status(), absl::PermissionDeniedError("no such ticket"));
}

TEST_F(LanesTest, ConnectEndsAtItsDeadline) {
  daemon_.intercept = [&](Lane&, Arrival&, const proto::Frame&) { return true; };
  StartServer();
  const absl::Time begun = MonotonicNow();
  EXPECT_EQ(TryConnect(16, absl::Milliseconds(300)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_LE(MonotonicNow() - begun, absl::Seconds(3)) << "the client's deadline, not the next";
}

TEST_F(LanesTest, PeersAreLimited) {
  StartServer({.peers_max = 3});
  std::vector<std::unique_ptr<Connection>> connections;
  for (int i = 0; i < 3; ++i) {
    connections.push_back(Connect());
  }
  EXPECT_FALSE(TryConnect(16, absl::Seconds(1)).ok());
  connections.pop_back();
  EXPECT_TRUE(WaitFor([&] { return TryConnect(16, absl::Seconds(1)).ok(); }));
}

TEST_F(LanesTest, ArrivalsHeldAreLimited) {
  std::vector<Arrival> held;  // touched on the one lane only
  std::atomic<int> held_count{0};
  daemon_.intercept = [&](Lane&, Arrival& arrival, const proto::Frame& frame) {
    if (frame.kind() != proto::FrameKind::kPut) {
      return false;
    }
    held.push_back(std::move(arrival));
    ++held_count;
    return true;
  };
  StartServer({.arrivals_held_max = 3});
  const auto connection = Connect();
  const std::vector<std::byte> bytes = Pattern(100'000, 1);
  std::vector<Call> calls(5);
  for (uint64_t i = 0; i < 5; ++i) {
    calls[i].payload = bytes;
    calls[i].request = proto::Serialize(PutFrame(i, KeyOf(i), bytes));
    calls[i].deadline = MonotonicNow() + absl::Seconds(20);
    ASSERT_EQ(connection->Start(&calls[i]), absl::OkStatus());
  }
  // The last two are answered by the transport itself.
  for (uint64_t i = 3; i < 5; ++i) {
    Await(*connection, calls[i]);
    ASSERT_EQ(calls[i].status, absl::OkStatus());
    const auto reply = proto::ParseFrame(calls[i].reply.bytes());
    ASSERT_TRUE(reply.ok());
    EXPECT_EQ(proto::StatusOf(*reply).code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(Metric("cairn_transport_arrivals"), 3);
  // The transport may answer the last before it hands the first to the daemon.
  ASSERT_TRUE(WaitFor([&] { return held_count == 3; }));
  ASSERT_EQ(server_->lane(0).Submit([&](Lane& lane) {
    for (Arrival& arrival : held) {
      const auto frame = proto::ParseFrame(arrival.frame().bytes());
      daemon_.TakePut(lane, std::move(arrival), *frame);
    }
    held.clear();
  }),
            absl::OkStatus());
  for (uint64_t i = 0; i < 3; ++i) {
    Await(*connection, calls[i]);
    EXPECT_EQ(calls[i].status, absl::OkStatus());
  }
  EXPECT_EQ(daemon_.stored.load(), 3);
}

TEST_F(LanesTest, APayloadOverTheLimitIsRefused) {
  StartServer({.payload_bytes_max = 1 << 20});
  const auto connection = Connect();
  const std::vector<std::byte> bytes = Pattern((1 << 20) + 1, 1);
  Call put;
  put.payload = bytes;
  EXPECT_EQ(Exchange(*connection, put, PutFrame(1, KeyOf(1), bytes)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(daemon_.transfers_begun.load(), 1);  // the hello's reply
  Call fits;
  fits.payload = std::span(bytes).first(1 << 20);
  EXPECT_EQ(Exchange(*connection, fits, PutFrame(2, KeyOf(1), fits.payload)), absl::OkStatus());
}

TEST_F(LanesTest, EveryTaskRunsSoonWhateverTheLaneIsDoing) {
  StartServer();
  constexpr int kTasks = 5000;
  std::atomic<int> run{0};
  std::atomic<int> late{0};  // of tasks in a row, the first
  std::atomic<bool> was_late{false};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random = SeededRandom(t);
      for (int i = 0; i < kTasks; ++i) {
        const absl::Time submitted = MonotonicNow();
        const absl::Status taken = server_->lane(0).Submit([&, submitted](Lane&) {
          const bool is_late = MonotonicNow() - submitted > absl::Milliseconds(50);
          late.fetch_add(!was_late.exchange(is_late) && is_late ? 1 : 0);
          run.fetch_add(1);
        });
        ASSERT_EQ(taken, absl::OkStatus());
        // Around the lane's 50 µs of polling, where a wake-up would be lost.
        absl::SleepFor(absl::Microseconds(static_cast<int>(random() % 120)));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_TRUE(WaitFor([&] { return run.load() == 2 * kTasks; }));
  // The machine may take the lane's core away for longer than that now and then, and hundreds of
  // tasks are late together; lost wake-ups make hundreds late one by one.
  EXPECT_LE(late.load(), 2 * kTasks / 500);
}

TEST_F(LanesTest, AFullQueueRefuses) {
  StartServer();
  std::atomic<bool> may_go{false};
  ASSERT_EQ(server_->lane(0).Submit([&](Lane&) {
    while (!may_go.load()) {  // ends: set below
      absl::SleepFor(absl::Milliseconds(1));
    }
  }),
            absl::OkStatus());
  int taken = 0;
  absl::Status status;
  while (status.ok() && taken < 100'000) {
    status = server_->lane(0).Submit([](Lane&) {});
    ++taken;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  may_go.store(true);
  server_->Stop();  // before what the task looks at is gone
}

TEST_F(LanesTest, IdleLanesSleep) {
  StartServer({.lanes = 2});
  std::vector<std::unique_ptr<Connection>> connections;
  for (int i = 0; i < 4; ++i) {
    connections.push_back(Connect());
  }
  absl::SleepFor(absl::Milliseconds(100));
  const auto cpu = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
  };
  const absl::Duration before = cpu();
  absl::SleepFor(absl::Seconds(3));
  EXPECT_LE(cpu() - before,
            absl::Milliseconds(30));  // 1 % of a core, this process's other threads included
}

TEST_F(LanesTest, ALaneKnowsItsPlace) {
  StartServer({.lanes = 3});
  ASSERT_EQ(server_->lane_count(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(server_->lane(i).index(), i);
  }
  EXPECT_FALSE(server_->address().empty());
}

}  // namespace
}  // namespace cairn::transport
