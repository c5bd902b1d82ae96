// SPDX-License-Identifier: Apache-2.0
#pragma once
// State shared by a Client and its Spaces. Private to client/cpp.

#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/metric.h"
#include "client/cpp/breaker.h"
#include "client/cpp/control.h"
#include "client/cpp/data.h"
#include "client/cpp/options.h"
#include "transport/tls/tls_files.h"

namespace cairn {

inline constexpr char kInsteadOfForking[] =
    "start workers with spawn, or connect only after the fork";

struct ClientCore {
  explicit ClientCore(const ConnectOptions& connect_options)
      : options(connect_options),
        breaker(connect_options.breaker, RealClock::Get()),
        data(connect_options) {}

  // Returns the deadline of a call with `timeout`. Errors: FailedPrecondition in a forked child,
  // whose copies of connections, threads and shared memory belong to the parent.
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
  // Members are destroyed in reverse order. So the session, and the state that the daemon keeps for
  // it, end before the connections.
  std::unique_ptr<transport::TlsFiles> tls;  // null: no TLS
  DataPool data;
  std::unique_ptr<Control> control;
};

// Returns whether the breaker counts a failure. It counts only failures that cost the caller time
// or show that the store is unreachable.
inline bool IsStoreFailure(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status);
}

}  // namespace cairn
