// SPDX-License-Identifier: Apache-2.0
// What the SDK does when the wire lies, the daemon hangs or dies, or the process forks.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/cpp/dial.h"
#include "tests/e2e/client/client_fixture.h"
#include "tests/e2e/client/faulty_connection.h"
#include "tests/support/log_capture.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

using FailureTest = ClientTest;
INSTANTIATE_TEST_SUITE_P(Over, PlaneTest, testing::ValuesIn(Planes()), NameOfPlane);

// Stops a process for as long as it lives.
class Stopped {
 public:
  explicit Stopped(const ChildProcess& process) : process_(process) {
    process_.Signal(SIGSTOP);
    int status = 0;
    while (waitpid(process_.pid(), &status, WUNTRACED) != process_.pid() || !WIFSTOPPED(status)) {
    }
  }
  ~Stopped() { process_.Signal(SIGCONT); }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;

 private:
  const ChildProcess& process_;
};

TEST_P(PlaneTest, AFlippedBitIsAMissCountedAndLoggedOnce) {
  Fault fault;
  ConnectOptions options = Options();
  options.dialer =
      [&](const DialRequest& request) -> absl::StatusOr<std::unique_ptr<transport::Connection>> {
    auto real = DialTransport(request);
    if (!real.ok()) return real.status();
    return std::make_unique<FaultyConnection>(*std::move(real), &fault);
  };
  const auto client = Connect(options);
  const auto space = Open(client, ToyIdentity(codecs::DType::kBf16, Model()), "kivi:4");
  ASSERT_TRUE(client && space);
  const auto source = ToyValues(codecs::DType::kBf16, *space->SourceBytes({}), 5);
  const BlockKey key = space->DeriveChain(ToyTokens(1))[0];
  ASSERT_TRUE(space->Put({.key = key, .source = SourceBytes{source}}).ok());
  std::vector<std::byte> target(source.size());
  std::vector<std::byte> image(*space->ImageBytesMax({}));
  uint64_t corrupt = 0;
  for (const uint64_t bit : {5ULL, 8ULL * 40, 8ULL * 330, 8ULL * 2000, 8ULL * 9001 + 3}) {
    for (int form = 0; form < 3; ++form) {
      GetRequest get{.key = key, .decode = form == 1 ? Side::kDaemon : Side::kClient};
      if (form == 2) {
        get.target = ImageTarget{image};
      } else {
        get.target = SourceTarget{target};
      }
      const LogCapture log;
      fault = {.replies_to_spoil = 1, .bit = bit};
      const auto spoiled = space->Get(get);
      EXPECT_TRUE(absl::IsNotFound(spoiled.status())) << bit << " " << spoiled.status();
      EXPECT_EQ(client->counters().corrupt, ++corrupt);
      EXPECT_EQ(log.Count("failed verification"), 1);
      EXPECT_TRUE(space->Get(get).ok()) << "the next is fine";
      EXPECT_EQ(log.Lines().size(), 1);
    }
  }
  EXPECT_EQ(client->counters().misses, corrupt);
}

TEST_P(PlaneTest, AHungDaemonCostsADeadlineThenTheBreakerCostsNothing) {
  ConnectOptions options = Options();
  options.breaker.failures_to_open = 2;
  options.breaker.open_min = absl::Seconds(1);
  const auto client = Connect(options);
  const auto space = Open(client, ToyIdentity(codecs::DType::kBf16, Model()));
  ASSERT_TRUE(client && space);
  const auto source = ToyValues(codecs::DType::kBf16, *space->SourceBytes({}), 5);
  const auto keys = space->DeriveChain(ToyTokens(1));
  ASSERT_TRUE(space->Put({.key = keys[0], .source = SourceBytes{source}}).ok());

  auto stopped = std::make_unique<Stopped>(daemon_->process());
  std::vector<std::byte> target(source.size());
  absl::Time started = MonotonicNow();
  const auto late =
      space->Get({.key = keys[0], .target = SourceTarget{target}}, absl::Milliseconds(300));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
  EXPECT_LT(MonotonicNow() - started, absl::Milliseconds(800));
  started = MonotonicNow();
  const auto unmatched = space->Match({.keys = keys, .timeout = absl::Milliseconds(200)});
  EXPECT_FALSE(unmatched.ok());
  EXPECT_LT(MonotonicNow() - started, absl::Milliseconds(700));
  EXPECT_EQ(client->counters().breaker_state, Breaker::State::kOpen);

  started = MonotonicNow();
  const auto spared = space->Match({.keys = keys});
  ASSERT_TRUE(spared.ok());
  EXPECT_EQ(spared->block_count, 0);
  EXPECT_TRUE(spared->is_breaker_open);
  EXPECT_LT(MonotonicNow() - started, absl::Milliseconds(50));

  stopped.reset();
  const auto is_back = [&] {
    const auto match = space->Match({.keys = keys});
    return match.ok() && match->block_count == 1;
  };
  ASSERT_TRUE(WaitFor(is_back, absl::Seconds(20), absl::Milliseconds(20)));
  EXPECT_TRUE(space->Get({.key = keys[0], .target = SourceTarget{target}}).ok());
  EXPECT_EQ(target, source);
  EXPECT_EQ(client->counters().breaker_state, Breaker::State::kClosed);
  EXPECT_EQ(client->counters().late, 1);
}

TEST_F(FailureTest, AClientThatOnlyMatchesRecoversFromAStall) {
  ConnectOptions options = Options();
  options.breaker.failures_to_open = 2;
  options.breaker.open_min = absl::Milliseconds(200);
  const auto client = Connect(options);
  const auto space = Open(client, ToyIdentity(codecs::DType::kBf16, Model()));
  ASSERT_TRUE(client && space);
  const auto source = ToyValues(codecs::DType::kBf16, *space->SourceBytes({}), 5);
  const auto keys = space->DeriveChain(ToyTokens(1));
  ASSERT_TRUE(space->Put({.key = keys[0], .source = SourceBytes{source}}).ok());
  {
    const Stopped stopped(daemon_->process());
    for (int i = 0; i < 2; ++i) {
      EXPECT_FALSE(space->Match({.keys = keys, .timeout = absl::Milliseconds(100)}).ok());
    }
    EXPECT_EQ(client->counters().breaker_state, Breaker::State::kOpen);
  }
  const auto is_back = [&] {
    const auto match = space->Match({.keys = keys});
    return match.ok() && match->block_count == 1;
  };
  ASSERT_TRUE(WaitFor(is_back, absl::Seconds(20), absl::Milliseconds(20)));
  EXPECT_EQ(client->counters().breaker_state, Breaker::State::kClosed);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(is_back()) << i;
  }
}

TEST_F(FailureTest, AForkedChildIsRefused) {
  const auto client = Connect(Options());
  const auto space = Open(client, ToyIdentity(codecs::DType::kBf16, Model()));
  ASSERT_TRUE(client && space);
  const BlockKey key = space->DeriveChain(ToyTokens(1))[0];
  std::vector<std::byte> target(*space->SourceBytes({}));
  const pid_t child = fork();
  if (child == 0) {
    const bool is_refused =
        absl::IsFailedPrecondition(
            space->Get({.key = key, .target = SourceTarget{target}}).status()) &&
        absl::IsFailedPrecondition(client->GetStats().status()) &&
        absl::IsFailedPrecondition(space->Match({.keys = {&key, 1}}).status()) &&
        absl::IsFailedPrecondition(client->AllocateBuffer(4096).status()) &&
        absl::IsFailedPrecondition(Client::Connect(Options()).status());
    _exit(is_refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(client->GetStats().ok()) << "the parent goes on";
}

TEST_F(FailureTest, NobodyThereIsSaidAtOnce) {
  ConnectOptions options = Options();
  options.control = "127.0.0.1:1";
  const absl::Time started = MonotonicNow();
  const auto client = Client::Connect(options);
  EXPECT_TRUE(absl::IsUnavailable(client.status())) << client.status();
  EXPECT_THAT(std::string(client.status().message()), testing::HasSubstr("127.0.0.1:1"));
  EXPECT_LT(MonotonicNow() - started, absl::Seconds(2));
}

class RestartTest : public testing::TestWithParam<Plane> {};
INSTANTIATE_TEST_SUITE_P(Over, RestartTest, testing::ValuesIn(Planes()), NameOfPlane);

TEST_P(RestartTest, AKilledDaemonIsMissesThenTheClientGoesOnWithTheNextOne) {
  const bool is_ucx = GetParam() == Plane::kUcx;
  std::vector<std::string> flags;
  if (is_ucx) flags.emplace_back("--data=127.0.0.1:0");
  auto first = DaemonProcess::Start(flags);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string control = (*first)->endpoint("control");
  const std::string socket = (*first)->endpoint("socket");
  const std::string data = is_ucx ? (*first)->endpoint("data") : "";
  ConnectOptions options;
  options.control = control;
  options.data = is_ucx ? data : "unix:" + socket;
  options.timeout = kPatience;
  options.breaker.is_enforced = false;
  auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  auto space = (*client)->OpenSpace(ToyIdentity(codecs::DType::kBf16, "restart"), "raw");
  ASSERT_TRUE(space.ok()) << space.status();
  const auto source = ToyValues(codecs::DType::kBf16, *(*space)->SourceBytes({}), 5);
  const auto keys = (*space)->DeriveChain(ToyTokens(1));
  std::vector<std::byte> target(source.size());
  ASSERT_TRUE((*space)->Put({.key = keys[0], .source = SourceBytes{source}}).ok());

  (*first)->process().Signal(SIGKILL);
  ASSERT_TRUE((*first)->process().Wait(absl::Seconds(10)).ok());
  const absl::Time killed = MonotonicNow();
  const auto gone =
      (*space)->Get({.key = keys[0], .target = SourceTarget{target}}, absl::Milliseconds(300));
  EXPECT_TRUE(absl::IsUnavailable(gone.status()) || absl::IsDeadlineExceeded(gone.status()))
      << gone.status();
  EXPECT_LT(MonotonicNow() - killed, absl::Seconds(1));

  flags = {"--control=" + control, "--http=off", "--socket=" + socket, "--host-bytes=64MiB",
           "--log-level=error"};
  if (is_ucx) flags.push_back("--data=" + data);
  auto second = ChildProcess::Start(CAIRND_PATH, flags);
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_TRUE((*second)->ReadLine(absl::Seconds(60)).ok());
  absl::StatusOr<GetResult> got;
  const absl::Time deadline = MonotonicNow() + absl::Seconds(20);
  do {  // until the session is back
    got = (*space)->Get({.key = keys[0], .target = SourceTarget{target}});
  } while (!absl::IsNotFound(got.status()) && MonotonicNow() < deadline);
  EXPECT_TRUE(absl::IsNotFound(got.status())) << "memory is gone: " << got.status();
  const auto put = (*space)->Put({.key = keys[0], .source = SourceBytes{source}});
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_FALSE(put->is_duplicate);
  ASSERT_TRUE((*space)->Get({.key = keys[0], .target = SourceTarget{target}}).ok());
  EXPECT_EQ(target, source);
  EXPECT_GE((*client)->counters().reconnects, 1);
}

}  // namespace
}  // namespace cairn
