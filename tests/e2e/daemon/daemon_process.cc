// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/daemon/daemon_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status.h"
#include "tests/support/wait.h"

namespace cairn {

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::string& program, const std::vector<std::string>& arguments,
    const std::string& log_path) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return absl::UnavailableError("no pipe");
  Fd read_end(ends[0]);
  const Fd write_end(ends[1]);
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) return absl::UnavailableError("no fork");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(write_end.get(), STDOUT_FILENO);
    if (!log_path.empty()) {
      const int log = ::open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      ::dup2(log, STDERR_FILENO);
    }
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  auto child = std::unique_ptr<ChildProcess>(new ChildProcess());
  child->pid_ = pid;
  child->output_ = std::move(read_end);
  return child;
}

ChildProcess::~ChildProcess() {
  if (!is_running()) return;
  Signal(SIGKILL);
  (void)Wait(absl::Seconds(10));
}

absl::StatusOr<std::string> ChildProcess::ReadLine(absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  while (true) {  // ends: the deadline, or the end of the stream
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("no line came");
    pollfd polled{output_.get(), POLLIN, 0};
    if (::poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) <= 0) continue;
    char bytes[4096];
    const ssize_t count = ::read(output_.get(), bytes, sizeof bytes);
    if (count == 0) return absl::UnavailableError("it has closed its output");
    if (count > 0) unread_.append(bytes, static_cast<size_t>(count));
  }
}

void ChildProcess::Signal(int signal) const { ::kill(pid_, signal); }

absl::StatusOr<int> ChildProcess::Wait(absl::Duration timeout) {
  if (!WaitFor([this] { return !is_running(); }, timeout, absl::Milliseconds(2))) {
    return absl::DeadlineExceededError("it still runs");
  }
  return WIFSIGNALED(wait_status_) ? 128 + WTERMSIG(wait_status_) : WEXITSTATUS(wait_status_);
}

bool ChildProcess::is_running() {
  if (!is_over_ && ::waitpid(pid_, &wait_status_, WNOHANG) == pid_) is_over_ = true;
  return !is_over_;
}

absl::StatusOr<std::unique_ptr<DaemonProcess>> DaemonProcess::Start(
    std::vector<std::string> flags) {
  CAIRN_ASSIGN_OR_RETURN(auto daemon, Spawn(std::move(flags)));
  CAIRN_RETURN_IF_ERROR(daemon->AwaitReady());
  return daemon;
}

absl::StatusOr<std::unique_ptr<DaemonProcess>> DaemonProcess::Launch(
    std::vector<std::string> flags) {
  CAIRN_ASSIGN_OR_RETURN(auto daemon, Spawn(std::move(flags)));
  const bool answers = WaitFor([&] {
    const std::string log = daemon->ReadLog();
    const size_t line = log.find("starting: probes are answered");
    const size_t end = log.find('\n', line);
    if (line == std::string::npos || end == std::string::npos) return false;
    daemon->TakeEndpoints(std::string_view(log).substr(line, end - line));
    return true;
  });
  if (!answers) return absl::UnavailableError(daemon->ReadLog());
  return daemon;
}

absl::StatusOr<std::unique_ptr<DaemonProcess>> DaemonProcess::Spawn(
    std::vector<std::string> flags) {
  auto daemon = std::unique_ptr<DaemonProcess>(new DaemonProcess());
  std::string folder = (std::filesystem::temp_directory_path() / "cairn-e2e-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return absl::UnavailableError("no temporary folder");
  daemon->folder_ = folder;
  std::vector<std::string> arguments = {"--http=127.0.0.1:0"};
  const auto has = [&flags](const std::string& name) {
    for (const std::string& flag : flags) {
      if (flag.starts_with(name)) return true;
    }
    return false;
  };
  if (!has("--socket")) arguments.push_back(absl::StrCat("--socket=", folder, "/cairnd.sock"));
  if (!has("--control")) arguments.emplace_back("--control=127.0.0.1:0");
  if (!has("--host-bytes")) arguments.emplace_back("--host-bytes=64MiB");
  for (std::string& flag : flags) arguments.push_back(std::move(flag));
  CAIRN_ASSIGN_OR_RETURN(daemon->process_,
                         ChildProcess::Start(CAIRND_PATH, arguments, folder + "/log"));
  return daemon;
}

absl::Status DaemonProcess::AwaitReady(absl::Duration timeout) {
  auto line = process_->ReadLine(timeout);
  if (!line.ok()) return Annotate(line.status(), absl::StrCat("cairnd: ", ReadLog()));
  ready_line_ = *line;
  TakeEndpoints(ready_line_);
  return absl::OkStatus();
}

void DaemonProcess::TakeEndpoints(std::string_view line) {
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(ToAbsl(line), ' '))) {
    const size_t equals = word.find('=');
    if (equals != std::string::npos) {
      endpoints_[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
}

DaemonProcess::~DaemonProcess() {
  process_.reset();
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

uint16_t DaemonProcess::port(const std::string& name) const {
  const std::string& address = endpoint(name);
  int port = 0;
  CAIRN_CHECK(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  return static_cast<uint16_t>(port);
}

std::string DaemonProcess::ReadLog() const {
  std::ifstream file(folder_ + "/log");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string DaemonProcess::HttpGet(const std::string& path) const {
  const Fd fd = ConnectTcp(port("http"));
  const timeval limit{10, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n");
  (void)::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string reply;
  char bytes[65536];
  ssize_t count = 0;
  while ((count = ::recv(fd.get(), bytes, sizeof bytes, 0)) > 0)
    reply.append(bytes, static_cast<size_t>(count));
  return reply;
}

Scrape DaemonProcess::Metrics() const {
  Scrape scrape;
  const std::string reply = HttpGet("/metrics");
  for (const absl::string_view line : absl::StrSplit(reply, '\n')) {
    const size_t space = line.rfind(' ');
    double value = 0;
    if (line.empty() || line[0] == '#' || space == absl::string_view::npos) continue;
    if (line.substr(0, 6) == "cairn_" && absl::SimpleAtod(line.substr(space + 1), &value)) {
      scrape[std::string(line.substr(0, space))] = value;
    }
  }
  return scrape;
}

double DaemonProcess::Metric(const std::string& prefix) const {
  const bool is_whole_name = prefix.find('{') == std::string::npos;
  double sum = 0;
  for (const auto& [series, value] : Metrics()) {
    if (series.starts_with(prefix) &&
        (!is_whole_name || series.size() == prefix.size() || series[prefix.size()] == '{')) {
      sum += value;
    }
  }
  return sum;
}

bool DaemonProcess::AwaitMetric(const std::string& prefix, double value,
                                absl::Duration timeout) const {
  return WaitFor([&] { return Metric(prefix) == value; }, timeout, absl::Milliseconds(20));
}

Fd ConnectTcp(uint16_t port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CAIRN_CHECK(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0,
              std::strerror(errno));
  return fd;
}

Fd ListenTcp(uint16_t* port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  socklen_t bytes = sizeof address;
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CAIRN_CHECK(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), bytes) == 0 &&
                  ::listen(fd.get(), 64) == 0 &&
                  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &bytes) == 0,
              std::strerror(errno));
  *port = ntohs(address.sin_port);
  return fd;
}

}  // namespace cairn
