// SPDX-License-Identifier: Apache-2.0
// Clients of the control port that misbehave: cancelled, stalled, swollen and malformed calls.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"
#include "tests/fault/daemon/raw_http2.h"
#include "tests/support/sanitizer.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

class ControlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start({"--admin=127.0.0.1:0"});  // all calls at one port
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    auto victim = RawClient::Open(daemon_->endpoint("control"));
    ASSERT_TRUE(victim.ok()) << victim.status();
    victim_ = *std::move(victim);
    const auto space = victim_->OpenSpace(ToySpec("test"));
    ASSERT_TRUE(space.ok()) << space.status();
    space_ = *space;
  }
  void TearDown() override {
    ASSERT_TRUE(daemon_->process().is_running()) << daemon_->ReadLog();
    EXPECT_TRUE(VictimWorks());
    EXPECT_TRUE(daemon_->AwaitMetric("cairn_sessions", 1, absl::Seconds(10)));
  }

  bool VictimWorks() {
    const std::vector<proto::BlockKey> keys = {ToyKey(1)};
    const auto reply = victim_->Match(victim_->MatchOf(space_, keys));
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok();
  }
  // A channel with a connection of its own.
  std::shared_ptr<grpc::Channel> Channel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(daemon_->endpoint("control"),
                                     grpc::InsecureChannelCredentials(), arguments);
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> victim_;
  uint64_t space_ = 0;
};

TEST_F(ControlTest, RefusedSessionsThatAreCancelledEndOnce) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this] {
      const auto stub = v1::Store::NewStub(Channel());
      v1::OpenSessionRequest request;
      request.set_tenant("not a tenant");
      for (int call = 0; call < 1000; ++call) {
        grpc::ClientContext context;
        const auto stream = stub->OpenSession(&context, request);
        context.TryCancel();
        EXPECT_FALSE(stream->Finish().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Calls of one method, of raw bytes. Thread-compatible.
class RawCalls {
 public:
  RawCalls(std::shared_ptr<grpc::Channel> channel, std::string method)
      : channel_(std::move(channel)), stub_(channel_), method_(std::move(method)) {}
  // One to its end.
  grpc::Status Run(const std::string& message, absl::Duration timeout = absl::Seconds(10),
                   grpc_compression_algorithm compression = GRPC_COMPRESS_NONE) {
    grpc::ClientContext context;
    SetTimeout(context, timeout);
    context.set_compression_algorithm(compression);
    grpc::CompletionQueue queue;
    auto stream = stub_.PrepareCall(&context, method_, &queue);
    void* tag = nullptr;
    bool ok = false;
    stream->StartCall(nullptr);
    queue.Next(&tag, &ok);
    const grpc::Slice slice(message);
    stream->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    queue.Next(&tag, &ok);
    grpc::Status status;
    stream->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
    return status;
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  const std::string method_;
};

// `count` empty values of a length-delimited field.
std::string EmptyFields(int field, size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    bytes += static_cast<char>(field << 3 | 2);
    bytes += '\0';
  }
  return bytes;
}

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Parsed, some of them take more than a gigabyte. What calls may hold, and what allocators keep of
// it afterwards, is far less.
TEST_F(ControlTest, EmptySubMessagesAreNotParsed) {
  const double before = daemon_->Metric("cairn_process_anonymous_bytes");
  struct Case {
    const char* method;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"/cairn.v1.Store/OpenSpace", EmptyFields(2, 1'400'000)},  // specs
      {"/cairn.v1.Store/OpenSpace", EmptyFields(2, 16 << 20)},   // 32 MiB
      {"/cairn.v1.Store/Match", EmptyFields(4, 1'400'000)},      // slices
      {"/cairn.v1.Store/Match", EmptyFields(3, 1'400'000)},      // keys
      {"/cairn.v1.Store/Stats", EmptyFields(15, 1'400'000)},     // unknown fields
      {"/cairn.v1.Store/OpenSession", EmptyFields(1, 1'400'000)},
      {"/cairn.v1.Store/PutSideObject", EmptyFields(5, 1'400'000)},
      {"/cairn.v1.Admin/Verify", EmptyFields(15, 1'400'000)},
      {"/grpc.health.v1.Health/Check", EmptyFields(1, 1'400'000)},
  };
  for (const Case& one : cases) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        RawCalls calls(Channel(), one.method);
        for (int call = 0; call < 4; ++call) {
          const auto code = calls.Run(one.message).error_code();
          EXPECT_TRUE(code == grpc::StatusCode::INVALID_ARGUMENT ||
                      code == grpc::StatusCode::RESOURCE_EXHAUSTED)
              << one.method << " " << code;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(VictimWorks()) << one.method;
  }
  const double after = daemon_->Metric("cairn_process_anonymous_bytes");
  if (!kIsSanitized) {
    EXPECT_LT(after - before, 256.0 * kMiB);
  }
}

TEST_F(ControlTest, WhatIsNoMessageIsRefusedAsAnArgument) {
  for (const char* method : {"Store/Match", "Store/OpenSession", "Store/OpenSpace",
                             "Store/PutSideObject", "Admin/Verify", "Admin/ListBlocks"}) {
    RawCalls calls(Channel(), absl::StrCat("/cairn.v1.", method));
    for (const std::string& message :
         {std::string("\xff\xff\xff\xff"), std::string("\x0a\xff"), std::string("\x0b\x0c"),
          std::string("\x0a\x7f") + "short"}) {
      EXPECT_EQ(calls.Run(message).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    }
  }
  RawCalls unknown(Channel(), "/cairn.v1.Store/NoSuchCall");
  EXPECT_EQ(unknown.Run("").error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(ControlTest, CompressedMessagesAreNotUnpacked) {
  const double before = daemon_->Metric("cairn_process_anonymous_bytes");
  for (const char* method : {"Store/Match", "Store/PutSideObject"}) {
    RawCalls calls(Channel(), absl::StrCat("/cairn.v1.", method));
    const std::string message(128 * kMiB, '\0');
    EXPECT_FALSE(calls.Run(message, absl::Seconds(30), GRPC_COMPRESS_GZIP).ok());
  }
  EXPECT_TRUE(VictimWorks());
  if (!kIsSanitized) {
    EXPECT_LT(daemon_->Metric("cairn_process_anonymous_bytes") - before, 64.0 * kMiB);
  }
}

// Uploads that stop before their end, on many connections. Nobody else's session goes, memory stays
// within the budget, and comes back.
TEST_F(ControlTest, StalledUploadsCostNobodyASession) {
  const double before = daemon_->Metric("cairn_process_anonymous_bytes");
  std::vector<std::unique_ptr<RawClient>> victims;
  for (int i = 0; i < 8; ++i) {
    auto victim = RawClient::Open(daemon_->endpoint("control"));
    ASSERT_TRUE(victim.ok()) << victim.status();
    victims.push_back(*std::move(victim));
  }
  const double ended = daemon_->Metric("cairn_sessions_ended_total");
  {
    std::vector<std::unique_ptr<RawHttp2>> stallers;
    for (int i = 0; i < 16; ++i) {
      stallers.push_back(std::make_unique<RawHttp2>(daemon_->port("control")));
      // 2.9 MB of a message of 3 MB, 64 times.
      stallers.back()->StallUploads("/cairn.v1.Store/OpenSpace", 64, 2'900'000);
    }
    for (int i = 0; i < 40; ++i) {
      EXPECT_TRUE(VictimWorks());
      for (const auto& staller : stallers) staller->Pump();
      absl::SleepFor(absl::Milliseconds(50));
    }
    if (!kIsSanitized) {
      EXPECT_LT(daemon_->Metric("cairn_process_anonymous_bytes") - before, 512.0 * kMiB);
    }
    EXPECT_GT(daemon_->Metric("cairn_control_pushed_out_total"), 0);
  }
  EXPECT_EQ(daemon_->Metric("cairn_sessions_ended_total"), ended);
  for (const auto& victim : victims) EXPECT_TRUE(victim->OpenSpace(ToySpec("test")).ok());
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_control_held_bytes", 0, absl::Seconds(20)));
}

// A reader that takes nothing holds neither up: those who verify, nor gRPC's threads.
TEST_F(ControlTest, VerifyWaitsForNoReader) {
  std::vector<std::unique_ptr<RawHttp2>> readers;
  for (int i = 0; i < 20; ++i) {
    readers.push_back(std::make_unique<RawHttp2>(daemon_->port("control"), 0));
    readers.back()->Call("/cairn.v1.Admin/Verify", 1, "");
  }
  const absl::Time deadline = MonotonicNow() + absl::Seconds(10);
  grpc::Status status(grpc::StatusCode::UNAVAILABLE, "");
  // One at a time: ours may find another's at work.
  while (!status.ok() && MonotonicNow() < deadline) {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(2));
    const auto reader = victim_->admin().Verify(&context, v1::VerifyRequest());
    v1::VerifyProgress progress;
    while (reader->Read(&progress)) {
    }
    status = reader->Finish();
    EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(ControlTest, ReflectionTakesAFewThreads) {
  const double before = daemon_->Metric("cairn_process_threads_count");
  RawHttp2 first(daemon_->port("control")), second(daemon_->port("control"));
  for (RawHttp2* client : {&first, &second}) {
    client->StallUploads("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", 100, 5);
    for (int i = 0; i < 20; ++i) {
      absl::SleepFor(absl::Milliseconds(20));
      client->Pump();
    }
  }
  EXPECT_LT(daemon_->Metric("cairn_process_threads_count"), before + 16);
  EXPECT_GT(first.ended_streams() + second.ended_streams(), 150) << "the rest is refused";
}

// Whoever takes the last descriptor: the ports answer again once there are some.
TEST_F(ControlTest, OutOfDescriptorsItTurnsClientsAwayAndThenGoesOn) {
  EXPECT_THAT(daemon_->HttpGet("/readyz"), ::testing::StartsWith("HTTP/1.1 200 "));
  rlimit before{};
  ASSERT_EQ(::prlimit(daemon_->process().pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(daemon_->Metric("cairn_process_files_count")) + 24;
  ASSERT_EQ(::prlimit(daemon_->process().pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  const auto turned_away = [this] {
    return daemon_->Metric("cairn_control_connections_total{outcome=\"out_of_files\"");
  };
  // Where another thread takes the last descriptor each time, peers wait and none is turned away.
  for (int tries = 0; tries < 10 && turned_away() == 0; ++tries) {
    std::vector<Fd> connections;
    for (int i = 0; i < 60; ++i) connections.push_back(ConnectTcp(daemon_->port("control")));
    EXPECT_TRUE(WaitFor(
        [&] {
          EXPECT_TRUE(VictimWorks());
          return !absl::StartsWith(daemon_->HttpGet("/readyz"), "HTTP/1.1 200 ");
        },
        absl::Seconds(10), absl::Milliseconds(100)));
  }
  EXPECT_TRUE(WaitFor([&] { return RawClient::Open(daemon_->endpoint("control")).ok(); },
                      absl::Seconds(10), absl::Milliseconds(50)));
  EXPECT_TRUE(
      WaitFor([&] { return absl::StartsWith(daemon_->HttpGet("/readyz"), "HTTP/1.1 200 "); },
              absl::Seconds(10), absl::Milliseconds(50)));
  EXPECT_GT(turned_away(), 0);
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_sessions", 1, absl::Seconds(10)));
}

// Those who say nothing make room for others, and nobody else notices.
TEST_F(ControlTest, SilentConnectionsKeepNobodyOut) {
  std::vector<Fd> connections;
  for (int i = 0; i < 1400; ++i) connections.push_back(ConnectTcp(daemon_->port("control")));
  EXPECT_TRUE(WaitFor(
      [&] {
        return daemon_->Metric("cairn_control_connections_total{outcome=\"gave_way_silent\"") >
               1000;
      },
      absl::Seconds(10), absl::Milliseconds(50)));
  EXPECT_TRUE(VictimWorks());
  EXPECT_LT(daemon_->Metric("cairn_process_files_count"), 1000);
  EXPECT_THAT(daemon_->HttpGet("/readyz"), ::testing::StartsWith("HTTP/1.1 200 "));
  EXPECT_TRUE(RawClient::Open(daemon_->endpoint("control")).ok()) << "a new client gets in";
  connections.clear();
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_sessions", 1, absl::Seconds(10)));
}

}  // namespace
}  // namespace cairn
