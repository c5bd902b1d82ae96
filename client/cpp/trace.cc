// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/trace.h"

namespace cairn {
namespace {

thread_local Traceparent current_trace;

}  // namespace

const Traceparent& CurrentTrace() { return current_trace; }
void SetTrace(const Traceparent& trace) { current_trace = trace; }

}  // namespace cairn
