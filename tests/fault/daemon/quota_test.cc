// SPDX-License-Identifier: Apache-2.0
// Every quota of the daemon, reached: ResourceExhausted, the message names the limit, and what was
// there before goes on.
#include <sys/socket.h>

#include <condition_variable>
#include <list>
#include <mutex>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "tests/fault/daemon/budget_fixture.h"

namespace cairn {
namespace {

class QuotaTest : public BudgetTest {
 protected:
  // What was there before goes on.
  void TearDown() override {
    if (daemon_ != nullptr) {
      const Opened space = OpenSpace(ToyShape());
      EXPECT_TRUE(Put(space, 1).ok());
      EXPECT_TRUE(Get(space, 1).ok());
    }
    BudgetTest::TearDown();
  }

  // Starts `count` puts of new blocks on each connection without making progress, so that none of
  // their payloads can move; then lets them end.
  std::vector<absl::Status> PutTogether(
      const Opened& space, std::span<const std::unique_ptr<transport::Connection>> connections,
      size_t count) {
    std::list<transport::Call> calls;
    for (const auto& connection : connections) {
      for (size_t i = 0; i < count; ++i) {
        transport::Call& call = calls.emplace_back();
        proto::Frame frame = PutFrame(space, 1000 + calls.size());
        frame.deadline_ms = 20'000;
        call.request = proto::Serialize(frame);
        call.payload = space.content;
        call.deadline = MonotonicNow() + absl::Seconds(20);
        EXPECT_TRUE(connection->Start(&call).ok());
      }
    }
    absl::SleepFor(absl::Milliseconds(100));
    const auto is_over = [](const transport::Call& call) { return call.over(); };
    while (!std::all_of(calls.begin(), calls.end(), is_over)) {  // ends: at the calls' deadline
      for (const auto& connection : connections) {
        connection->Poll(MonotonicNow() + absl::Milliseconds(1));
      }
    }
    std::vector<absl::Status> statuses;
    for (const transport::Call& call : calls) {
      statuses.push_back(!call.status.ok()
                             ? call.status
                             : proto::StatusOf(*proto::ParseFrame(call.reply.bytes())));
    }
    return statuses;
  }
};

TEST_F(QuotaTest, PayloadsInFlight) {
  if (std::size(kWires) == 1) GTEST_SKIP() << "built without UCX, which moves nothing by itself";
  Start(256, WireFlags(Wire::kUcx));
  const Opened space = OpenSpace(ShapeOfMiB(4));
  std::vector<std::unique_ptr<transport::Connection>> connections;
  connections.push_back(*client_->DialUcx());
  size_t stored = 0, refused = 0;
  for (const absl::Status& status : PutTogether(space, connections, 32)) {
    if (status.ok()) {
      ++stored;
    } else {
      ++refused;
      ExpectExhausted(status, "staging: payloads in flight use ");
      ExpectExhausted(status, " of 120795900 bytes");  // 60 % of 192 MiB
    }
  }
  EXPECT_GE(stored, 20u);
  EXPECT_GE(refused, 1u);
  EXPECT_EQ(daemon_->Metric("cairn_puts_total{outcome=\"refused\""), refused);
}

TEST_F(QuotaTest, PutsOfASessionInFlight) {
  if (std::size(kWires) == 1) GTEST_SKIP() << "built without UCX, which moves nothing by itself";
  Start(16, WireFlags(Wire::kUcx));
  const Opened space = OpenSpace(ToyShape());
  std::vector<std::unique_ptr<transport::Connection>> connections;
  for (int i = 0; i < 3; ++i) connections.push_back(*client_->DialUcx());
  size_t stored = 0, refused = 0;
  for (const absl::Status& status : PutTogether(space, connections, 30)) {
    if (status.ok()) {
      ++stored;
    } else {
      ++refused;
      ExpectExhausted(status, "puts of the session in flight: at most 64");
    }
  }
  EXPECT_GE(stored, 64u);
  EXPECT_GE(refused, 1u);
}

// What a window admits may wait: its deadline bounds that.
TEST_F(QuotaTest, GetsThatWaitForThePathPoolAreNoneTooMany) {
  Start(64, {"--path-threads=1"});
  Opened space{ShapeOfMiB(4), 0, {}};
  space.id = *client_->OpenSpace(ToySpec("test", space.shape), "kivi:8");
  space.content = ToySource(0, space.shape.whole(), space.shape);
  ASSERT_TRUE(Put(space, 1).ok());
  std::vector<std::unique_ptr<transport::Connection>> connections;
  std::list<transport::Call> calls;
  for (int i = 0; i < 12; ++i) {
    connections.push_back(*client_->Dial(64 << 10));
    for (int j = 0; j < 32; ++j) {
      transport::Call& call = calls.emplace_back();
      // To verify the block takes longer than to ask for it; then there is no target to hold it.
      call.request = proto::Serialize(
          client_->GetFrame(space.id, ToyKey(1), space.shape.whole(), space.content.size()));
      call.deadline = MonotonicNow() + absl::Seconds(20);
    }
  }
  auto call = calls.begin();
  for (const auto& connection : connections) {
    for (int j = 0; j < 32; ++j) ASSERT_TRUE(connection->Start(&*call++).ok());
  }
  const auto is_over = [](const transport::Call& one) { return one.over(); };
  while (!std::all_of(calls.begin(), calls.end(), is_over)) {  // ends: at the calls' deadline
    for (const auto& connection : connections) {
      connection->Poll(MonotonicNow() + absl::Milliseconds(1));
    }
  }
  for (const transport::Call& one : calls) {
    ASSERT_TRUE(one.status.ok()) << one.status;
    const absl::Status status = proto::StatusOf(*proto::ParseFrame(one.reply.bytes()));
    EXPECT_FALSE(absl::IsResourceExhausted(status)) << status;
  }
  EXPECT_EQ(daemon_->Metric("cairn_path_refused_total"), 0);
}

TEST_F(QuotaTest, ImagesOfABlock) {
  Start(16);
  const ToyShape shape = {.model = "tall", .layers = 66, .heads = 1, .dim = 8, .tokens = 16};
  const Opened space = OpenSpace(shape);
  const auto put = [&](uint16_t layer) {
    const proto::SliceRange slice{layer, 1, 0, 1};
    const auto content = ToySource(0, slice, shape);
    return AskOk(*connection_, client_->PutFrame(space.id, ToyKey(5), slice, content, shape),
                 content)
        .status();
  };
  for (uint16_t layer = 0; layer < 64; ++layer) ASSERT_TRUE(put(layer).ok()) << layer;
  ExpectExhausted(put(64), "the block has its 64 images");
}

TEST_F(QuotaTest, SpacesOfATenant) {
  Start(16);
  const Opened kept = OpenSpace(ToyShape());
  absl::Status refused;
  int opened = 1;
  for (; refused.ok() && opened <= 600; ++opened) {
    refused = client_->OpenSpace(ToySpec("test", {.model = absl::StrCat("m", opened)})).status();
  }
  ExpectExhausted(refused,
                  "spaces: the tenant holds 512 and asks for 1 more: over its share of 1024");
  EXPECT_EQ(daemon_->Metric("cairn_spaces"), 512);
  EXPECT_TRUE(Put(kept, 1).ok());
}

TEST_F(QuotaTest, LeasesOfASession) {
  Start(16);
  const Opened space = OpenSpace(ToyShape());
  ASSERT_TRUE(Put(space, 7).ok());
  const std::vector<proto::BlockKey> keys = {ToyKey(7)};
  auto request = client_->MatchOf(space.id, keys);
  request.set_lease(true);
  for (int i = 0; i < 1024; ++i) ASSERT_TRUE(client_->Match(request).ok()) << i;
  ExpectExhausted(client_->Match(request).status(), "leases of the session: at most 1024");
  request.set_lease(false);
  EXPECT_TRUE(client_->Match(request).ok());
  client_ = *RawClient::Open(daemon_->endpoint("control"));  // the old session ends
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_leases", 0, absl::Seconds(5)));
  connection_ = *client_->Dial();
}

TEST_F(QuotaTest, CallsThatWait) {
  Start(16);
  const Opened space = OpenSpace(ToyShape());
  const std::vector<proto::BlockKey> keys = {ToyKey(9)};
  auto request = client_->MatchOf(space.id, keys);
  request.set_wait_ms(20'000);
  struct Waiting {
    grpc::ClientContext context;
    v1::MatchReply reply;
    grpc::Status status;
  };
  std::mutex mutex;
  std::condition_variable changed;
  size_t over = 0;
  std::list<Waiting> calls;
  for (int i = 0; i < 64; ++i) {
    Waiting& call = calls.emplace_back();
    SetTimeout(call.context, absl::Seconds(30));
    client_->store().async()->Match(&call.context, &request, &call.reply,
                                    [&, place = &call](const grpc::Status& status) {
                                      const std::lock_guard lock(mutex);
                                      place->status = status;
                                      ++over;
                                      changed.notify_one();
                                    });
  }
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_waiters", 64, absl::Seconds(10)));
  ExpectExhausted(client_->Match(request).status(), "waiting calls of the session: at most 64");
  ASSERT_TRUE(Put(space, 9).ok());  // what they all wait for
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return over == 64; }));
  for (const Waiting& call : calls) EXPECT_EQ(call.reply.block_count(), 1u);
}

TEST_F(QuotaTest, ConnectionsOfASession) {
  Start(16);
  std::vector<std::unique_ptr<transport::Connection>> connections;
  absl::Status refused;
  while (refused.ok() && connections.size() < 100) {
    auto connection = client_->Dial(64 << 10);
    refused = connection.status();
    if (connection.ok()) connections.push_back(*std::move(connection));
  }
  ExpectExhausted(refused, "data connections of the session: at most 32");
  EXPECT_EQ(connections.size(), 31u);  // and the fixture's own
}

TEST_F(QuotaTest, MemoryOfClients) {
  Start(16, {"--region-bytes=32MiB", "--regions-bytes=128MiB"});
  const auto second = client_->Dial(24 * kMiB);
  EXPECT_TRUE(second.ok()) << second.status();
  ExpectExhausted(client_->Dial(32 * kMiB).status(),
                  "region_bytes: the tenant holds 58720256 and asks for 33554432 more: over its "
                  "share of 134217728");
  EXPECT_EQ(client_->Dial(33 * kMiB).status().code(), absl::StatusCode::kInvalidArgument)
      << "that is no quota but a limit";
  const auto third = client_->Dial(8 * kMiB);
  EXPECT_TRUE(third.ok()) << third.status();
}

TEST_F(QuotaTest, Connections) {
  Start(16, {"--connections=3"});
  std::vector<std::unique_ptr<transport::Connection>> connections;
  absl::Status refused;
  while (refused.ok() && connections.size() < 10) {
    auto connection = client_->Dial(64 << 10);
    refused = connection.status();
    if (connection.ok()) connections.push_back(*std::move(connection));
  }
  EXPECT_EQ(connections.size(), 1u) << "with the fixture's own, of 3 a tenant alone has 2";
  EXPECT_FALSE(refused.ok()) << refused;
}

}  // namespace
}  // namespace cairn
