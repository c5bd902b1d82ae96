// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a transport gives the conformance suite: one file that defines MakeTransport(), linked with
// the suite's sources, is a run of the whole suite.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/frame.h"
#include "transport/transport.h"

namespace cairn::transport {

class TransportUnderTest {
 public:
  virtual ~TransportUnderTest() = default;
  virtual absl::StatusOr<std::unique_ptr<Server>> StartServer(const ServerLimits& limits,
                                                              LaneHandler& handler) = 0;
  // Connects to a server that StartServer() made.
  virtual absl::StatusOr<std::unique_ptr<Connection>> Connect(Server& server,
                                                              const proto::Frame& hello,
                                                              absl::Time deadline) {
    return ConnectTo(server.address(), hello, deadline);
  }
  // Whether another process can connect, with ConnectTo().
  virtual bool crosses_processes() const = 0;
  // In another process: to Server::address() of the first one's server.
  virtual absl::StatusOr<std::unique_ptr<Connection>> ConnectTo(const std::string& address,
                                                                const proto::Frame& hello,
                                                                absl::Time deadline) = 0;
  // Bytes that the daemon's copies of payloads have no part in: a receive can be over without its
  // peer's help. (A local lane reads its peer's memory; other transports need the peer to send.)
  virtual bool moves_without_peer() const = 0;
  // Whether requests that may wait leave in one message.
  virtual bool has_batches() const = 0;
};

std::unique_ptr<TransportUnderTest> MakeTransport();

}  // namespace cairn::transport
