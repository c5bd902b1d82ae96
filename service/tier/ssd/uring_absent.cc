// SPDX-License-Identifier: Apache-2.0
// In place of uring_engine.cc where liburing is not found.
#include "service/tier/ssd/uring_engine.h"

namespace cairn {

absl::StatusOr<std::unique_ptr<IoEngine>> MakeUringEngine(const IoLimits&) {
  return absl::FailedPreconditionError("built without liburing");
}

}  // namespace cairn
