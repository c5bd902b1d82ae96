// SPDX-License-Identifier: Apache-2.0
#include "service/process.h"

#include <dirent.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "base/units.h"
#include "transport/ucx_module.h"

namespace cairn {
namespace {

sigset_t EndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Returns the number in a line like "Name:   123 kB", or 0 if there is no such line.
uint64_t KibOf(std::string_view status, std::string_view name) {
  const size_t begin = status.find(name);
  if (begin == std::string_view::npos) return 0;
  return std::strtoull(status.data() + begin + name.size(), nullptr, 10);
}

double OpenFiles() {
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  int count = 0;
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count - 3;  // ".", ".." and the descriptor of the folder
}

// The UCX variables that the daemon accepts. It removes all others, because they could end the
// process. So could a value of GRPC_POLL_STRATEGY that gRPC does not know any more.
constexpr std::string_view kUcxVariablesTaken[] = {"UCX_LOG_LEVEL", "UCX_MODULE_DIR"};
// Disable memory hooks and signal handlers. Keep stdout free for the ready line.
constexpr std::pair<const char*, const char*> kUcxVariablesSet[] = {
    {"UCX_MEM_EVENTS", "n"}, {"UCX_HANDLE_ERRORS", "none"}, {"UCX_LOG_FILE", "stderr"}};

constexpr char kGrpcPolls[] = "GRPC_POLL_STRATEGY";

void DropVariables() {
  std::vector<std::string> dropped = transport::UcxVariables();
  std::erase_if(dropped, [](const std::string& name) {
    return std::ranges::find(kUcxVariablesTaken, name) != std::end(kUcxVariablesTaken);
  });
  if (std::getenv(kGrpcPolls) != nullptr) dropped.emplace_back(kGrpcPolls);
  for (const auto& [name, value] : kUcxVariablesSet) {
    const char* const had = std::getenv(name);
    if (had != nullptr && std::string_view(had) == value) std::erase(dropped, name);
  }
  for (const std::string& name : dropped) ::unsetenv(name.c_str());
  for (const auto& [name, value] : kUcxVariablesSet) ::setenv(name, value, 1);
  if (!dropped.empty()) {
    LogInfo("daemon", "environment variables ignored",
            {{"variables", absl::StrJoin(dropped, ",")}});
  }
}

// What gRPC and Protobuf write is caused by peers in most cases: a string that is no UTF-8, say.
void LogOfGrpc(gpr_log_func_args* record) {
  LogWarn("grpc", "the library reports", {{"message", record->message}});
}
void LogOfProtobuf(google::protobuf::LogLevel /*level*/, const char* /*file*/, int /*line*/,
                   const std::string& message) {
  LogWarn("protobuf", "the library reports", {{"message", message}});
}

}  // namespace

void PrepareProcess() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  std::signal(SIGHUP, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  DropVariables();
  gpr_set_log_function(LogOfGrpc);
  google::protobuf::SetLogHandler(LogOfProtobuf);
}

void BlockEndSignals() {
  const sigset_t signals = EndSignals();
  CAIRN_CHECK(::pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
}

int AwaitEndSignal(const std::function<void()>& each_second) {
  const sigset_t signals = EndSignals();
  constexpr timespec kSecond{.tv_sec = 1, .tv_nsec = 0};
  int signal = -1;
  while (signal < 0) {  // until a signal comes
    signal = ::sigtimedwait(&signals, nullptr, &kSecond);
    CAIRN_CHECK(signal > 0 || errno == EAGAIN || errno == EINTR);
    if (signal < 0) each_second();
  }
  struct sigaction at_once {};
  at_once.sa_handler = [](int again) { ::_exit(128 + again); };
  ::sigaction(SIGTERM, &at_once, nullptr);
  ::sigaction(SIGINT, &at_once, nullptr);
  CAIRN_CHECK(::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr) == 0);
  return signal;
}

EndsWhileStarting::EndsWhileStarting() {
  const sigset_t signals = EndSignals();
  signals_.Reset(::signalfd(-1, &signals, SFD_CLOEXEC));
  over_.Reset(::eventfd(0, EFD_CLOEXEC));
  CAIRN_CHECK(signals_.is_valid() && over_.is_valid());
  thread_ = std::thread([this] { Run(); });
}

EndsWhileStarting::~EndsWhileStarting() {
  const uint64_t one = 1;
  CAIRN_CHECK(::write(over_.get(), &one, sizeof one) == sizeof one);
  thread_.join();
}

void EndsWhileStarting::Run() {
  ::pthread_setname_np(::pthread_self(), "start-signals");
  pollfd polled[] = {{over_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
  while (polled[0].revents == 0) {  // until the destructor runs
    if (::poll(polled, std::size(polled), -1) <= 0 || polled[1].revents == 0) continue;
    LogInfo("daemon", "asked to end while starting");
    ::_exit(0);
  }
}

EndsAnyway::EndsAnyway(absl::Duration limit, std::function<void()> say)
    : thread_([this, deadline = MonotonicNow() + limit, say = std::move(say)] {
        ::pthread_setname_np(::pthread_self(), "ends-anyway");
        {
          const MutexLock lock(mutex_);
          while (!is_over_) {  // until the deadline
            if (!over_.WaitUntil(mutex_, deadline)) break;
          }
          if (is_over_) return;
        }
        say();
        LogError("daemon", "ended without waiting for a hanging part", {{"exit_code", kExitHung}});
        ::_exit(kExitHung);
      }) {}

EndsAnyway::~EndsAnyway() {
  {
    const MutexLock lock(mutex_);
    is_over_ = true;
    over_.NotifyAll();
  }
  thread_.join();
}

void ReportProcess(MetricSink& sink) {
  if (const auto status = ReadFile("/proc/self/status", 64 * kKiB); status.ok()) {
    sink.AddGauge("cairn_process_anonymous_bytes",
                  "Resident anonymous memory of the daemon, including the arena unless clients map "
                  "it.",
                  {}, static_cast<double>(KibOf(*status, "RssAnon:") * kKiB));
    sink.AddGauge("cairn_process_shared_bytes",
                  "Resident shared memory: the accessed part of clients' regions, and the arena if "
                  "clients map it.",
                  {}, static_cast<double>(KibOf(*status, "RssShmem:") * kKiB));
    sink.AddGauge("cairn_process_threads_count", "Threads of the daemon.", {},
                  static_cast<double>(KibOf(*status, "Threads:")));
  }
  sink.AddGauge("cairn_process_files_count", "Open file descriptors.", {}, OpenFiles());
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    sink.AddGauge("cairn_process_cpu_seconds", "Processor time used since the start.", {},
                  seconds(usage.ru_utime) + seconds(usage.ru_stime));
  }
}

}  // namespace cairn
