// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/transport/peer.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "tests/conformance/transport/test_daemon.h"
#include "tests/conformance/transport/transport_under_test.h"

extern char** environ;

namespace cairn::transport {
namespace {

constexpr size_t kPutBytes = 8 << 20;
constexpr size_t kStopBytes = 32 << 20;
constexpr size_t kGetBytes = 32 << 20;

void SayBegun() { CAIRN_CHECK(write(STDOUT_FILENO, "begun\n", 6) == 6); }

int Stop(Connection& connection) {
  const std::vector<std::byte> bytes = Pattern(kStopBytes, 1);
  Call call;
  call.payload = bytes;
  call.deadline = MonotonicNow() + absl::Seconds(60);
  call.request = proto::Serialize(PutFrame(1, KeyOf(1), bytes));
  if (!connection.Start(&call).ok()) {
    return 1;
  }
  SayBegun();
  raise(SIGSTOP);
  Await(connection, call);
  return call.status.ok() ? 0 : 1;
}

int Repeat(Connection& connection, bool puts) {
  constexpr size_t kDepth = 4;
  const std::vector<std::byte> bytes = Pattern(kPutBytes, 1);
  const proto::Frame put = PutFrame(0, KeyOf(2), bytes);
  std::vector<std::vector<std::byte>> targets(kDepth);
  std::vector<Call> calls(kDepth);
  for (uint64_t seq = 0;; ++seq) {  // ends: when the daemon or somebody's signal ends it
    Call& call = calls[seq % kDepth];
    if (seq >= kDepth) {
      Await(connection, call);
      if (!call.status.ok()) {
        return 1;
      }
    }
    call = Call();
    call.deadline = MonotonicNow() + absl::Seconds(60);
    if (puts) {
      proto::Frame frame = put;
      frame.seq = seq;
      call.payload = bytes;
      call.request = proto::Serialize(frame);
    } else {
      targets[seq % kDepth].resize(kGetBytes);
      call.target = targets[seq % kDepth];
      call.request = proto::Serialize(GetFrame(seq, KeyOf(1), kGetBytes));
    }
    if (!connection.Start(&call).ok()) {
      return 1;
    }
    if (seq == 0) {
      SayBegun();
    }
  }
}

}  // namespace

int RunPeer(const std::string& address, std::string_view what) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no orphans when a test fails
  const auto transport = MakeTransport();
  auto connection = transport->ConnectTo(address, HelloFrame(), MonotonicNow() + absl::Seconds(10));
  if (!connection.ok()) {
    std::fprintf(stderr, "peer: %s\n", connection.status().ToString().c_str());
    return 2;
  }
  return what == "stop" ? Stop(**connection) : Repeat(**connection, what == "put");
}

PeerProcess::PeerProcess(const std::string& address, const std::string& what) {
  int ends[2] = {-1, -1};
  CAIRN_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  out_.Reset(ends[0]);
  const Fd in(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.get(), STDOUT_FILENO);
  std::string program = "/proc/self/exe", flag = "--peer", target = address, command = what;
  char* arguments[] = {program.data(), flag.data(), target.data(), command.data(), nullptr};
  CAIRN_CHECK(posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
}

PeerProcess::~PeerProcess() {
  kill(pid_, SIGKILL);
  int ignored = 0;
  waitpid(pid_, &ignored, 0);
}

bool PeerProcess::AwaitBegun() {
  char line[6];
  return read(out_.get(), line, sizeof(line)) == sizeof(line);
}

void PeerProcess::Signal(int signal) { CAIRN_CHECK(kill(pid_, signal) == 0); }

void PeerProcess::AwaitStopped() {
  int status = 0;
  CAIRN_CHECK(waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status));
}

}  // namespace cairn::transport
