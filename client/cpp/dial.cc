// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/dial.h"

#include "transport/connect.h"

namespace cairn {

absl::StatusOr<std::unique_ptr<transport::Connection>> DialTransport(const DialRequest& request) {
  proto::Frame hello;
  hello.seq = kHelloSeq;
  hello.ticket = request.ticket;
  hello.deadline_ms = MillisecondsLeft(request.deadline);
  hello.body = proto::Hello{.window = request.window};
  transport::ConnectOptions options;
  options.region_bytes = request.region_bytes;
  options.tls = request.tls;
  options.tls_server = request.tls_server;
  return transport::Connect(request.address, hello, options, request.deadline);
}

}  // namespace cairn
