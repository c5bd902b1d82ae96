// SPDX-License-Identifier: Apache-2.0
#pragma once
// The trace that a request belongs to, of the caller's own tracing (OpenTelemetry, a gateway).
// cairnd names it where it logs a slow request: a get that the trace shows as long is found in the
// daemon's log, with the time of each step.
//
//   const absl::StatusOr<uint64_t> trace = ParseTraceparent(header);  // "00-4bf92f…4736-00f0…-01"
//   const TraceScope scope(trace.value_or(0));
//   space.Get(…);
//
// Thread-safety: of the calling thread. Puts and gets that it begins carry the trace.
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace cairn {

// The last 8 bytes of the trace id, which is what frames carry: never 0. InvalidArgument: not a
// traceparent of W3C Trace Context (section 3.2.2).
absl::StatusOr<uint64_t> ParseTraceparent(std::string_view traceparent);

// Of this thread; 0: none.
uint64_t CurrentTrace();
void SetTrace(uint64_t trace);

class TraceScope {
 public:
  explicit TraceScope(uint64_t trace) : before_(CurrentTrace()) { SetTrace(trace); }
  ~TraceScope() { SetTrace(before_); }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  const uint64_t before_;
};

}  // namespace cairn
