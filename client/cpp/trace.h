// SPDX-License-Identifier: Apache-2.0
#pragma once
// Adds the caller's own trace (OpenTelemetry, a gateway) to requests. cairnd logs slow requests
// with their trace id and the time of each step. So you can find a slow get of a trace in the
// daemon's log.
//
//   const absl::StatusOr<Traceparent> trace = ParseTraceparent(header);  // "00-4bf92f…-01"
//   const TraceScope scope(trace.value_or(Traceparent()));
//   space.Get(…);
//
// Thread-safety: each thread has its own trace. The thread's puts and gets carry it in their
// frames. Its control calls carry it as gRPC metadata, which proxies can read.

#include "proto/traceparent.h"

namespace cairn {

using proto::ParseTraceparent;
using proto::Traceparent;

// Returns the trace of the calling thread.
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
