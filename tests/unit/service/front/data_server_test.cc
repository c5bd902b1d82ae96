// SPDX-License-Identifier: Apache-2.0
// The data server over the in-process transport, with the real paths behind it and a wire that can
// flip bits.
#include "service/front/data_server.h"
#include "service/index/block_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "codecs/checksum/checksum.h"
#include "tests/support/log_capture.h"
#include "tests/support/metric_capture.h"
#include "tests/support/wait.h"
#include "transport/memory/memory.h"

namespace cairn {
namespace {

using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kPathThreads = 2;
constexpr absl::Duration kSlow = absl::Milliseconds(300);

constexpr uint16_t kLayers = 2, kHeads = 2, kTokens = 16;
constexpr uint32_t kDim = 32;
constexpr size_t kPayloadBytes = size_t{kLayers} * kHeads * 2 * kTokens * kDim * 2;

// A lane whose received payloads can arrive with one bit flipped, as a wire without a checksum
// would deliver them: the transport's own CRC is then of what is there.
class FlippingLane final : public transport::Lane {
 public:
  FlippingLane(transport::Lane& lane, std::atomic<int>& flips) : lane_(lane), flips_(flips) {}

  int index() const override { return lane_.index(); }
  absl::Status Submit(absl::AnyInvocable<void(transport::Lane&)> task) override {
    return lane_.Submit([this, task = std::move(task)](transport::Lane&) mutable { task(*this); });
  }
  void Receive(transport::Arrival arrival, std::span<std::byte> target, absl::Time deadline,
               transport::ReceiveDone done) override {
    lane_.Receive(std::move(arrival), target, deadline,
                  [this, target, done = std::move(done)](transport::Received received) mutable {
                    if (received.status.ok() && flips_.exchange(0) > 0) {
                      target[target.size() / 2] ^= std::byte{0x10};
                      received.crc32c = codecs::Crc32c(target);
                    }
                    done(std::move(received));
                  });
  }
  void Reply(const transport::ReplyTo& reply_to, const proto::FrameBytes& frame,
             std::span<const std::byte> payload, absl::Time deadline,
             transport::ReplyDone done) override {
    lane_.Reply(reply_to, frame, payload, deadline, std::move(done));
  }
  void Break(transport::PeerId peer) override { lane_.Break(peer); }

 private:
  transport::Lane& lane_;
  std::atomic<int>& flips_;
};

class FlippingHandler final : public transport::LaneHandler {
 public:
  explicit FlippingHandler(transport::LaneHandler& inner) : inner_(inner) {}
  void FlipNext() { flips_ = 1; }

  void OnArrival(transport::Lane& lane, transport::Arrival arrival) override {
    if (lane_ == nullptr) lane_ = std::make_unique<FlippingLane>(lane, flips_);
    inner_.OnArrival(*lane_, std::move(arrival));
  }
  void OnPeerGone(transport::Lane& lane, transport::PeerId peer) override {
    inner_.OnPeerGone(lane, peer);
  }

 private:
  transport::LaneHandler& inner_;
  std::atomic<int> flips_{0};
  std::unique_ptr<FlippingLane> lane_;  // of the one lane thread
};

class DataServerTest : public ::testing::Test {
 protected:
  DataServerTest()
      : side_objects_({.bytes_max = 1_MiB, .count_max = 1}),
        query_squares_(1_MiB),
        spaces_(Raw(), {.side_objects = side_objects_,
                        .query_squares = query_squares_,
                        .clock = clock_,
                        .has_blocks =
                            [this](uint64_t id) { return index_->figures(id).block_count > 0; }}),
        sessions_({.release_leases = [this](uint64_t id) { index_->EndSession(id); },
                   .break_peer = [this](const PeerRef& peer) { server_->BreakPeer(peer); }},
                  /*peers_max=*/512) {
    auto host =
        HostTier::Make({.capacity_bytes = 16_MiB, .staging_bytes = 16_MiB, .fault_in = false});
    CAIRN_CHECK_OK(host);
    host_ = host->get();
    tiers_ = std::make_unique<Tiers>(*std::move(host));
    index_ = std::make_unique<BlockIndex>(
        BlockIndex::Options{.blocks_max = 1024, .images_max = 4096, .lease_bytes_max = 8_MiB},
        *tiers_, clock_);
    index_->SetSessionCheck([this](uint64_t id) { return sessions_.IsOpen(id); });
    pool_ = std::make_unique<PathPool>(kPathThreads);
    puts_ = std::make_unique<Puts>(spaces_, sessions_, *index_, *tiers_, *pool_, clock_);
    gets_ = std::make_unique<Gets>(spaces_, *index_, *tiers_, *pool_, clock_);
    server_ = std::make_unique<DataServer>(
        DataServer::Parts{*puts_, *gets_, sessions_, clock_},
        DataServer::Options{.transport_label = "memory", .lanes = 1, .window = 4, .slow = kSlow});
    handler_ = std::make_unique<FlippingHandler>(*server_);
    transport_ = transport::StartMemoryServer({.lanes = 1}, *handler_);
    session_ = *sessions_.Open("test", "unit");
    connection_ = Connect(session_.ticket);
    proto::SpaceIdentity identity;
    identity.tenant = "test";
    identity.model = "m";
    identity.weights_revision = "1";
    identity.dtype = codecs::DType::kBf16;
    identity.tokens_per_block = kTokens;
    proto::GroupGeometry group;
    for (uint32_t layer = 0; layer < kLayers; ++layer) group.layers.push_back(layer);
    group.kv_heads = kHeads;
    group.k_dim = group.v_dim = kDim;
    identity.groups.push_back(group);
    const auto opened = spaces_.Open(identity, "raw", "test");
    CAIRN_CHECK_OK(opened);
    space_ = opened->space->id();
  }
  ~DataServerTest() override {
    connection_.reset();
    transport_->Stop();
    gets_->Stop();
    pool_->Stop();
  }

  static codecs::Recipe Raw() {
    codecs::Recipe recipe;
    CAIRN_CHECK(codecs::ParseRecipe("raw", &recipe) == codecs::Error::kOk);
    return recipe;
  }

  std::unique_ptr<transport::Connection> Connect(const proto::Ticket& ticket) {
    proto::Frame hello;
    hello.seq = ++seq_;
    hello.ticket = ticket;
    hello.body = proto::Hello{.window = 32};
    auto connection = transport_->Connect(hello, MonotonicNow() + absl::Seconds(5));
    last_connect_ = connection.status();
    return connection.ok() ? *std::move(connection) : nullptr;
  }

  static proto::BlockKey Key(uint8_t name) {
    proto::BlockKey key{};
    key[0] = std::byte{name};
    key[1] = std::byte{1};
    return key;
  }
  static std::vector<std::byte> Payload(uint8_t name) {
    std::vector<std::byte> bytes(kPayloadBytes);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + name);
    return bytes;
  }
  proto::Frame PutFrame(uint8_t name, std::span<const std::byte> payload) {
    proto::Frame frame;
    frame.seq = ++seq_;
    frame.ticket = session_.ticket;
    frame.payload_bytes = payload.size();
    frame.payload_crc32c = codecs::Crc32c(payload);
    frame.body = proto::Put{
        .space_id = space_, .key = Key(name), .slice = {0, kLayers, 0, kHeads}, .tokens = kTokens};
    return frame;
  }
  proto::Frame GetFrame(uint8_t name) {
    proto::Frame frame;
    frame.seq = ++seq_;
    frame.ticket = session_.ticket;
    frame.body = proto::Get{.space_id = space_,
                            .key = Key(name),
                            .slice = {0, kLayers, 0, kHeads},
                            .form = proto::Form::kSource,
                            .target_bytes = kPayloadBytes};
    return frame;
  }

  absl::Status Ask(const proto::Frame& request, std::span<const std::byte> payload = {},
                   std::span<std::byte> target = {}) {
    transport::Call call;
    call.request = proto::Serialize(request);
    call.payload = payload;
    call.target = target;
    call.deadline = MonotonicNow() + absl::Seconds(5);
    CAIRN_RETURN_IF_ERROR(connection_->Start(&call));
    while (!call.over()) connection_->Poll(call.deadline + absl::Seconds(1));
    CAIRN_RETURN_IF_ERROR(call.status);
    const auto reply = proto::ParseFrame(call.reply.bytes());
    CAIRN_RETURN_IF_ERROR(reply.status());
    EXPECT_EQ(reply->seq, request.seq);
    return proto::StatusOf(*reply);
  }
  absl::Status Put(uint8_t name) {
    const auto payload = Payload(name);
    return Ask(PutFrame(name, payload), payload);
  }
  absl::Status Get(uint8_t name) {
    std::vector<std::byte> target(kPayloadBytes);
    const absl::Status status = Ask(GetFrame(name), {}, target);
    EXPECT_TRUE(!status.ok() || target == Payload(name)) << "wrong bytes";
    return status;
  }
  // The last reply is with the client a moment before its lane has counted it.
  void AwaitOver() const {
    EXPECT_TRUE(WaitFor([this] { return server_->in_flight() == 0; }, absl::Seconds(5)));
  }
  // When all requests are over.
  double Metric(const std::string& series) const {
    AwaitOver();
    MetricCapture capture;
    server_->Report(capture);
    puts_->Report(capture);
    gets_->Report(capture);
    double sum = 0;
    for (const auto& [name, value] : capture.values()) {
      if (name.starts_with(series)) sum += value;
    }
    return sum;
  }

  const Clock& clock_ = RealClock::Get();
  std::unique_ptr<Tiers> tiers_;
  HostTier* host_ = nullptr;
  SideObjects side_objects_;
  QuerySquares query_squares_;
  Spaces spaces_;
  Sessions sessions_;
  std::unique_ptr<BlockIndex> index_;
  std::unique_ptr<Puts> puts_;
  std::unique_ptr<Gets> gets_;
  std::unique_ptr<DataServer> server_;
  std::unique_ptr<FlippingHandler> handler_;
  std::unique_ptr<PathPool> pool_;
  std::unique_ptr<transport::MemoryServer> transport_;
  Sessions::Opened session_;
  std::unique_ptr<transport::Connection> connection_;
  absl::Status last_connect_;
  uint64_t space_ = 0, seq_ = 0;
};

TEST_F(DataServerTest, SaysWhereTheTimeOfASlowRequestWent) {
  LogCapture log;
  ASSERT_TRUE(Put(1).ok());
  std::vector<absl::Notification> let_go(kPathThreads);
  absl::BlockingCounter held(kPathThreads);  // by then no thread looks at let_go
  for (absl::Notification& waits : let_go) {
    pool_->Submit(
        [&waits, &held](const absl::Status& refusal) {
          EXPECT_TRUE(refusal.ok()) << refusal;
          waits.WaitForNotification();
          held.DecrementCount();
        },
        PathPool::Kind::kGet);
  }
  std::thread late([&] {
    absl::SleepFor(kSlow + absl::Milliseconds(50));
    for (absl::Notification& waits : let_go) waits.Notify();
  });
  proto::Frame get = GetFrame(1);
  get.trace = 0xA3CE929D0E0E4736;
  std::vector<std::byte> target(kPayloadBytes);
  EXPECT_TRUE(Ask(get, {}, target).ok());
  late.join();
  held.Wait();
  AwaitOver();
  EXPECT_EQ(log.Count(absl::StrCat("data: get was slow request=", session_.id, "/", seq_,
                                   " trace=a3ce929d0e0e4736 tenant=test space=", space_,
                                   " key=0101000000000000 code=OK took=")),
            1u);
  EXPECT_THAT(log.Lines(), Contains(ContainsRegex(" receive=0 queue=([3-9][0-9]{2}.*ms|[1-9].*s) "
                                                  "path=.* promote=0 send=")))
      << "the pool was busy";
}

TEST_F(DataServerTest, PutThenGet) {
  EXPECT_EQ(Get(1).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Put(1).ok());
  EXPECT_TRUE(Get(1).ok());
  EXPECT_TRUE(Put(1).ok()) << "a duplicate is an answer";
  EXPECT_EQ(Metric("cairn_data_requests_total{transport=\"memory\",op=\"get\",code=\"not_found\""),
            1);
  EXPECT_EQ(Metric("cairn_data_requests_total{transport=\"memory\",op=\"put\",code=\"ok\""), 2);
  EXPECT_EQ(Metric("cairn_puts_total{outcome=\"duplicate\""), 1);
}

TEST_F(DataServerTest, ABitFlippedOnTheWireIsNeverPublished) {
  const LogCapture log;
  handler_->FlipNext();
  EXPECT_EQ(Put(1).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Get(1).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Metric("cairn_puts_total{outcome=\"corrupt\""), 1);
  EXPECT_EQ(log.Count("does not match"), 1u);
  EXPECT_EQ(host_->staging_bytes(), 0u);
  EXPECT_EQ(host_->used_bytes(), 0u);
  EXPECT_TRUE(Put(1).ok()) << "the next try is as good as new";
  EXPECT_TRUE(Get(1).ok());
}

TEST_F(DataServerTest, ABitFlippedInMemoryIsAMiss) {
  const LogCapture log;
  ASSERT_TRUE(Put(1).ok());
  // Damage the payload wherever it stands in the arena: in the image, and in what staging left
  // behind.
  const auto payload = Payload(1);
  const auto mapping = host_->arena().mapping();
  int found = 0;
  for (auto at = mapping.begin();; ++found) {
    at = std::search(at, mapping.end(), payload.begin(), payload.begin() + 256);
    if (at == mapping.end()) break;
    *at ^= std::byte{1};
  }
  ASSERT_GT(found, 0);
  EXPECT_EQ(Get(1).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Get(1).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Metric("cairn_corrupt_tiles_total"), 1);
  EXPECT_EQ(log.Count("checksum"), 1u) << "logged once";
  EXPECT_EQ(host_->used_bytes(), 0u) << "the image is dropped";
}

TEST_F(DataServerTest, AWrongTicketIsRefusedAndTheConnectionDropped) {
  proto::Ticket ticket = session_.ticket;
  ticket[15] ^= std::byte{1};
  EXPECT_EQ(Connect(ticket), nullptr);
  EXPECT_EQ(last_connect_.code(), absl::StatusCode::kPermissionDenied);
  proto::Frame frame = GetFrame(1);
  frame.ticket = ticket;
  EXPECT_EQ(Ask(frame).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Ask(GetFrame(1)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Metric("cairn_data_bad_tickets_total"), 2);
  EXPECT_EQ(Metric("cairn_data_peers_broken_total"), 2);
}

TEST_F(DataServerTest, ASecondHelloIsAStrike) {
  for (int i = 0; i < DataServer::kStrikesMax; ++i) {
    proto::Frame hello;
    hello.seq = ++seq_;
    hello.ticket = session_.ticket;
    hello.body = proto::Hello{.window = 32};
    EXPECT_EQ(Ask(hello).code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(Ask(GetFrame(1)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(DataServerTest, TheEndOfTheSessionDropsItsConnections) {
  ASSERT_TRUE(Put(1).ok());
  sessions_.End(session_.id);
  EXPECT_EQ(Get(1).code(), absl::StatusCode::kUnavailable);
}

TEST_F(DataServerTest, DrainingRefusesPutsAndServesGets) {
  ASSERT_TRUE(Put(1).ok());
  puts_->RefuseNew();
  EXPECT_EQ(Put(2).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Get(1).ok());
}

TEST_F(DataServerTest, EveryRequestIsOverInTheEnd) {
  for (uint8_t i = 0; i < 50; ++i) {
    EXPECT_TRUE(Put(i).ok());
    EXPECT_TRUE(Get(i).ok());
  }
  EXPECT_EQ(Metric("cairn_data_requests_total"), 101) << "with the hello";
}

// A lane that takes no task while it is full.
class FullLane final : public transport::Lane {
 public:
  int index() const override { return 0; }
  absl::Status Submit(absl::AnyInvocable<void(transport::Lane&)> task) override {
    if (is_full) return absl::ResourceExhaustedError("full");
    tasks.push_back(std::move(task));
    return absl::OkStatus();
  }
  void Receive(transport::Arrival, std::span<std::byte>, absl::Time,
               transport::ReceiveDone) override {}
  void Reply(const transport::ReplyTo&, const proto::FrameBytes&, std::span<const std::byte>,
             absl::Time, transport::ReplyDone done) override {
    done(absl::OkStatus());
  }
  void Break(transport::PeerId) override {}

  bool is_full = true;
  std::vector<absl::AnyInvocable<void(transport::Lane&)>> tasks;
};

TEST(Replies, WhatAFullLaneDoesNotTakeLeavesWithTheNextReply) {
  FullLane lane;
  DataMetrics metrics("local");
  int over = 0;
  LoanBudget loans(0);
  Replies replies(1, RealClock::Get(), metrics, loans, kSlow,
                  [&](transport::Lane&, const Request&) { ++over; });
  replies.SetLane(lane);
  const auto post = [&] {
    const Request request;
    metrics.in_flight.Add(1);
    // The lane's thread is this one.
    std::thread([&] {
      replies.PostReply({.request = request, .frame = request.Error(absl::NotFoundError("no"))});
    }).join();
  };
  post();
  EXPECT_EQ(over, 0);
  lane.is_full = false;
  post();
  ASSERT_EQ(lane.tasks.size(), 1u);
  lane.tasks.front()(lane);
  EXPECT_EQ(over, 2);
  EXPECT_EQ(metrics.in_flight.Value(), 0);
}

TEST(Replies, AReplyOfTheLanesOwnThreadNeedsNoTask) {
  FullLane lane;
  DataMetrics metrics("local");
  int over = 0;
  LoanBudget loans(0);
  Replies replies(1, RealClock::Get(), metrics, loans, kSlow,
                  [&](transport::Lane&, const Request&) { ++over; });
  replies.SetLane(lane);
  const Request request;
  metrics.in_flight.Add(1);
  replies.PostReply({.request = request, .frame = request.Error(absl::NotFoundError("no"))});
  EXPECT_EQ(over, 1);
  EXPECT_EQ(metrics.in_flight.Value(), 0);
}

}  // namespace
}  // namespace cairn
