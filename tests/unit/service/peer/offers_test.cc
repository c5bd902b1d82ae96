// SPDX-License-Identifier: Apache-2.0
// A daemon that drains, and members that answer its offers well, badly or not at all.
#include "service/peer/offers.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/fake_clock.h"
#include "tests/support/log_capture.h"
#include "tests/support/metric_capture.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

// Another member, as its peer port shows it.
class Peer : public v1::Peer::Service {
 public:
  explicit Peer(std::string name) : name_(std::move(name)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Peer() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  const std::string& name() const { return name_; }
  size_t offered() const { return offered_; }
  bool is_draining = false;

  grpc::Status Hello(grpc::ServerContext*, const v1::HelloRequest* request,
                     v1::HelloReply* reply) override {
    EXPECT_TRUE(request->self().draining());
    *reply->mutable_self() = request->self();
    reply->mutable_self()->set_name(name_);
    reply->mutable_self()->set_incarnation(77);
    reply->mutable_self()->set_draining(is_draining);
    return grpc::Status::OK;
  }
  grpc::Status Offer(grpc::ServerContext* context, const v1::OfferRequest* request,
                     v1::OfferReply* reply) override {
    const size_t count = request->keys().size() / 32;
    offered_ += count;
    return Answer(*context, count, *reply);
  }

 protected:
  virtual grpc::Status Answer(grpc::ServerContext&, size_t count, v1::OfferReply& reply) {
    reply.set_answers(std::string(count, static_cast<char>(OfferAnswer::kTaken)));
    return grpc::Status::OK;
  }

 private:
  const std::string name_;
  int port_ = 0;
  std::atomic<size_t> offered_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// A daemon of an earlier version.
class OldPeer final : public Peer {
  using Peer::Peer;
  grpc::Status Answer(grpc::ServerContext&, size_t, v1::OfferReply&) override {
    return {grpc::StatusCode::UNIMPLEMENTED, "unknown method /cairn.v1.Peer/Offer"};
  }
};

class HungPeer final : public Peer {
  using Peer::Peer;
  grpc::Status Answer(grpc::ServerContext& context, size_t, v1::OfferReply&) override {
    EXPECT_TRUE(WaitFor([&context] { return context.IsCancelled(); }));
    return grpc::Status::CANCELLED;
  }
};

// Answers for one block more than it was offered.
class LyingPeer final : public Peer {
  using Peer::Peer;
  grpc::Status Answer(grpc::ServerContext&, size_t count, v1::OfferReply& reply) override {
    reply.set_answers(std::string(count + 1, static_cast<char>(OfferAnswer::kTaken)));
    return grpc::Status::OK;
  }
};

class OffersTest : public testing::Test {
 protected:
  static constexpr size_t kBlocks = 40;

  void Start(const std::vector<Peer*>& peers, Offers::Options options = {.plan = {.keys_max = 4}}) {
    std::vector<ListedMember> listed = {{"self", "127.0.0.1:1", ""}};
    for (const Peer* peer : peers) listed.push_back({peer->name(), peer->address(), ""});
    members_.Take(listed);
    for (const Peer* peer : peers) members_.Meet({.name = peer->name(), .incarnation = 77});
    members_.Meet({.name = "self", .incarnation = 1, .is_draining = true});
    offers_ = std::make_unique<Offers>(
        Offers::Parts{members_,
                      {},
                      "test",
                      [] { return Blocks(); },
                      [](const PeerIdentity&, std::string_view tenant) { return tenant == "t"; },
                      [this] { ++ends_; }},
        options);
  }
  absl::Duration Run(absl::Duration limit) {
    const absl::Time began = MonotonicNow();
    offers_->Begin(began + limit);
    offers_->Begin(began + limit);
    EXPECT_TRUE(WaitFor([this] { return offers_->is_over(); }));
    EXPECT_EQ(ends_, 1);
    return MonotonicNow() - began;
  }
  double Count(const std::string& outcome) const {
    MetricCapture metrics;
    offers_->Report(metrics);
    return metrics.Value("cairn_offers_total{outcome=\"" + outcome + "\",side=\"given\"}");
  }

  FakeClock clock_;
  const LogCapture log_;
  Members members_{
      {.cluster = "x", .self = {"self", "127.0.0.1:1", ""}, .incarnation = 1}, nullptr, clock_};
  std::atomic<int> ends_ = 0;
  std::unique_ptr<Offers> offers_;

 private:
  static OfferableBlocks Blocks() {
    OfferableBlocks all;
    all.spaces.resize(2);
    for (size_t i = 0; i < 2; ++i) {
      proto::SpaceIdentity& identity = all.spaces[i].identity;
      identity.tenant = i == 0 ? "t" : "secret";
      identity.model = "m";
      identity.weights_revision = "1";
      identity.tokens_per_block = 16;
      proto::GroupGeometry group;
      group.layers = {0};
      group.kv_heads = 1;
      group.k_dim = group.v_dim = 32;
      identity.groups = {group};
    }
    all.slices = {{{.group = 0, .layer_count = 1, .head_count = 1}}};
    for (uint64_t i = 1; i <= kBlocks + 1; ++i) {
      proto::BlockKey key{};
      const uint64_t spread = i * 0x9e3779b97f4a7c15;
      std::memcpy(key.data(), &spread, sizeof(spread));
      all.blocks.push_back(
          {.space = i > kBlocks ? 1U : 0U, .key = key, .last_use = i, .image_bytes = 8});
    }
    return all;
  }
};

TEST_F(OffersTest, EveryBlockThatMayBeSeenIsOfferedToOneOfThem) {
  Peer b("b"), c("c");
  Start({&b, &c});
  Run(absl::Seconds(30));
  EXPECT_EQ(b.offered() + c.offered(), kBlocks);
  EXPECT_GT(b.offered(), 0u);
  EXPECT_GT(c.offered(), 0u);
  EXPECT_EQ(Count("taken"), kBlocks);
  EXPECT_EQ(Count("open"), 1) << "the one of another tenant";
  EXPECT_EQ(log_.Count(absl::StrCat("offered ", kBlocks + 1, " blocks, ", kBlocks, " taken in ")),
            1u);
}

TEST_F(OffersTest, AnOlderMemberIsLeftOut) {
  OldPeer b("b");
  Peer c("c");
  Start({&b, &c});
  Run(absl::Seconds(30));
  EXPECT_EQ(b.offered(), 4u);
  EXPECT_EQ(c.offered(), kBlocks);
  EXPECT_EQ(Count("taken"), kBlocks);
}

TEST_F(OffersTest, AMemberThatDrainsTooIsLeftOut) {
  Peer b("b"), c("c");
  b.is_draining = true;
  Start({&b, &c});
  Run(absl::Seconds(30));
  EXPECT_EQ(b.offered(), 0u);
  EXPECT_EQ(c.offered(), kBlocks);
}

TEST_F(OffersTest, ALiarIsLeftOut) {
  LyingPeer b("b");
  Peer c("c");
  Start({&b, &c});
  Run(absl::Seconds(30));
  EXPECT_EQ(b.offered(), 4u);
  EXPECT_EQ(Count("taken"), kBlocks);
}

TEST_F(OffersTest, AHungMemberCostsOneAnswerAndTheOtherGetsItsBlocks) {
  HungPeer b("b");
  Peer c("c");
  Start({&b, &c}, {.plan = {.keys_max = 4}, .call_time = absl::Seconds(1)});
  EXPECT_LT(Run(absl::Seconds(30)), absl::Seconds(10));
  EXPECT_EQ(b.offered(), 4u);
  EXPECT_EQ(Count("taken"), kBlocks);
}

TEST_F(OffersTest, NothingLastsPastTheDeadline) {
  HungPeer b("b");
  Start({&b}, {.call_time = absl::Hours(1)});
  EXPECT_LT(Run(absl::Milliseconds(500)), absl::Seconds(10));
  EXPECT_EQ(Count("taken"), 0);
}

TEST_F(OffersTest, WithoutTimeItIsOverAtOnce) {
  Peer b("b");
  Start({&b});
  Run(absl::ZeroDuration());
  EXPECT_EQ(b.offered(), 0u);
}

TEST_F(OffersTest, AStopDoesNotWaitForMembers) {
  HungPeer b("b");
  Start({&b}, {.call_time = absl::Hours(1)});
  offers_->Begin(MonotonicNow() + absl::Hours(1));
  ASSERT_TRUE(WaitFor([&b] { return b.offered() > 0; }));
  offers_->Stop();
  EXPECT_TRUE(offers_->is_over());
}

TEST_F(OffersTest, WithoutOtherMembersItIsOverAtOnce) {
  Start({});
  Run(absl::Seconds(30));
  EXPECT_EQ(Count("open"), kBlocks + 1);
}

}  // namespace
}  // namespace cairn
