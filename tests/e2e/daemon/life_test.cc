// SPDX-License-Identifier: Apache-2.0
// The daemon as a process: how it starts, what it answers besides work, how it ends.
#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/file.h"
#include "cairn/v1/admin.grpc.pb.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

std::unique_ptr<DaemonProcess> StartDaemon(std::vector<std::string> flags = {}) {
  auto daemon = DaemonProcess::Start(std::move(flags));
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  return daemon.ok() ? *std::move(daemon) : nullptr;
}

struct Run {
  int code = -1;
  std::string output;
};

// cairnd with flags that make it end by itself.
Run RunDaemon(const std::vector<std::string>& flags) {
  Run run;
  auto child = ChildProcess::Start(CAIRND_PATH, flags, "/dev/null");
  if (!child.ok()) return run;
  for (auto line = (*child)->ReadLine(absl::Seconds(10)); line.ok();
       line = (*child)->ReadLine(absl::Seconds(10))) {
    run.output += *line + "\n";
  }
  run.code = (*child)->Wait(absl::Seconds(10)).value_or(-1);
  return run;
}

TEST(DaemonLife, AForcedBackendThatIsNoneIsNamedAtStart) {
  const TempDir folder;
  for (const char* variable : {"CAIRN_CODEC_BACKEND", "CAIRN_CRC_BACKEND"}) {
    setenv(variable, "foo", 1);
    const auto child = ChildProcess::Start(CAIRND_PATH, {"--check-config"}, folder.File(variable));
    unsetenv(variable);
    ASSERT_TRUE(child.ok()) << child.status();
    EXPECT_EQ((*child)->Wait(absl::Seconds(10)).value_or(-1), 2);
    std::stringstream said;
    said << std::ifstream(folder.File(variable)).rdbuf();
    EXPECT_THAT(said.str(), HasSubstr(std::string(variable) + "=foo"));
  }
}

TEST(DaemonLife, TheReadinessLineNamesEveryEndpoint) {
  const auto daemon = StartDaemon();
  ASSERT_NE(daemon, nullptr);
  EXPECT_THAT(daemon->ready_line(),
              MatchesRegex("cairnd ready control=127.0.0.1:[0-9]+ http=127.0.0.1:[0-9]+ "
                           "socket=/.*/cairnd.sock data=off admin=unix:/.*/cairnd.admin.sock"));
}

TEST(DaemonLife, ProbesHealthAndReflectionAnswer) {
  const auto daemon = StartDaemon();
  ASSERT_NE(daemon, nullptr);
  EXPECT_THAT(daemon->HttpGet("/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(daemon->HttpGet("/readyz"), StartsWith("HTTP/1.1 200 "));
  const std::string& control = daemon->endpoint("control");
  // HealthCheckResponse{status: SERVING}
  EXPECT_EQ(CallRaw(control, "/grpc.health.v1.Health/Check", ""), "\x08\x01");
  EXPECT_EQ(
      CallRaw(control, "/grpc.health.v1.Health/Check", std::string("\x0a\x0e") + "cairn.v1.Store"),
      "\x08\x01");
  // ServerReflectionRequest{list_services: "*"}
  const std::string services = CallRaw(
      control, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3a\x01*");
  EXPECT_THAT(services, HasSubstr("cairn.v1.Store"));
  EXPECT_THAT(services, HasSubstr("cairn.v1.Admin"));
}

TEST(DaemonLife, TheControlPlaneMayBeAUnixSocket) {
  const TempDir folder;
  const std::string path = folder.File("control.sock");
  auto daemon = StartDaemon({"--control=unix:" + path});
  ASSERT_NE(daemon, nullptr);
  EXPECT_EQ(daemon->endpoint("control"), "unix:" + path);
  struct stat facts {};
  ASSERT_EQ(::stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0660u);
  {
    const auto client = RawClient::Open("unix:" + path);
    ASSERT_TRUE(client.ok()) << client.status();
    EXPECT_TRUE((*client)->OpenSpace(ToySpec("test")).ok());
    EXPECT_THAT(daemon->HttpGet("/readyz"), StartsWith("HTTP/1.1 200 "));
  }
  // Another daemon does not take it away, but follows one that was killed.
  const std::vector<std::string> other = {"--control=unix:" + path, "--http=off",
                                          "--socket=" + folder.File("other.sock"),
                                          "--host-bytes=16MiB"};
  EXPECT_EQ(RunDaemon(other).code, 1);
  daemon->process().Signal(SIGKILL);
  ASSERT_TRUE(daemon->process().Wait(absl::Seconds(10)).ok());
  daemon = StartDaemon({"--control=unix:" + path});
  ASSERT_NE(daemon, nullptr);
  EXPECT_TRUE(RawClient::Open("unix:" + path).ok());
  daemon->process().Signal(SIGTERM);
  EXPECT_EQ(daemon->process().Wait(absl::Seconds(20)).value_or(-1), 0);
  EXPECT_NE(::stat(path.c_str(), &facts), 0) << "removed at the end";
}

grpc::Status ListSpaces(v1::Admin::Stub& admin) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::ListSpacesReply reply;
  return admin.ListSpaces(&context, v1::ListSpacesRequest(), &reply);
}

TEST(DaemonLife, OperatorsComeInBySocketsOfTheirOwn) {
  const TempDir folder;
  for (const std::string& control :
       {std::string("127.0.0.1:0"), "unix:" + folder.File("control.sock")}) {
    const auto daemon = StartDaemon({"--control=" + control});
    ASSERT_NE(daemon, nullptr);
    const std::string admin = daemon->endpoint("admin");
    EXPECT_EQ(admin, control.starts_with("unix:")
                         ? "unix:" + folder.File("control.admin.sock")
                         : "unix:" + daemon->folder() + "/cairnd.admin.sock");
    struct stat facts {};
    ASSERT_EQ(::stat(admin.substr(5).c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0600u);
    const auto stub = v1::Admin::NewStub(
        grpc::CreateChannel(daemon->endpoint("control"), grpc::InsecureChannelCredentials()));
    const grpc::Status refused = ListSpaces(*stub);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_EQ(refused.error_message(), "calls of cairn.v1.Admin are answered at " + admin);
    // Of one address, the daemon says the other.
    const auto client = RawClient::Open(daemon->endpoint("control"));
    ASSERT_TRUE(client.ok()) << client.status();
    EXPECT_TRUE(ListSpaces((*client)->admin()).ok());
  }
}

TEST(DaemonLife, OperatorsComeInWithEverybodyOrNowhereWhereThatIsAsked) {
  const auto shared = StartDaemon({"--admin=127.0.0.1:0"});  // as --control
  ASSERT_NE(shared, nullptr);
  EXPECT_EQ(shared->endpoint("admin"), shared->endpoint("control"));
  const auto client = RawClient::Open(shared->endpoint("control"));
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE(ListSpaces((*client)->admin()).ok());
  const auto closed = StartDaemon({"--admin=off"});
  ASSERT_NE(closed, nullptr);
  EXPECT_EQ(closed->endpoint("admin"), "off");
  const auto stub = v1::Admin::NewStub(
      grpc::CreateChannel(closed->endpoint("control"), grpc::InsecureChannelCredentials()));
  EXPECT_EQ(ListSpaces(*stub).error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST(DaemonLife, FlagsThatStartNothing) {
  EXPECT_THAT(RunDaemon({"--version"}).output, MatchesRegex("cairnd [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  EXPECT_THAT(RunDaemon({"--help"}).output, HasSubstr("--host-bytes"));
  EXPECT_EQ(RunDaemon({"--check-config"}).code, 0);
  EXPECT_EQ(RunDaemon({"--check-config", "--host-bytes=1"}).code, 2);
  EXPECT_EQ(RunDaemon({"--nonsense"}).code, 2);
  EXPECT_THAT(RunDaemon({"--print-config", "--lanes=3"}).output, HasSubstr("lanes: \"3\"  # flag"));
}

// A memory cgroup, of version 2 or 1; not valid where none can be made.
class MemoryGroup {
 public:
  explicit MemoryGroup(uint64_t limit_bytes) {
    const std::filesystem::path root = "/sys/fs/cgroup";
    const bool is_v1 = std::filesystem::exists(root / "memory/memory.limit_in_bytes");
    folder_ = (is_v1 ? root / "memory" : root) / absl::StrCat("cairn-life-", ::getpid());
    std::error_code error;
    std::filesystem::create_directory(folder_, error);
    std::ofstream(folder_ / (is_v1 ? "memory.limit_in_bytes" : "memory.max")) << limit_bytes;
    std::ifstream limit(folder_ / (is_v1 ? "memory.limit_in_bytes" : "memory.max"));
    uint64_t found = 0;
    is_valid_ = limit >> found && found == limit_bytes;
  }
  ~MemoryGroup() {
    std::error_code error;
    std::filesystem::remove(folder_, error);
  }
  bool is_valid() const { return is_valid_; }
  std::string file() const { return folder_ / "cgroup.procs"; }

 private:
  std::filesystem::path folder_;
  bool is_valid_ = false;
};

TEST(DaemonLife, AMemoryLimitBelowWhatItTakesIsSaidBeforeTheKernelEndsIt) {
  const MemoryGroup group(256 << 20);
  if (!group.is_valid()) GTEST_SKIP() << "no memory cgroup can be made here";
  const TempDir folder;
  const auto run = [&](const std::string& flag) {
    const std::string command =
        absl::StrCat("echo $$ > ", group.file(), " && exec " CAIRND_PATH " --control 127.0.0.1:0 ",
                     "--http off --socket ", folder.File("s"), " --host-bytes 512MiB ", flag);
    const auto child = ChildProcess::Start("/bin/sh", {"-c", command}, folder.File("log"));
    const int code = child.ok() ? (*child)->Wait(absl::Seconds(20)).value_or(-1) : -1;
    return std::pair(code, ReadFile(folder.File("log"), 1 << 20).value_or(""));
  };
  const auto [code, log] = run("");
  EXPECT_EQ(code, 1) << log;
  EXPECT_THAT(log, HasSubstr("host-bytes 512MiB and staging-bytes 192MiB"));
  EXPECT_THAT(log, HasSubstr(group.file().substr(0, group.file().rfind('/'))));
  const auto [checked, said] = run("--check-config");
  EXPECT_EQ(checked, 0) << said;
  EXPECT_THAT(said, HasSubstr("warning: it cannot start on this machine: host-bytes 512MiB"));
}

TEST(DaemonLife, FilesForEtcdThatAreMissingOrWrongAreNamedAtStart) {
  const TempDir folder;
  std::ofstream(folder.File("ca")) << "no certificate\n";
  std::ofstream(folder.File("password")) << "not-in-any-text\n";
  const auto run = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> words = {
        "--control=127.0.0.1:0", "--http=off",         "--socket=" + folder.File("s"),
        "--host-bytes=64MiB",    "--peer=127.0.0.1:1", "--members=etcd:127.0.0.1:1",
        "--etcd-user=cairn"};
    words.insert(words.end(), flags.begin(), flags.end());
    const auto child = ChildProcess::Start(CAIRND_PATH, words, folder.File("log"));
    EXPECT_EQ(child.ok() ? (*child)->Wait(absl::Seconds(20)).value_or(-1) : -1, 1);
    return ReadFile(folder.File("log"), 1 << 20).value_or("");
  };
  EXPECT_THAT(run({"--etcd-password-file=" + folder.File("none")}), HasSubstr("/none: No such"));
  const std::string said =
      run({"--etcd-password-file=" + folder.File("password"), "--etcd-ca=" + folder.File("ca")});
  EXPECT_THAT(said, HasSubstr("/ca not taken"));
  EXPECT_THAT(said, ::testing::Not(HasSubstr("not-in-any-text")));
}

TEST(DaemonLife, AnAddressInUseIsAnError) {
  const auto daemon = StartDaemon();
  ASSERT_NE(daemon, nullptr);
  const std::string socket = "--socket=" + daemon->folder() + "/other.sock";
  const std::vector<std::string> rest = {socket, "--host-bytes=16MiB"};
  std::vector<std::string> control = rest, http = rest, path = rest;
  control.insert(control.end(), {"--http=off", "--control=" + daemon->endpoint("control")});
  http.insert(http.end(), {"--control=127.0.0.1:0", "--http=" + daemon->endpoint("http")});
  path.insert(path.end(), {"--control=127.0.0.1:0", "--http=off"});
  path[0] = "--socket=" + daemon->endpoint("socket");
  EXPECT_EQ(RunDaemon(control).code, 1);
  EXPECT_EQ(RunDaemon(http).code, 1);
  EXPECT_EQ(RunDaemon(path).code, 1);
}

// Protobuf has a line to say about each string that is no UTF-8.
TEST(DaemonLife, APeerCannotFillTheLogThroughALibrary) {
  const auto daemon = StartDaemon();
  ASSERT_NE(daemon, nullptr);
  const auto client = RawClient::Open(daemon->endpoint("control"));
  ASSERT_TRUE(client.ok()) << client.status();
  const google::protobuf::LogSilencer ours;
  v1::OpenSpaceRequest request;
  request.mutable_spec()->set_model("\xff");
  for (int i = 0; i < 500; ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::OpenSpaceReply reply;
    ASSERT_FALSE((*client)->store().OpenSpace(&context, request, &reply).ok());
  }
  int said = 0;
  for (const absl::string_view line : absl::StrSplit(daemon->ReadLog(), '\n', absl::SkipEmpty())) {
    EXPECT_THAT(std::string(line), MatchesRegex("(ERROR|WARN|INFO|DEBUG) 2.*"));
    said += absl::StrContains(line, "protobuf: ") ? 1 : 0;
  }
  EXPECT_GT(said, 0);
  EXPECT_LT(said, 400);
}

TEST(DaemonLife, TermEndsItOnceWorkIsDone) {
  const auto daemon = StartDaemon();
  ASSERT_NE(daemon, nullptr);
  daemon->process().Signal(SIGHUP);
  EXPECT_THAT(daemon->HttpGet("/healthz"), StartsWith("HTTP/1.1 200 "));
  auto client = RawClient::Open(daemon->endpoint("control"));
  ASSERT_TRUE(client.ok()) << client.status();
  daemon->process().Signal(SIGTERM);
  const auto code = daemon->process().Wait(absl::Seconds(10));
  ASSERT_TRUE(code.ok()) << code.status() << daemon->ReadLog();
  EXPECT_EQ(*code, 0) << daemon->ReadLog();
  struct stat facts {};
  EXPECT_NE(::stat(daemon->endpoint("socket").c_str(), &facts), 0) << "the socket file is left";
}

// Calls that wait for 50 s. A put takes all of them out to try them, which takes so long that their
// session ends meanwhile: none of them may wait on.
TEST(DaemonLife, TermDoesNotWaitForWhoWaits) {
  const auto daemon = StartDaemon({"--drain-ms=0"});
  ASSERT_NE(daemon, nullptr);
  auto opened = RawClient::Open(daemon->endpoint("control"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  RawClient& client = **opened;
  const ToyShape shape = {.layers = 8, .heads = 8};
  const auto space = client.OpenSpace(ToySpec("test", shape));
  ASSERT_TRUE(space.ok()) << space.status();
  auto connection = client.Dial();
  ASSERT_TRUE(connection.ok()) << connection.status();
  const auto put = [&](uint64_t block, const proto::SliceRange& slice) {
    const auto payload = ToySource(block, slice, shape);
    const auto frame = client.PutFrame(*space, ToyKey(block), slice, payload, shape);
    return AskOk(**connection, frame, payload).ok();
  };
  for (uint16_t layer = 0; layer < shape.layers; ++layer) {
    for (uint16_t head = 0; head < shape.heads; ++head) {
      ASSERT_TRUE(put(2, {layer, 1, head, 1}));
    }
  }
  // Block 1 never comes, 2 is there, all wait for 3 first.
  std::vector<proto::BlockKey> keys(4095, ToyKey(2));
  keys.front() = ToyKey(1);
  keys.back() = ToyKey(3);
  auto request = client.MatchOf(*space, keys);
  request.set_wait_ms(50'000);
  constexpr int kWaiting = 64;
  std::vector<std::thread> callers;
  for (int i = 0; i < kWaiting; ++i) {
    callers.emplace_back([&] { (void)client.Match(request, absl::Seconds(60)); });
  }
  EXPECT_TRUE(daemon->AwaitMetric("cairn_waiters", kWaiting, absl::Seconds(10)));
  callers.emplace_back([&] { put(3, shape.whole()); });
  EXPECT_TRUE(daemon->AwaitMetric("cairn_blocks", 2, absl::Seconds(10)));
  daemon->process().Signal(SIGTERM);
  const auto code = daemon->process().Wait(absl::Seconds(15));
  EXPECT_EQ(code.value_or(-1), 0) << code.status() << daemon->ReadLog();
  if (!code.ok()) daemon->process().Signal(SIGKILL);
  for (std::thread& caller : callers) caller.join();
}

TEST(DaemonLife, DrainRefusesNewWorkAndServesWhatIsThere) {
  const auto daemon = StartDaemon();
  ASSERT_NE(daemon, nullptr);
  auto opened = RawClient::Open(daemon->endpoint("control"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  RawClient& client = **opened;
  const auto space = client.OpenSpace(ToySpec("test"));
  ASSERT_TRUE(space.ok()) << space.status();
  auto connection = client.Dial();
  ASSERT_TRUE(connection.ok()) << connection.status();
  const auto payload = ToySource(1, WholeToy());
  ASSERT_TRUE(
      AskOk(**connection, client.PutFrame(*space, ToyKey(1), WholeToy(), payload), payload).ok());
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(5));
  v1::DrainReply reply;
  ASSERT_TRUE(client.admin().Drain(&context, v1::DrainRequest(), &reply).ok());
  EXPECT_EQ(reply.session_count(), 1u);
  EXPECT_THAT(daemon->HttpGet("/readyz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(daemon->HttpGet("/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(CallRaw(daemon->endpoint("control"), "/grpc.health.v1.Health/Check", ""), "\x08\x02");
  EXPECT_EQ(RawClient::Open(daemon->endpoint("control")).status().code(),
            absl::StatusCode::kUnavailable);
  const auto put =
      AskOk(**connection, client.PutFrame(*space, ToyKey(2), WholeToy(), payload), payload);
  EXPECT_EQ(put.status().code(), absl::StatusCode::kUnavailable) << put.status();
  std::vector<std::byte> target(payload.size());
  const auto get = AskOk(**connection,
                         client.GetFrame(*space, ToyKey(1), WholeToy(), target.size()), {}, target);
  ASSERT_TRUE(get.ok()) << get.status();
  EXPECT_EQ(target, payload);
}

// A daemon with one block, on which one session holds a lease.
class DrainTest : public ::testing::Test {
 protected:
  void Start(const std::string& drain_ms) {
    daemon_ = StartDaemon({"--drain-ms=" + drain_ms});
    ASSERT_NE(daemon_, nullptr);
    auto opened = RawClient::Open(daemon_->endpoint("control"));
    ASSERT_TRUE(opened.ok()) << opened.status();
    client_ = *std::move(opened);
    const auto space = client_->OpenSpace(ToySpec("test"));
    auto connection = client_->Dial();
    ASSERT_TRUE(space.ok() && connection.ok());
    connection_ = *std::move(connection);
    space_ = *space;
    payload_ = ToySource(1, WholeToy());
    ASSERT_TRUE(
        AskOk(*connection_, client_->PutFrame(space_, ToyKey(1), WholeToy(), payload_), payload_)
            .ok());
    const std::vector<proto::BlockKey> keys = {ToyKey(1)};
    auto request = client_->MatchOf(space_, keys);
    request.set_lease(true);
    const auto matched = client_->Match(request);
    ASSERT_EQ(matched->block_count(), 1u);
    lease_ = matched->lease();
  }
  bool Get() {
    std::vector<std::byte> target(payload_.size());
    const auto frame = client_->GetFrame(space_, ToyKey(1), WholeToy(), target.size());
    return AskOk(*connection_, frame, {}, target).ok() && target == payload_;
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> client_;
  std::unique_ptr<transport::Connection> connection_;
  uint64_t space_ = 0;
  std::vector<std::byte> payload_;
  std::string lease_;
};

TEST_F(DrainTest, ASecondSignalEndsItAtOnce) {
  Start("60000");
  daemon_->process().Signal(SIGTERM);
  EXPECT_FALSE(daemon_->process().Wait(absl::Milliseconds(500)).ok()) << "a lease is held";
  daemon_->process().Signal(SIGINT);
  EXPECT_EQ(daemon_->process().Wait(absl::Seconds(2)).value_or(-1), 128 + SIGINT);
}

TEST_F(DrainTest, ItEndsWithTheLastLease) {
  Start("60000");
  daemon_->process().Signal(SIGTERM);
  EXPECT_FALSE(daemon_->process().Wait(absl::Milliseconds(300)).ok()) << "a lease is held";
  EXPECT_TRUE(Get()) << "who holds the lease gets its block";
  ASSERT_EQ(client_->Release(lease_), absl::OkStatus());
  EXPECT_EQ(daemon_->process().Wait(absl::Seconds(10)).value_or(-1), 0) << daemon_->ReadLog();
  EXPECT_THAT(daemon_->ReadLog(), HasSubstr("drained=true"));
}

TEST_F(DrainTest, ItWaitsForALeaseNoLongerThanItIsTold) {
  Start("1000");
  const absl::Time began = MonotonicNow();
  daemon_->process().Signal(SIGTERM);
  EXPECT_EQ(daemon_->process().Wait(absl::Seconds(10)).value_or(-1), 0) << daemon_->ReadLog();
  EXPECT_GE(MonotonicNow() - began, absl::Milliseconds(950));
  EXPECT_THAT(daemon_->ReadLog(), HasSubstr("drain time is over with work left"));
  EXPECT_THAT(daemon_->ReadLog(), HasSubstr("leases=1"));
  EXPECT_THAT(daemon_->ReadLog(), HasSubstr("drained=false"));
}

// Metrics: docs/reference/metrics.md lists what is exported, and nothing else.
TEST(DaemonLife, TheMetricsDocumentIsComplete) {
  const TempDir disk{std::filesystem::path(CAIRN_TEST_DISK)};
  std::ofstream(disk.File("members")) << "a=127.0.0.1:1\n";
  const auto daemon = StartDaemon({"--ssd=" + disk.path().string() + "=256MiB", "--member-name=a",
                                   "--members=file:" + disk.File("members"), "--peer=127.0.0.1:0"});
  ASSERT_NE(daemon, nullptr);
  std::set<std::string> exported;
  std::istringstream scrape(daemon->HttpGet("/metrics"));
  for (std::string line; std::getline(scrape, line);) {
    constexpr std::string_view kType = "# TYPE ";
    if (!line.starts_with(kType)) continue;
    exported.insert(line.substr(kType.size(), line.find(' ', kType.size()) - kType.size()));
  }
  std::set<std::string> documented;
  std::ifstream document(CAIRN_SOURCE_DIR "/docs/reference/metrics.md");
  for (std::string line; std::getline(document, line);) {
    constexpr std::string_view kRow = "| `cairn_";
    // Others have a device (e2e_client_gpu_test), TLS, a policy and an audit file (test_trust.py),
    // and a way to read from members (e2e_client_remote_test).
    if (!line.starts_with(kRow) || line.starts_with("| `cairn_gpu_") ||
        line.starts_with("| `cairn_tls_") || line.starts_with("| `cairn_policy_") ||
        line.starts_with("| `cairn_audit_") || line.starts_with("| `cairn_peer_") ||
        line.starts_with("| `cairn_offers_")) {
      continue;
    }
    documented.insert(line.substr(3, line.find('`', 3) - 3));
  }
  EXPECT_EQ(exported, documented);
  EXPECT_GT(exported.size(), 20u);
}

}  // namespace
}  // namespace cairn
