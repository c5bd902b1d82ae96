// SPDX-License-Identifier: Apache-2.0
#pragma once
// The trace that a request belongs to, of the caller's own tracing (OpenTelemetry, a gateway).
// cairnd names it where it logs a slow request: a get that the trace shows as long is found in the
// daemon's log, with the time of each step.
//
//   const absl::StatusOr<Traceparent> trace = ParseTraceparent(header);  // "00-4bf92f…-01"
//   const TraceScope scope(trace.value_or(Traceparent()));
//   space.Get(…);
//
// Thread-safety: of the calling thread. What it begins carries the trace: puts and gets in their
// frames, control calls as metadata, which proxies on the way see, too.

#include "proto/traceparent.h"

namespace cairn {

using proto::ParseTraceparent;
using proto::Traceparent;

// Of this thread.
const Traceparent& CurrentTrace();
void SetTrace(const Traceparent& trace);

class TraceScope {
 public:
  explicit TraceScope(const Traceparent& trace) : before_(CurrentTrace()) { SetTrace(trace); }
  ~TraceScope() { SetTrace(before_); }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  const Traceparent before_;
};

}  // namespace cairn
