// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the daemon asks of the operating system, once at start, and what it reports of its own
// process.

#include <string>

#include "absl/status/status.h"
#include "base/metric.h"

namespace cairn {

// Before any thread: as many open files as allowed, SIGHUP and SIGPIPE ignored, UCX told to leave
// signals and memory hooks alone (it reads its environment when it is loaded, later).
void PrepareProcess();

// Blocks SIGTERM and SIGINT for this thread and all that it starts. Before any thread.
void BlockEndSignals();
// Waits for one of them and returns it. From then on the next one ends the process at once.
int AwaitEndSignal();

// Makes the folder of the socket, mode 0700, where it is missing. FailedPrecondition when a folder
// of /tmp is there but not ours alone: whoever owns it could put another socket in its place.
absl::Status MakeSocketFolder(const std::string& socket_path);

// Memory, descriptors and processor time of the process, from /proc.
void ReportProcess(MetricSink& sink);

}  // namespace cairn
