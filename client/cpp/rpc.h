// SPDX-License-Identifier: Apache-2.0
#pragma once
// gRPC code of client/cpp, and of daemons that are clients of each other (service/peer): channel
// settings, conversions of status and deadline, metadata, and a unary call.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "client/cpp/tls.h"
#include "client/cpp/trace.h"

namespace cairn {

// Checks GRPC_POLL_STRATEGY in the environment. Errors: FailedPrecondition if gRPC has no strategy
// of that name; gRPC would end the process. For example, only older releases have epollex and
// epollsig.
inline absl::Status CheckPollStrategy() {
  const char* const named = std::getenv("GRPC_POLL_STRATEGY");
  if (named == nullptr) return absl::OkStatus();
  for (const absl::string_view one : absl::StrSplit(named, ',')) {
    if (one == "all" || one == "epoll1" || one == "poll") return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the environment has GRPC_POLL_STRATEGY=", named,
                   ", with which gRPC would end the process; unset it, or set epoll1 or poll"));
}

// `files` is null without TLS. A call whose answer has more than `answer_bytes_max` bytes fails
// with ResourceExhausted.
inline absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(
    const std::string& address, const TlsOptions& tls, const transport::TlsFiles* files,
    int answer_bytes_max = kAnswerBytesMaxDefault) {
  CAIRN_RETURN_IF_ERROR(CheckPollStrategy());
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(answer_bytes_max);
  // Keepalive pings detect a daemon that neither answers nor disconnects. The session's heartbeats
  // come every 5 s, so pings are sent rarely enough for the daemon, which has gRPC's default limit
  // on pings.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  // Timeout of one connection attempt. It is long, because a busy host answers late. A port without
  // a listener still fails at once.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  // Clients of one process with the same daemon have separate sessions.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Connections to loopback and cluster addresses must not use a proxy from the environment.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto credentials = CredentialsFor(address, tls, files, &arguments);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

inline absl::Status FromGrpc(const grpc::Status& status) {
  // absl and gRPC use the same numbers for codes.
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

inline std::chrono::system_clock::time_point RpcDeadline(absl::Time deadline) {
  return std::chrono::system_clock::now() + absl::ToChronoMicroseconds(deadline - MonotonicNow());
}

// Sets the context's deadline and the caller's trace.
inline void SetUp(grpc::ClientContext& context, absl::Time deadline) {
  context.set_deadline(RpcDeadline(deadline));
  if (const std::string_view trace = CurrentTrace().text(); !trace.empty()) {
    context.AddMetadata("traceparent", std::string(trace));
  }
}

template <typename Stub, typename Request, typename Reply>
absl::StatusOr<Reply> RunRpc(Stub& stub,
                             grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                          Reply*),
                             const Request& request, absl::Time deadline) {
  grpc::ClientContext context;
  SetUp(context, deadline);
  Reply reply;
  const grpc::Status status = (stub.*method)(&context, request, &reply);
  if (!status.ok()) {
    return FromGrpc(status);
  }
  return reply;
}

}  // namespace cairn
