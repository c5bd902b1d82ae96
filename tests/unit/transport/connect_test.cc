// SPDX-License-Identifier: Apache-2.0
#include "transport/connect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/clock.h"
#include "tests/support/temp_dir.h"
#include "transport/handshake.h"
#include "transport/ucx_module.h"

namespace cairn::transport {
namespace {

TEST(ParseTarget, TellsTheTransport) {
  const auto local = ParseTarget("unix:/run/cairn/socket");
  ASSERT_TRUE(local.ok());
  EXPECT_EQ(local->kind, Target::Kind::kUnix);
  EXPECT_EQ(local->path, "/run/cairn/socket");
  EXPECT_EQ(ParseTarget("unix:a:b")->path, "a:b");

  const auto tcp = ParseTarget("10.0.0.1:7411");
  ASSERT_TRUE(tcp.ok());
  EXPECT_EQ(tcp->kind, Target::Kind::kTcp);
  EXPECT_EQ(tcp->host, "10.0.0.1");
  EXPECT_EQ(tcp->port, 7411);
  EXPECT_EQ(ParseTarget("[::1]:65535")->host, "::1");
  EXPECT_EQ(ParseTarget("node-3.cluster:1")->host, "node-3.cluster");
}

TEST(ParseTarget, GuessesNothing) {
  for (const char* text : {"", "unix:", "/run/cairn/socket", "host", "host:", ":7411", "host:0",
                           "host:65536", "host:-1", "host: 1", "host:1x", "::1:7411", "[]:1",
                           "tcp://host:1", "unix", "host:99999999999999999999"}) {
    const auto target = ParseTarget(text);
    EXPECT_EQ(target.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

proto::Frame Hello() {
  proto::Frame frame;
  frame.body = proto::Hello{1, 4, 0};
  return frame;
}

TEST(Connect, SaysThatNobodyListens) {
  const TempDir folder;
  const auto connection =
      Connect("unix:" + folder.File("none"), Hello(), {}, MonotonicNow() + absl::Seconds(5));
  EXPECT_EQ(connection.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(
      Connect("unix:" + std::string(200, 'x'), Hello(), {}, absl::InfiniteFuture()).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(Connect, NamesTheModuleItLookedFor) {
  ConnectOptions options;
  options.ucx_module = "/nowhere/libcairn_ucx.so";
  const auto connection =
      Connect("127.0.0.1:7411", Hello(), options, MonotonicNow() + absl::Seconds(5));
  EXPECT_EQ(connection.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(connection.status().message()),
              testing::HasSubstr("/nowhere/libcairn_ucx.so"));
}

// Takes nothing.
class DeafConnection final : public Connection {
 public:
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t) override { return Deaf(); }
  absl::Status Start(Call*) override { return Deaf(); }
  void Poll(absl::Time) override {}
  bool broken() const override { return false; }
  int window() const override { return 1; }

 private:
  static absl::Status Deaf() { return absl::UnavailableError("it takes nothing"); }
};

TEST(Shake, AHelloThatNoFrameCanSayIsAnAnswer) {
  DeafConnection connection;
  proto::Frame hello = Hello();
  EXPECT_EQ(Shake(connection, hello, MonotonicNow()).status().code(),
            absl::StatusCode::kUnavailable);
  hello.body = proto::Hello{.window = proto::kWindowMax + 1};
  const auto refused = Shake(connection, hello, MonotonicNow());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("hello.window"));
}

TEST(LoadUcxModule, RefusesALibraryThatIsNone) {
  const auto module = LoadUcxModule("libm.so.6");
  EXPECT_EQ(module.status().code(), absl::StatusCode::kFailedPrecondition);
}

// UCX answers some values of these with abort() as it is loaded, so it is not.
TEST(LoadUcxModule, RefusesVariablesByWhichUcxEndsTheProcess) {
  ASSERT_EQ(setenv("UCX_LOG_FILE_SIZE", "1", 1), 0);
  const auto module = LoadUcxModule("/nowhere/libcairn_ucx.so");
  unsetenv("UCX_LOG_FILE_SIZE");
  EXPECT_EQ(module.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(module.status().message()), testing::HasSubstr("UCX_LOG_FILE_SIZE"));
  ASSERT_EQ(setenv("UCX_LOG_FILE", "stderr", 1), 0);
  EXPECT_EQ(LoadUcxModule("/nowhere/libcairn_ucx.so").status().code(),
            absl::StatusCode::kUnavailable);
  unsetenv("UCX_LOG_FILE");
}

}  // namespace
}  // namespace cairn::transport
