// SPDX-License-Identifier: Apache-2.0
#pragma once
// The engine over io_uring: one thread, "io-ring", begins pieces and reaps their ends, so that no
// thread waits in the kernel for a drive.

#include <memory>

#include "absl/status/statusor.h"
#include "service/tier/ssd/io_engine.h"

namespace cairn {

// FailedPrecondition with the reason where the system does not let us have it: a seccomp profile of
// a container, a sysctl, an old kernel, a build without liburing.
absl::StatusOr<std::unique_ptr<IoEngine>> MakeUringEngine(const IoLimits& limits);

}  // namespace cairn
