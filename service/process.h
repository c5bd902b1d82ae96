// SPDX-License-Identifier: Apache-2.0
#pragma once
// The daemon's process settings, made once at start, and the metrics of its own process.

#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "base/file.h"
#include "base/metric.h"
#include "base/mutex.h"

namespace cairn {

// Call it before any thread starts. Raises the limit of open files, ignores SIGHUP and SIGPIPE,
// removes GRPC_POLL_STRATEGY and the UCX_… variables except UCX_LOG_LEVEL and UCX_MODULE_DIR, and
// sets variables that keep UCX away from signals, memory hooks and stdout. (UCX reads its
// environment later, when it is loaded.)
void PrepareProcess();

// Blocks SIGTERM and SIGINT for this thread and all threads that it starts. Call it before any
// thread starts.
void BlockEndSignals();
// Waits for one of these signals and returns it; calls `each_second` meanwhile. A second signal
// then ends the process at once.
int AwaitEndSignal(const std::function<void()>& each_second);

// While it exists, such a signal ends the process at once with exit code 0: a daemon that is still
// starting has no data to lose. REQUIRES: BlockEndSignals().
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

// Ends the process with kExitHung if it still runs after `limit`; `say` logs the reason first. It
// tears nothing down, because the hanging threads still use everything.
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

// Reports memory, descriptors and processor time of the process, from /proc.
void ReportProcess(MetricSink& sink);

}  // namespace cairn
