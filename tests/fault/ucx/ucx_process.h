// SPDX-License-Identifier: Apache-2.0
#pragma once
// A UCX daemon or client in a process of its own (ucx_peer_main.cc), to be stopped and killed.

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/file.h"

namespace cairn::transport {

// Killed and waited for when destroyed. Thread-safety: Thread-compatible.
class UcxProcess {
 public:
  // Runs cairn_ucx_test_peer, which lies beside this program, with `environment` added to ours, by
  // the command `prefix` if there is one.
  explicit UcxProcess(std::vector<std::string> arguments,
                      const std::vector<std::pair<std::string, std::string>>& environment = {},
                      const std::vector<std::string>& prefix = {});
  ~UcxProcess();
  UcxProcess(const UcxProcess&) = delete;

  // "port N" of a daemon; 0 when it ended before.
  uint16_t AwaitPort();
  // The next line it writes; empty when it ended or `within` passed.
  std::string AwaitLine(absl::Duration within = absl::Seconds(20));
  void Signal(int signal);
  // Until it has ended: the wait status; -1 when it has not.
  int AwaitEnd(absl::Duration within);
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  Fd out_;
  std::string read_;
};

}  // namespace cairn::transport
