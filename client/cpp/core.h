// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a Client and its Spaces share. Private to client/cpp.

#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/metric.h"
#include "client/cpp/breaker.h"
#include "client/cpp/control.h"
#include "client/cpp/data.h"
#include "client/cpp/options.h"

namespace cairn {

inline constexpr char kInsteadOfForking[] =
    "start workers with spawn, or connect only after the fork";

struct ClientCore {
  explicit ClientCore(const ConnectOptions& connect_options)
      : options(connect_options),
        breaker(connect_options.breaker, RealClock::Get()),
        data(connect_options) {}

  // The time by which a call that may take `timeout` must end. FailedPrecondition in a forked
  // child, whose copies of connections, threads and shared memory belong to the parent.
  absl::StatusOr<absl::Time> Begin(absl::Duration timeout, absl::Duration fallback) const {
    if (getpid() != pid) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the client belongs to process ", pid, ", which forked this one: ", kInsteadOfForking));
    }
    absl::StatusOr<absl::Duration> time = TimeoutOr(timeout, fallback);
    if (!time.ok()) {
      return time.status();
    }
    return MonotonicNow() + *time;
  }

  const ConnectOptions options;
  const pid_t pid = getpid();
  Breaker breaker;
  Counter gets, hits, misses, corrupt, late, puts, duplicates, get_bytes, put_bytes;
  // Destroyed first: the session ends, and with it what the daemon holds for it; then connections.
  DataPool data;
  std::unique_ptr<Control> control;
};

// What the breaker makes of a failure: only what costs the caller time, or shows that the store is
// not there, counts against it.
inline bool IsStoreFailure(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status);
}

}  // namespace cairn
