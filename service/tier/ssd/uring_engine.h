// SPDX-License-Identifier: Apache-2.0
#pragma once
// The I/O engine over io_uring: one thread, "io-ring", begins pieces and reaps completions, so that
// no thread waits in the kernel for a drive.

#include <memory>

#include "absl/status/statusor.h"
#include "service/tier/ssd/io_engine.h"

namespace cairn {

// Errors: FailedPrecondition with the reason if the system refuses io_uring: a container's seccomp
// profile, a sysctl, an old kernel, or a build without liburing.
absl::StatusOr<std::unique_ptr<IoEngine>> MakeUringEngine(const IoLimits& limits);

}  // namespace cairn
