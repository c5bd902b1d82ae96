// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/ucx/ucx_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"

extern char** environ;

namespace cairn::transport {
namespace {

std::string PeerProgram() {
  std::array<char, 4096> path;
  const ssize_t bytes = readlink("/proc/self/exe", path.data(), path.size());
  CAIRN_CHECK(bytes > 0);
  const std::string self(path.data(), static_cast<size_t>(bytes));
  return self.substr(0, self.rfind('/') + 1) + "cairn_ucx_test_peer";
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

UcxProcess::UcxProcess(std::vector<std::string> arguments,
                       const std::vector<std::pair<std::string, std::string>>& environment,
                       const std::vector<std::string>& prefix) {
  std::array<int, 2> pipe_fds;
  CAIRN_CHECK(pipe2(pipe_fds.data(), O_CLOEXEC) == 0);
  out_ = Fd(pipe_fds[0]);
  const Fd child_end(pipe_fds[1]);
  arguments.insert(arguments.begin(), PeerProgram());
  arguments.insert(arguments.begin(), prefix.begin(), prefix.end());
  std::vector<std::string> variables;
  variables.reserve(environment.size());
  for (const auto& [name, value] : environment) variables.push_back(absl::StrCat(name, "=", value));
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, child_end.get(), STDOUT_FILENO);
  std::vector<char*> argument_pointers = Pointers(arguments);
  std::vector<char*> variable_pointers = Pointers(variables);
  const int error = posix_spawnp(&pid_, arguments[0].c_str(), &actions, nullptr,
                                 argument_pointers.data(), variable_pointers.data());
  posix_spawn_file_actions_destroy(&actions);
  CAIRN_CHECK(error == 0, arguments[0]);
}

UcxProcess::~UcxProcess() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::string UcxProcess::AwaitLine(absl::Duration within) {
  const absl::Time deadline = MonotonicNow() + within;
  for (;;) {  // ends at the deadline or with the process
    const size_t end = read_.find('\n');
    if (end != read_.npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      return line;
    }
    pollfd event{.fd = out_.get(), .events = POLLIN, .revents = 0};
    const int64_t wait_ms = absl::ToInt64Milliseconds(deadline - MonotonicNow());
    if (wait_ms <= 0 || poll(&event, 1, static_cast<int>(wait_ms)) <= 0) return "";
    std::array<char, 256> bytes;
    const ssize_t count = read(out_.get(), bytes.data(), bytes.size());
    if (count <= 0) return "";
    read_.append(bytes.data(), static_cast<size_t>(count));
  }
}

uint16_t UcxProcess::AwaitPort() {
  const std::string line = AwaitLine();
  if (line.rfind("port ", 0) != 0) return 0;
  uint16_t port = 0;
  std::from_chars(line.data() + 5, line.data() + line.size(), port);
  return port;
}

void UcxProcess::Signal(int signal) { CAIRN_CHECK(kill(pid_, signal) == 0); }

int UcxProcess::AwaitEnd(absl::Duration within) {
  const absl::Time deadline = MonotonicNow() + within;
  int status = -1;
  while (MonotonicNow() < deadline) {
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return status;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return -1;
}

}  // namespace cairn::transport
