// SPDX-License-Identifier: Apache-2.0
#pragma once
// Adds the caller's own trace (from OpenTelemetry or a gateway) to requests. cairnd logs each slow
// request with its trace id and the time of each step. So you can find the slow get of a trace in
// the daemon's log.
//
//   const absl::StatusOr<Traceparent> trace = ParseTraceparent(header);  // "00-4bf92f…-01"
//   const TraceScope scope(trace.value_or(Traceparent()));
//   space.Get(…);
//
// Thread-safety: each thread has its own trace. Puts and gets of the thread carry the trace in
// their frames. Its control calls carry the trace as gRPC metadata, which proxies can read.

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
