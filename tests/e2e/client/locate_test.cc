// SPDX-License-Identifier: Apache-2.0
// Members tell each other which blocks they have, and find out who has a block.

#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random_bytes.h"
#include "service/front/control_server.h"
#include "service/front/peer_service.h"
#include "service/members/file_source.h"
#include "service/members/members.h"
#include "service/peer/announced.h"
#include "service/peer/hellos.h"
#include "service/peer/located.h"
#include "service/peer/location_table.h"
#include "service/peer/locator.h"
#include "service/peer/peer_channels.h"
#include "service/peer/peer_self.h"
#include "service/sessions.h"
#include "tests/e2e/client/cluster_fixture.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

// A member in the process of the test: a home without blocks, which asks the others.
class TestMember {
 public:
  TestMember(const std::string& name, const std::string& member_file)
      : sessions_({.release_leases = [](uint64_t) {}, .break_peer = [](const PeerRef&) {}}, 16) {
    auto server = ControlServer::Start({.tcp = {"127.0.0.1", 0}, .path = {}}, std::nullopt,
                                       absl::InfiniteDuration(), nullptr, {},
                                       ControlServer::Callers::kMembers);
    CAIRN_CHECK_OK(server);
    server_ = *std::move(server);
    members_ = std::make_unique<Members>(Members::Options{.cluster = "cairn",
                                                          .self = {name, address(), ""},
                                                          .grace = absl::ZeroDuration(),
                                                          .incarnation = 0x1234567},
                                         MakeFileSource(member_file, absl::Milliseconds(100)),
                                         RealClock::Get());
    hellos_ = std::make_unique<Hellos>(
        *members_, Hellos::Options{.daemon_version = "test", .period = absl::Milliseconds(500)});
    service_ = std::make_unique<PeerService>(PeerService::Parts{
        *members_, sessions_, nullptr, "test",
        [this](std::string_view caller) { hellos_->Greet(caller); }, announced_, table_});
    locator_ = std::make_unique<Locator>(Locator::Parts{*members_, channels_, table_, "test"},
                                         Locator::Options());
    server_->Serve(*service_);
    hellos_->Start();
    members_->Start([this] { hellos_->Wake(); });
  }
  ~TestMember() {
    server_->Stop();
    members_->Stop();
    hellos_->Stop();
  }

  std::string address() const { return server_->address().ToString(); }
  const Members& members() const { return *members_; }
  LocationTable& table() { return table_; }

  // The names of the holders of each key.
  std::vector<std::vector<std::string>> Locate(const Space& space,
                                               const std::vector<BlockKey>& keys, size_t first) {
    const absl::Time began = MonotonicNow();
    const Located located =
        locator_->Locate(space.fingerprint(), keys, first, began + absl::Seconds(5));
    std::vector<std::vector<std::string>> names;
    for (const HolderList& list : located.holders) {
      std::vector<std::string>& one = names.emplace_back();
      for (const uint16_t holder : list) one.push_back(located.members[holder].name);
      std::ranges::sort(one);
    }
    return names;
  }

 private:
  Sessions sessions_;
  LocationTable table_{uint64_t{1} << 20};
  Announced announced_{table_};
  PeerChannels channels_{PeerDial(), 3'000'000};
  std::unique_ptr<ControlServer> server_;
  std::unique_ptr<Members> members_;
  std::unique_ptr<Hellos> hellos_;
  std::unique_ptr<PeerService> service_;
  std::unique_ptr<Locator> locator_;
};

class LocateTest : public ClusterTest {
 protected:
  static SequenceClient Open(const DaemonProcess& daemon) {
    ConnectOptions options;
    options.control = daemon.endpoint("control");
    return SequenceClient::Open(options);
  }
  void StartThreeAndATest() {
    for (const char* name : {"a", "b", "c"}) Start(name);
    test_ = std::make_unique<TestMember>("test", folder_.File("members"));
    List("test", test_->address());
    for (const auto& daemon : daemons_) ASSERT_TRUE(Await(*daemon, "joined", 4));
    ASSERT_TRUE(WaitFor([this] {
      const ViewPtr view = test_->members().view();
      return std::ranges::count_if(view->members, &Member::counts) == 4;
    }));
  }
  // Whether keys [first, first + count) have exactly these holders in the end.
  bool AwaitHolders(const SequenceClient& store, const std::vector<BlockKey>& keys, size_t first,
                    size_t count, const std::vector<std::string>& holders) {
    return WaitFor([&] {
      const auto located = test_->Locate(*store.space, keys, first);
      return std::all_of(located.begin(), located.begin() + static_cast<ptrdiff_t>(count),
                         [&](const auto& one) { return one == holders; });
    });
  }

  std::unique_ptr<TestMember> test_;
};

TEST_F(LocateTest, AMemberIsFoundWhileItHasTheBlock) {
  ASSERT_NO_FATAL_FAILURE(StartThreeAndATest());
  DaemonProcess* const a = daemons_[0].get();
  DaemonProcess* const c = daemons_[2].get();
  const SequenceClient on_a = Open(*a), on_b = Open(*daemons_[1]);
  const std::vector<BlockKey> keys = on_a.Keys(41);
  ASSERT_EQ(keys.size(), 41u);
  EXPECT_TRUE(AwaitHolders(on_a, keys, 0, 40, {}));
  ASSERT_NO_FATAL_FAILURE(on_a.Put(0, 40));
  ASSERT_NO_FATAL_FAILURE(on_b.Put(0, 10));
  EXPECT_TRUE(AwaitHolders(on_a, keys, 0, 10, {"a", "b"}));
  EXPECT_TRUE(AwaitHolders(on_a, keys, 10, 30, {"a"}));
  EXPECT_TRUE(AwaitHolders(on_a, keys, 40, 1, {}));  // nobody has it
  EXPECT_TRUE(a->AwaitMetric("cairn_announce_lag_seconds", 0, kPatience));

  ASSERT_TRUE(on_a.space->Delete(std::span(keys).subspan(30), kPatience).ok());
  EXPECT_TRUE(AwaitHolders(on_a, keys, 30, 10, {}));
  EXPECT_TRUE(AwaitHolders(on_a, keys, 10, 20, {"a"}));

  // A home that starts again knows nothing, and is told again.
  EXPECT_TRUE(a->AwaitMetric("cairn_announce_lag_seconds", 0, kPatience));
  const double known = c->Metric("cairn_locations");
  EXPECT_GT(known, 0);
  c->process().Signal(SIGKILL);
  ASSERT_TRUE(c->process().Wait(kPatience).ok());
  EXPECT_TRUE(AwaitHolders(on_a, keys, 10, 20, {"a"}));  // the other home knows it
  DaemonProcess* const again = Start("c");
  EXPECT_TRUE(again->AwaitMetric("cairn_locations", known, kPatience)) << again->ReadLog();

  // A member that starts again has lost what it had in memory.
  a->process().Signal(SIGKILL);
  ASSERT_TRUE(a->process().Wait(kPatience).ok());
  DaemonProcess* const new_a = Start("a");
  EXPECT_TRUE(AwaitHolders(on_a, keys, 10, 20, {}));
  EXPECT_TRUE(AwaitHolders(on_a, keys, 0, 10, {"b"}));
  const SequenceClient on_new_a = Open(*new_a);
  ASSERT_NO_FATAL_FAILURE(on_new_a.Put(0, 5));
  EXPECT_TRUE(AwaitHolders(on_a, keys, 0, 5, {"a", "b"}));
}

TEST_F(LocateTest, BlocksThatWereThereBeforeAreAnnouncedToo) {
  Start("a");
  const SequenceClient on_a = Open(*daemons_[0]);
  const std::vector<BlockKey> keys = on_a.Keys(20);
  ASSERT_NO_FATAL_FAILURE(on_a.Put(0, 20));
  EXPECT_EQ(daemons_[0]->Metric("cairn_announce_resets_total"), 0);  // it is alone
  test_ = std::make_unique<TestMember>("test", folder_.File("members"));
  List("test", test_->address());
  EXPECT_TRUE(AwaitHolders(on_a, keys, 0, 20, {"a"}));
  EXPECT_EQ(test_->table().count(), 20u);  // with two members, both are homes of all
}

// It answers to nobody, and its connections live: the second home is asked after 5 ms.
TEST_F(LocateTest, AHomeThatHangsIsPassedOver) {
  ASSERT_NO_FATAL_FAILURE(StartThreeAndATest());
  const SequenceClient on_a = Open(*daemons_[0]);
  const std::vector<BlockKey> keys = on_a.Keys(40);
  ASSERT_NO_FATAL_FAILURE(on_a.Put(0, 40));
  ASSERT_TRUE(AwaitHolders(on_a, keys, 0, 40, {"a"}));
  ASSERT_TRUE(daemons_[0]->AwaitMetric("cairn_announce_lag_seconds", 0, kPatience));
  daemons_[2]->process().Signal(SIGSTOP);
  const absl::Time began = MonotonicNow();
  const auto located = test_->Locate(*on_a.space, keys, 0);
  EXPECT_LT(MonotonicNow() - began, absl::Seconds(4));  // its deadline is later
  for (const auto& holders : located) EXPECT_EQ(holders, std::vector<std::string>{"a"});
  daemons_[2]->process().Signal(SIGCONT);
}

// The member of the test knows of no generations, like one of an earlier version.
TEST_F(LocateTest, AMemberOfAnEarlierVersionIsToldNoGenerations) {
  Start("a");
  EXPECT_TRUE(Open(*daemons_[0]).space->Invalidate(kPatience).ok());
  Start("b");
  test_ = std::make_unique<TestMember>("test", folder_.File("members"));
  List("test", test_->address());
  for (const auto& daemon : daemons_) {
    ASSERT_TRUE(Await(*daemon, "joined", 3));
    EXPECT_TRUE(daemon->AwaitMetric("cairn_member_generations", 1, kPatience));
  }
  const auto stub = OpenPeer(daemons_[0]->endpoint("peer"), PeerDial(), 1 << 20);
  const auto hello = [&](uint64_t hash, uint64_t known, const std::string& list) {
    v1::HelloRequest request;
    *request.mutable_self() = SelfOf(test_->members(), "test");
    request.set_generations_hash(hash);
    request.set_generations_known(known);
    request.set_generations(list);
    grpc::ClientContext context;
    v1::HelloReply reply;
    const grpc::Status status = stub->Hello(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  };
  const v1::HelloReply older = hello(0, 0, "");
  EXPECT_EQ(older.generations_hash(), 0u);
  EXPECT_EQ(older.generations(), "");
  // One that knows of them, and lacks this one, is told once.
  const v1::HelloReply all = hello(Generations::kEmptyHash, 0, "nonsense");
  const auto list = ParseGenerations(all.generations());
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->size(), 1u);
  EXPECT_EQ(hello(all.generations_hash(), 0, "").generations(), "");
  EXPECT_EQ(hello(Generations::kEmptyHash, all.generations_hash(), "").generations(), "");
  // What it tells is taken.
  const SpaceGeneration more{"t", {}, list->front().generation};
  EXPECT_NE(hello(Generations::kEmptyHash, 0, SerializeGenerations({&more, 1})).generations_hash(),
            all.generations_hash());
  EXPECT_EQ(daemons_[0]->Metric("cairn_member_generations"), 2);
}

TEST_F(LocateTest, CallersThatAreNoMembersAreRefused) {
  ASSERT_NO_FATAL_FAILURE(StartThreeAndATest());
  const auto stub = OpenPeer(daemons_[0]->endpoint("peer"), PeerDial(), 1 << 20);
  const auto locate = [&](const v1::PeerSelf& self, const std::string& names) {
    v1::LocateRequest request;
    *request.mutable_self() = self;
    request.set_names(names);
    grpc::ClientContext context;
    v1::LocateReply reply;
    return stub->Locate(&context, request, &reply).error_code();
  };
  v1::PeerSelf self = SelfOf(test_->members(), "test");
  const std::string one(16, 'x');
  EXPECT_EQ(locate(self, one), grpc::StatusCode::OK);
  EXPECT_EQ(locate(self, one + "x"), grpc::StatusCode::INVALID_ARGUMENT);
  v1::PeerSelf other = self;
  other.set_incarnation(7);
  EXPECT_EQ(locate(other, one), grpc::StatusCode::UNAVAILABLE);
  other = self;
  other.set_name("stranger");
  EXPECT_EQ(locate(other, one), grpc::StatusCode::UNAVAILABLE);
  other.set_name("a");  // the name of the one that is asked
  EXPECT_EQ(locate(other, one), grpc::StatusCode::UNAVAILABLE);
  other = self;
  other.set_cluster("other");
  EXPECT_EQ(locate(other, one), grpc::StatusCode::FAILED_PRECONDITION);

  const auto announce = [&](uint64_t epoch, uint64_t first, bool is_reset,
                            const std::string& stored) {
    v1::AnnounceRequest request;
    *request.mutable_self() = self;
    request.set_epoch(epoch);
    request.set_first_sequence(first);
    request.set_reset(is_reset);
    request.set_stored(stored);
    grpc::ClientContext context;
    v1::AnnounceReply reply;
    return stub->Announce(&context, request, &reply).error_code();
  };
  EXPECT_EQ(announce(9, 0, false, one), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(announce(9, 0, true, ""), grpc::StatusCode::OK);
  EXPECT_EQ(announce(9, 0, false, one), grpc::StatusCode::OK);
  EXPECT_EQ(announce(9, 2, false, one), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(announce(9, 1, false, "x"), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(announce(9, 1, false, std::string(2048 * 16, 'x')), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace cairn
