// SPDX-License-Identifier: Apache-2.0
// Which member of a cluster has how much of a prefix, as any of them answers it.

#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random_bytes.h"
#include "base/status.h"
#include "cairn/v1/store.grpc.pb.h"
#include "proto/convert.h"
#include "tests/e2e/client/cluster_fixture.h"
#include "tests/e2e/client/member_wire.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;

struct Asker : SequenceClient {
  WhereResult Where(size_t blocks, absl::Duration timeout = absl::Seconds(10)) const {
    const auto result = space->Where(Keys(blocks), timeout);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : WhereResult();
  }
};

// "a:6", or the member's name and its failure.
std::vector<std::string> Told(const WhereResult& result) {
  std::vector<std::string> told;
  for (const MemberBlocks& member : result.members) {
    told.push_back(member.failure.empty() ? absl::StrCat(member.member, ":", member.block_count)
                                          : absl::StrCat(member.member, " ", member.failure));
  }
  return told;
}

class WhereTest : public ClusterTest {
 protected:
  void StartAll(size_t count) {
    for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
      if (daemons_.size() < count) Start(name, wire_.Flags(name));
    }
    for (const auto& daemon : daemons_) {
      ASSERT_TRUE(Await(*daemon, "joined", static_cast<int>(count))) << MembersOf(*daemon);
    }
  }
  Asker Open(size_t daemon, const std::string& tenant = "default") const {
    ConnectOptions options;
    options.control = daemons_[daemon]->endpoint("control");
    options.tenant = tenant;
    return {SequenceClient::Open(options)};
  }
  std::string Run(const DaemonProcess& daemon, const std::string& more) const {
    const Ran ran =
        RunCommand(absl::StrCat(CAIRNCTL_PATH, " where ", more, " --control ",
                                daemon.endpoint("control"), " --admin ", daemon.endpoint("admin")));
    EXPECT_EQ(ran.code, 0) << ran.output;
    return ran.output;
  }

  const MemberWire wire_{PeerWire::kTls, folder_, {"a", "b", "c", "d", "e", "f"}};
};

TEST_F(WhereTest, EachMemberSaysHowMuchOfThePrefixItHas) {
  ASSERT_NO_FATAL_FAILURE(StartAll(3));
  const Asker a = Open(0), b = Open(1), c = Open(2);
  a.Put(0, 4);
  b.Put(0, 2);
  b.Put(4, 6);  // what follows a's part is no prefix
  const WhereResult result = c.Where(8);
  EXPECT_THAT(Told(result), ElementsAre("c:0", "a:4", "b:2")) << daemons_[2]->ReadLog();
  EXPECT_EQ(result.unasked_count, 0u);
  EXPECT_TRUE(result.members[0].is_self);
  EXPECT_FALSE(result.members[1].is_self);
  EXPECT_THAT(result.members[1].tiers, ElementsAre(AllOf(Field(&TierBlocks::tier, Tier::kHost),
                                                         Field(&TierBlocks::block_count, 4u))));
  EXPECT_THAT(Told(a.Where(3)), ElementsAre("a:3", "b:2", "c:0"));
  EXPECT_THAT(Told(a.Where(0)), ElementsAre("a:0"));  // nothing to ask the others

  // Nothing was fetched, leased or counted.
  for (const auto& daemon : daemons_) {
    EXPECT_EQ(daemon->Metric("cairn_leases"), 0);
    EXPECT_EQ(daemon->Metric("cairn_match_asked_blocks_total"), 0);
    EXPECT_EQ(daemon->Metric("cairn_peer_reads_total{outcome=\"stored\""), 0);
    EXPECT_EQ(daemon->Metric("cairn_peer_matches_total{outcome=\"found\""), 0);
  }
  EXPECT_THAT(Told(c.Where(8)), ElementsAre("c:0", "a:4", "b:2"));

  std::ofstream tokens(folder_.File("tokens"));
  for (const uint32_t token : ToyTokens(8)) tokens << token << " ";
  tokens.close();
  const std::string named = absl::StrCat("--space default/m --tokens ", folder_.File("tokens"));
  const std::string table = Run(*daemons_[0], named);
  EXPECT_THAT(table, HasSubstr("MEMBER  BLOCKS  TOKENS  TIERS"));
  EXPECT_THAT(table, HasSubstr("host:4"));
  EXPECT_THAT(table, HasSubstr("of 8 blocks of the prefix"));
  EXPECT_THAT(Run(*daemons_[0], named + " --json"), HasSubstr("\"member\": \"b\""));
}

TEST_F(WhereTest, AMemberThatIsDeadOrHangsIsNamedWithTheReason) {
  ASSERT_NO_FATAL_FAILURE(StartAll(3));
  const Asker a = Open(0), b = Open(1), c = Open(2);
  a.Put(0, 3);
  b.Put(0, 2);
  EXPECT_THAT(Told(c.Where(4)), ElementsAre("c:0", "a:3", "b:2"));
  daemons_[0]->process().Signal(SIGSTOP);
  const absl::Time began = MonotonicNow();
  EXPECT_THAT(Told(c.Where(4, absl::Seconds(1))),
              ElementsAre("c:0", "b:2", "a it did not answer in time"));
  EXPECT_LT(MonotonicNow() - began, absl::Seconds(3));
  daemons_[0]->process().Signal(SIGKILL);
  ASSERT_TRUE(daemons_[0]->process().Wait(kPatience).ok());
  // Its own session with the dead process ends at once.
  EXPECT_TRUE(WaitFor([&] {
    return Told(c.Where(4)) == std::vector<std::string>{"c:0", "b:2", "a it cannot be reached"};
  })) << testing::PrintToString(Told(c.Where(4)));
  Forget("a");  // the list has it no longer, and nor has the answer
  EXPECT_TRUE(WaitFor([&] { return Told(c.Where(4)) == std::vector<std::string>{"c:0", "b:2"}; }));
}

TEST_F(WhereTest, ATenantLearnsOfItsOwnBlocksOnly) {
  std::ofstream(folder_.File("policy.yaml"))
      << "version: 1\nidentities:\n  - {uid: " << ::getuid()
      << ", tenants: [\"*\"]}\n  - {uri: \"spiffe://test.example/a\", peer: true, tenants: "
         "[\"*\"]}\n  - {uri: \"spiffe://test.example/b\", peer: true, tenants: [other]}\n";
  ASSERT_NO_FATAL_FAILURE(StartAll(2));
  const Asker a = Open(0), b = Open(1), other = Open(0, "other");
  a.Put(0, 2);
  b.Put(0, 1);
  EXPECT_THAT(Told(a.Where(2)), ElementsAre("a:2", "b:1"));
  const auto asked = other.space->Where(a.Keys(2), kPatience);
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_THAT(Told(*asked), ElementsAre("a:0", "b:0")) << "keys of another tenant";
  EXPECT_THAT(Told(b.Where(2)), ElementsAre("b:1", "a it does not give this member the tenant"))
      << daemons_[1]->ReadLog();
}

TEST_F(WhereTest, InALargerClusterTheHomesSayWhomToAsk) {
  ASSERT_NO_FATAL_FAILURE(StartAll(6));
  const Asker a = Open(0), f = Open(5);
  a.Put(0, 1);
  f.Put(0, 5);
  WhereResult result;
  EXPECT_TRUE(WaitFor([&] {
    result = a.Where(6);
    return Told(result) == std::vector<std::string>{"a:1", "f:5"};
  })) << testing::PrintToString(Told(result));
  EXPECT_EQ(result.unasked_count, 4u);
}

TEST(WhereAlone, ADaemonWithoutAClusterAnswersForItself) {
  auto daemon = DaemonProcess::Start({});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  ConnectOptions options;
  options.control = (*daemon)->endpoint("control");
  const Asker asker = {SequenceClient::Open(options)};
  asker.Put(0, 3);
  const WhereResult result = asker.Where(5);
  EXPECT_THAT(Told(result), ElementsAre(":3"));
  EXPECT_TRUE(result.members[0].is_self);
  const std::vector<BlockKey> many(proto::kMatchKeysMax + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(asker.space->Where(many).status()));
}

// A daemon from before the call.
class OldDaemon final : public v1::Store::Service {
 public:
  OldDaemon() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~OldDaemon() override { server_->Shutdown(std::chrono::system_clock::now()); }
  const std::string& address() const { return address_; }

  grpc::Status OpenSession(grpc::ServerContext* context, const v1::OpenSessionRequest*,
                           grpc::ServerWriter<v1::SessionEvent>* writer) override {
    v1::SessionEvent event;
    event.mutable_opened()->set_session_id(1);
    event.mutable_opened()->set_ticket(proto::ToBytes(RandomBytes<16>()));
    writer->Write(event);
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(10));
    return grpc::Status::OK;
  }
  grpc::Status OpenSpace(grpc::ServerContext*, const v1::OpenSpaceRequest* request,
                         v1::OpenSpaceReply* reply) override {
    reply->set_space_id(1);
    const auto identity = proto::FromSpec(request->spec());
    reply->set_fingerprint(proto::ToBytes(proto::FingerprintOf(*identity)));
    reply->mutable_policy()->set_recipe("raw");
    return grpc::Status::OK;
  }

 private:
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

TEST(WhereAlone, AnOlderDaemonIsSaidToBeOne) {
  const OldDaemon old;
  ConnectOptions options;
  options.control = old.address();
  options.timeout = kPatience;
  auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  auto space = (*client)->OpenSpace(ToyIdentity(codecs::DType::kBf16, "m"), "raw", kPatience);
  ASSERT_TRUE(space.ok()) << space.status();
  const absl::Status status = (*space)->Where({}, kPatience).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("not implemented by this daemon"));
}

}  // namespace
}  // namespace cairn
