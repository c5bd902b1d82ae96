// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the daemon asks of the operating system, once at start, and what it reports of its own
// process.

#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "base/file.h"
#include "base/metric.h"
#include "base/mutex.h"

namespace cairn {

// Before any thread: as many open files as allowed, SIGHUP and SIGPIPE ignored, GRPC_POLL_STRATEGY
// and the variables UCX_… dropped but for UCX_LOG_LEVEL and UCX_MODULE_DIR, and UCX told to leave
// signals, memory hooks and stdout alone (it reads its environment when it is loaded, later).
void PrepareProcess();

// Blocks SIGTERM and SIGINT for this thread and all that it starts. Before any thread.
void BlockEndSignals();
// Waits for one of them and returns it, and calls `each_second` meanwhile. From then on the next
// one ends the process at once.
int AwaitEndSignal(const std::function<void()>& each_second);

// While it lives, a first such signal ends the process at once with exit code 0: what has not
// started has taken nothing that could be lost. REQUIRES: BlockEndSignals().
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

// Ends the process with kExitHung where it still lives after `limit`, once `say` has said why in
// the log. Nothing is torn down: whoever hangs keeps what it uses.
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

// Memory, descriptors and processor time of the process, from /proc.
void ReportProcess(MetricSink& sink);

}  // namespace cairn
