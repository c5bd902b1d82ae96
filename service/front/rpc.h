// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the gRPC services share. Pure functions, thread-safe.

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "service/front/call_metrics.h"
#include "service/limits.h"

namespace cairn {

// The codes are the same numbers on both sides.
inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

// When the call has to be over: the client's deadline, a minute from now at most, whether it set
// one or not.
inline absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const absl::Duration longest = absl::Milliseconds(limits::kDeadlineMsMax);
  const auto deadline = context.deadline();
  absl::Duration left = longest;
  if (deadline != std::chrono::system_clock::time_point::max()) {
    left = std::min(longest, absl::FromChrono(deadline - std::chrono::system_clock::now()));
  }
  return MonotonicNow() + left;
}

// Answers a unary call in place by what `step` returns.
template <typename Step>
grpc::ServerUnaryReactor* AnswerNow(grpc::CallbackServerContext* context, CallMetrics& calls,
                                    Call call, Step&& step) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status status = step();
  calls.Count(call, status);
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace cairn
