// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/io_engine.h"

#include "base/log.h"
#include "service/tier/ssd/thread_engine.h"
#include "service/tier/ssd/uring_engine.h"

namespace cairn {

absl::StatusOr<std::unique_ptr<IoEngine>> MakeIoEngine(IoChoice choice, const IoLimits& limits) {
  if (choice == IoChoice::kThreads) {
    return MakeThreadEngine(limits);
  }
  absl::StatusOr<std::unique_ptr<IoEngine>> uring = MakeUringEngine(limits);
  if (uring.ok() || choice == IoChoice::kUring) {
    return uring;
  }
  LogInfo("ssd", "io_uring is refused: using threads", {{"reason", uring.status().message()}});
  return MakeThreadEngine(limits);
}

}  // namespace cairn
