// SPDX-License-Identifier: Apache-2.0
#pragma once
// A real cairnd, and other programs of ours, as child processes of a test. Everything listens on
// loopback or in a folder of the test's own. Thread-safety: Thread-compatible.

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file.h"

namespace cairn {

// A program with its stdout in our hands; killed when destroyed.
class ChildProcess {
 public:
  // `arguments` without the program. stderr goes to `log_path`, or to ours where that is empty.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::string& program, const std::vector<std::string>& arguments,
      const std::string& log_path = "");
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // The next line of stdout. DeadlineExceeded, or Unavailable when it has closed.
  absl::StatusOr<std::string> ReadLine(absl::Duration timeout);
  void Signal(int signal) const;
  // The exit code, or 128 + signal. DeadlineExceeded while it runs.
  absl::StatusOr<int> Wait(absl::Duration timeout);
  bool is_running();

 private:
  ChildProcess() = default;
  pid_t pid_ = -1;
  int wait_status_ = 0;
  bool is_over_ = false;
  Fd output_;
  std::string unread_;
};

// One sample of a scrape: name{labels} -> value.
using Scrape = std::map<std::string, double>;

class DaemonProcess {
 public:
  // control and http on ephemeral ports, the socket in a folder of its own; `flags` come on top.
  static absl::StatusOr<std::unique_ptr<DaemonProcess>> Start(std::vector<std::string> flags = {});
  // One that answers probes and may still be starting; AwaitReady() before all that needs more.
  static absl::StatusOr<std::unique_ptr<DaemonProcess>> Launch(std::vector<std::string> flags);
  absl::Status AwaitReady(absl::Duration timeout = absl::Seconds(60));
  ~DaemonProcess();

  ChildProcess& process() { return *process_; }
  const std::string& ready_line() const { return ready_line_; }
  // Of the readiness line: "control", "http", "socket", "data".
  const std::string& endpoint(const std::string& name) const { return endpoints_.at(name); }
  uint16_t port(const std::string& name) const;
  std::string ReadLog() const;
  const std::string& folder() const { return folder_; }

  // "HTTP/1.1 200 OK…", or the error as text.
  std::string HttpGet(const std::string& path) const;
  Scrape Metrics() const;
  // Sum of the samples of a name, or of the series that start with `name{label=…`.
  double Metric(const std::string& prefix) const;
  // Whether `prefix` gets to `value` within `timeout`.
  bool AwaitMetric(const std::string& prefix, double value, absl::Duration timeout) const;

 private:
  DaemonProcess() = default;
  static absl::StatusOr<std::unique_ptr<DaemonProcess>> Spawn(std::vector<std::string> flags);
  void TakeEndpoints(std::string_view line);

  std::string folder_, ready_line_;
  std::map<std::string, std::string> endpoints_;
  std::unique_ptr<ChildProcess> process_;
};

// A connected TCP socket on loopback; CAIRN_CHECKs.
Fd ConnectTcp(uint16_t port);
// One that listens on a port of the kernel's choice; CAIRN_CHECKs.
Fd ListenTcp(uint16_t* port);

}  // namespace cairn
