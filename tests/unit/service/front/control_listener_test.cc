// SPDX-License-Identifier: Apache-2.0
// The listener in front of a real gRPC server.
#include "service/front/control_listener.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "service/limits.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait.h"
#include "transport/local/socket.h"

namespace cairn {
namespace {

// Calls that stay open until they are all told to end.
class OpenCalls final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    const MutexLock lock(mutex_);
    calls_.push_back({context, new Reactor(), context->peer()});
    HandOver(calls_.back().reactor);
    return calls_.back().reactor;
  }
  size_t count() const {
    const MutexLock lock(mutex_);
    return calls_.size();
  }
  std::string peer(size_t index) const {
    const MutexLock lock(mutex_);
    return calls_[index].peer;
  }
  bool is_cancelled(size_t index) const {
    const MutexLock lock(mutex_);
    return calls_[index].context->IsCancelled();
  }
  void EndAll() {
    const MutexLock lock(mutex_);
    for (const Call& call : calls_) call.reactor->Finish(grpc::Status::OK);
    calls_.clear();
  }

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    void OnDone() override {
      TakeOver(this);
      delete this;
    }
  };
  struct Call {
    grpc::GenericCallbackServerContext* context = nullptr;
    Reactor* reactor = nullptr;
    std::string peer;
  };
  mutable Mutex mutex_;
  std::vector<Call> calls_ ABSL_GUARDED_BY(mutex_);
};

// A client with one call on a connection of its own.
class Caller {
 public:
  explicit Caller(const std::string& address)
      : channel_(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), Own())),
        stub_(channel_) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    call_ = stub_.PrepareCall(&context_, "/any", &queue_);
    call_->StartCall(nullptr);
  }
  ~Caller() {
    context_.TryCancel();
    call_->Finish(&status_, nullptr);
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

 private:
  static grpc::ChannelArguments Own() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return arguments;
  }
  std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  grpc::Status status_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

class ControlListenerTest : public ::testing::Test {
 protected:
  void Start(const ControlAddress& address, const std::optional<ControlAddress>& admin = {},
             const std::vector<std::string>& folders = {}) {
    auto listener = ControlListener::Bind(address, admin, /*tls=*/nullptr, folders);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(&calls_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    listener_->Start(
        [this](Fd fd) { grpc::AddInsecureChannelFromFd(server_.get(), fd.Release()); });
  }
  void TearDown() override {
    if (listener_ != nullptr) listener_->Stop();
    calls_.EndAll();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }
  ControlAddress UnixAddress() { return {.tcp = {}, .path = folder_.File("control.sock")}; }
  bool AwaitCalls(size_t count) {
    return WaitFor([&] { return calls_.count() == count; }, absl::Seconds(10),
                   absl::Milliseconds(1));
  }

  Fd Connect() {
    Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    UnixAddress().path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return socket;
  }
  static bool IsEnded(const Fd& socket) {
    pollfd polled{socket.get(), POLLRDHUP, 0};
    return ::poll(&polled, 1, 0) > 0;
  }

  TempDir folder_;
  OpenCalls calls_;
  std::unique_ptr<ControlListener> listener_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(ControlListenerTest, APeerOfAUnixSocketIsKnown) {
  Start(UnixAddress());
  struct stat facts {};
  ASSERT_EQ(::stat(UnixAddress().path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0660u);
  {
    const Caller caller(listener_->address().ToString());
    ASSERT_TRUE(AwaitCalls(1));
    const PeerIdentity ours(UnixPeer{.uid = ::geteuid(), .gid = ::getegid(), .door = {}});
    EXPECT_EQ(listener_->connections().PeerOf(calls_.peer(0)).identity, ours) << calls_.peer(0);
  }
  EXPECT_EQ(listener_->connections().PeerOf("fd:99999").identity, PeerIdentity());
  EXPECT_EQ(listener_->connections().PeerOf("ipv4:127.0.0.1:1").identity, PeerIdentity());
  EXPECT_EQ(listener_->Probe(), absl::OkStatus());
  listener_->Stop();
  EXPECT_NE(::stat(UnixAddress().path.c_str(), &facts), 0) << "the file is removed";
}

TEST_F(ControlListenerTest, APeerOfAFolderHasItsNameAndIsNoOperator) {
  const std::string folder = folder_.File("team-a");
  const ControlAddress admin = {.tcp = {}, .path = folder_.File("admin.sock")};
  Start(UnixAddress(), admin, {folder});
  EXPECT_EQ(listener_->address().path, UnixAddress().path);
  EXPECT_EQ(listener_->admin_address()->path, admin.path);
  const Caller caller("unix:" + DoorControlPath(folder));
  ASSERT_TRUE(AwaitCalls(1));
  const auto peer = listener_->connections().PeerOf(calls_.peer(0));
  const UnixPeer ours{.uid = ::geteuid(), .gid = ::getegid(), .door = folder};
  EXPECT_EQ(peer.identity, PeerIdentity(ours));
  EXPECT_FALSE(peer.is_operator);
  EXPECT_FALSE(peer.is_trusted);
  EXPECT_EQ(listener_->Probe(), absl::OkStatus());
}

TEST_F(ControlListenerTest, APeerOfTcpIsNobody) {
  Start({.tcp = {"127.0.0.1", 0}, .path = ""});
  EXPECT_EQ(listener_->Probe(), absl::OkStatus());
  const Caller caller(listener_->address().ToString());
  ASSERT_TRUE(AwaitCalls(1));
  EXPECT_TRUE(calls_.peer(0).starts_with("fd:")) << calls_.peer(0);
  EXPECT_EQ(listener_->connections().PeerOf(calls_.peer(0)).identity, PeerIdentity());
}

TEST_F(ControlListenerTest, OperatorsAreThoseWhoComeInByTheirOwnSocket) {
  const ControlAddress admin = {.tcp = {}, .path = folder_.File("admin.sock")};
  Start(UnixAddress(), admin);
  struct stat facts {};
  ASSERT_EQ(::stat(admin.path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  const Caller anybody(listener_->address().ToString());
  ASSERT_TRUE(AwaitCalls(1));
  EXPECT_FALSE(listener_->connections().PeerOf(calls_.peer(0)).is_operator);
  const Caller one(listener_->admin_address()->ToString());
  ASSERT_TRUE(AwaitCalls(2));
  EXPECT_TRUE(listener_->connections().PeerOf(calls_.peer(1)).is_operator);
  EXPECT_FALSE(listener_->connections().PeerOf("fd:99999").is_operator);
}

TEST_F(ControlListenerTest, EverybodyIsAnOperatorWhereTheAddressIsOne) {
  Start(UnixAddress(), UnixAddress());
  EXPECT_EQ(listener_->admin_address()->ToString(), listener_->address().ToString());
  const Caller anybody(listener_->address().ToString());
  ASSERT_TRUE(AwaitCalls(1));
  EXPECT_TRUE(listener_->connections().PeerOf(calls_.peer(0)).is_operator);
}

// A call's identity is looked up by its descriptor: the number must not name another connection
// while the call lives, even where its own connection is long gone.
TEST_F(ControlListenerTest, GrpcKeepsTheDescriptorWhileACallLives) {
  Start(UnixAddress());
  auto caller = std::make_unique<Caller>(listener_->address().ToString());
  ASSERT_TRUE(AwaitCalls(1));
  int fd = -1;
  ASSERT_TRUE(absl::SimpleAtoi(calls_.peer(0).substr(3), &fd));
  struct stat opened {};
  ASSERT_EQ(::fstat(fd, &opened), 0);
  caller.reset();
  ASSERT_TRUE(
      WaitFor([&] { return calls_.is_cancelled(0); }, absl::Seconds(10), absl::Milliseconds(1)));
  for (size_t i = 2; i < 20; ++i) {  // others come, each with a descriptor
    const Caller other(listener_->address().ToString());
    ASSERT_TRUE(AwaitCalls(i));
    EXPECT_NE(calls_.peer(i - 1), calls_.peer(0));
  }
  struct stat now {};
  ASSERT_EQ(::fstat(fd, &now), 0) << "closed under a call";
  EXPECT_EQ(now.st_ino, opened.st_ino) << "another connection has its number";
}

// Those who say nothing cost a place only until a newer one needs it, and no place of gRPC's.
TEST_F(ControlListenerTest, SilentConnectionsKeepNobodyOut) {
  Start(UnixAddress());
  std::vector<Fd> silent;
  for (size_t i = 0; i < 2 * limits::kSilentConnectionsMax; ++i) silent.push_back(Connect());
  const Caller caller(listener_->address().ToString());
  EXPECT_TRUE(AwaitCalls(1));
  EXPECT_EQ(listener_->Probe(), absl::OkStatus());
  EXPECT_TRUE(WaitFor([&] { return IsEnded(silent.front()); }));
  EXPECT_FALSE(IsEnded(silent.back()));
  EXPECT_EQ(listener_->connections().count(), 1u);
}

// Those who speak HTTP/2 and open no session, likewise.
TEST_F(ControlListenerTest, ConnectionsWithoutASessionKeepNobodyOut) {
  Start(UnixAddress());
  const Caller first(listener_->address().ToString());
  ASSERT_TRUE(AwaitCalls(1));
  const uint64_t number = listener_->connections().PeerOf(calls_.peer(0)).number;
  listener_->connections().BeginSession(number);
  constexpr std::string_view kPreface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  std::vector<Fd> crowd;
  for (size_t i = 0; i < 2 * limits::kSessionlessConnectionsMax; ++i) {
    crowd.push_back(Connect());
    ASSERT_EQ(::send(crowd.back().get(), kPreface.data(), kPreface.size(), MSG_NOSIGNAL), 33);
  }
  const Caller second(listener_->address().ToString());
  EXPECT_TRUE(AwaitCalls(2));
  EXPECT_EQ(listener_->Probe(), absl::OkStatus());
  EXPECT_FALSE(calls_.is_cancelled(0)) << "it has a session";
  // gRPC lets go of those that were ended.
  EXPECT_TRUE(WaitFor(
      [&] { return listener_->connections().count() <= limits::kSessionlessConnectionsMax + 1; }));
  EXPECT_GE(listener_->connections().ended_count(), limits::kSessionlessConnectionsMax);
  crowd.clear();
  EXPECT_TRUE(WaitFor([&] { return listener_->connections().count() == 2; }));
}

TEST_F(ControlListenerTest, ASocketTakesNoDescriptors) {
  Start(UnixAddress());
  const Fd socket = Connect();
  int on = 1;
  socklen_t bytes = sizeof on;
  constexpr int kPassRights = 83;
  if (::getsockopt(socket.get(), SOL_SOCKET, kPassRights, &on, &bytes) != 0) {
    GTEST_SKIP() << "the kernel has no SO_PASSRIGHTS";
  }
  EXPECT_EQ(
      transport::SendPacket(socket.get(), std::as_bytes(std::span("PRI", 3)), socket.get()).code(),
      absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace cairn
