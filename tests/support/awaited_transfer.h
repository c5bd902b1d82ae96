// SPDX-License-Identifier: Apache-2.0
#pragma once
// A transfer of a tier or of an engine, and its end, which comes once and on any thread.

#include <atomic>
#include <utility>

#include "absl/status/status.h"
#include "base/check.h"
#include "tests/support/wait.h"

namespace cairn {

// Lives until the transfer is over.
struct AwaitedTransfer {
  // What the transfer is to call.
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
