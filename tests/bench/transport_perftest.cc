// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/transport_perftest.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/free_port.h"

extern char** environ;

namespace cairn::bench {
namespace {

// Looked up in /proc, since a trial connection would be the server's only client.
bool IsListening(int port) {
  std::array<char, 16> wanted;
  std::snprintf(wanted.data(), wanted.size(), ":%04X", port);
  for (const char* const path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state;
      fields >> number >> local >> remote >> state;
      if (state == "0A" && local.ends_with(wanted.data())) return true;
    }
  }
  return false;
}

pid_t Spawn(std::vector<std::string> arguments, int out) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (out >= 0) {
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  }
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? pid : -1;
}

void End(pid_t pid) {
  if (pid <= 0) return;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

// The last line of the CSV that `-f -v` prints; its sixth field is MB (2^20) per second overall.
std::optional<double> ParseBandwidth(const std::string& text) {
  std::istringstream lines(text);
  std::string line, last;
  while (std::getline(lines, line)) {
    if (!line.empty()) last = line;
  }
  std::istringstream fields(last);
  std::string field;
  for (int i = 0; i < 6; ++i) {
    if (!std::getline(fields, field, ',')) return std::nullopt;
  }
  const double mib_per_s = std::strtod(field.c_str(), nullptr);
  return mib_per_s > 0 ? std::optional<double>(mib_per_s * 1024 * 1024) : std::nullopt;
}

}  // namespace

std::optional<double> RunPerftest(size_t bytes, size_t messages, int depth) {
  setenv("UCX_TLS", "tcp,self", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
  const std::string port = std::to_string(FreePort());
  const pid_t server = Spawn({"ucx_perftest", "-p", port}, -1);
  if (server < 0) return std::nullopt;
  for (int i = 0; i < 500 && !IsListening(std::stoi(port)); ++i) {
    if (waitpid(server, nullptr, WNOHANG) == server) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    End(server);
    return std::nullopt;
  }
  const pid_t client = Spawn({"ucx_perftest", "127.0.0.1", "-p", port, "-t", "ucp_am_bw", "-s",
                              std::to_string(bytes), "-n", std::to_string(messages), "-w",
                              std::to_string(2 * depth), "-O", std::to_string(depth), "-f", "-v"},
                             ends[1]);
  close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t count = 0; (count = read(ends[0], buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(count));
  }
  close(ends[0]);
  if (client > 0) waitpid(client, nullptr, 0);
  End(server);
  return ParseBandwidth(text);
}

}  // namespace cairn::bench
