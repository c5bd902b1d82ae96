// SPDX-License-Identifier: Apache-2.0
#pragma once
// Settings of the whole process, which are made once at start, and its metrics.

#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "base/file.h"
#include "base/metric.h"
#include "base/mutex.h"

namespace cairn {

// Raises the limit of open files, and ignores SIGHUP and SIGPIPE. Removes GRPC_POLL_STRATEGY and
// the UCX_… variables, except UCX_LOG_LEVEL and UCX_MODULE_DIR. Sets variables that keep UCX from
// using signals, memory hooks and stdout. (UCX reads its environment later, when it is loaded.)
// Sends the log lines of gRPC and Protobuf through Log(), which limits their rate: peers cause
// them. Call it before any thread starts.
void PrepareProcess();

// Blocks SIGTERM and SIGINT in this thread and in all threads that it starts. Call it before any
// thread starts.
void BlockEndSignals();
// Waits for one of these signals and returns it. Calls `each_second` once a second meanwhile. After
// the return, another such signal ends the process at once.
int AwaitEndSignal(const std::function<void()>& each_second);

// While it exists, SIGTERM or SIGINT ends the process at once with exit code 0. A daemon that is
// still starting has no data to lose. REQUIRES: BlockEndSignals() was called.
class EndsWhileStarting {
 public:
  EndsWhileStarting();
  ~EndsWhileStarting();
  EndsWhileStarting(const EndsWhileStarting&) = delete;
  EndsWhileStarting& operator=(const EndsWhileStarting&) = delete;

 private:
  void Run();

  Fd signals_, over_;
  std::thread thread_;
};

// Ends the process with kExitHung if it still runs after `limit`. First calls `say`, which logs the
// reason. Does not destroy objects, because hanging threads still use them.
inline constexpr int kExitHung = 3;
class EndsAnyway {
 public:
  EndsAnyway(absl::Duration limit, std::function<void()> say);
  ~EndsAnyway();
  EndsAnyway(const EndsAnyway&) = delete;
  EndsAnyway& operator=(const EndsAnyway&) = delete;

 private:
  Mutex mutex_;
  CondVar over_;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Reports memory, descriptors and CPU time of the process, from /proc.
void ReportProcess(MetricSink& sink);

}  // namespace cairn
