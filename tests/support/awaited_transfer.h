// SPDX-License-Identifier: Apache-2.0
#pragma once
// Waits for the completion of a transfer of a tier or an engine. The completion may run on any
// thread.

#include <atomic>
#include <utility>

#include "absl/status/status.h"
#include "base/check.h"
#include "tests/support/wait.h"

namespace cairn {

// Must exist until the transfer has completed.
struct AwaitedTransfer {
  // Returns the completion for the transfer.
  auto Done() {
    return [this](absl::Status result) {
      status = std::move(result);
      CAIRN_CHECK(!is_over.exchange(true), "completed twice");
    };
  }
  const absl::Status& Await() const {
    CAIRN_CHECK(WaitFor([this] { return is_over.load(); }), "never completed");
    return status;
  }

  absl::Status status;
  std::atomic<bool> is_over{false};
};

}  // namespace cairn
