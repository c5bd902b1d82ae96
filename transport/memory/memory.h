// SPDX-License-Identifier: Apache-2.0
#pragma once
// A transport within one process, for tests: the lanes of transport/local over socket pairs, with
// addresses where that has places in a memfd. Bytes are moved by the lane's thread, as between
// processes.
//
//   auto server = StartMemoryServer(limits, handler);
//   auto connection = server->Connect(hello, deadline);

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/frame.h"
#include "transport/transport.h"

namespace cairn::transport {

// Thread-safety: Thread-safe.
class MemoryServer : public Server {
 public:
  // A connection to the next lane in turn, its hello answered. It may outlive the server, which
  // breaks it. Errors: those of Shake(); ResourceExhausted when there are peers_max.
  virtual absl::StatusOr<std::unique_ptr<Connection>> Connect(
      const proto::Frame& hello, absl::Time deadline, proto::HelloReply* reply = nullptr) = 0;
};

// `handler` must outlive the server. REQUIRES: 1 <= limits.lanes <= 64.
std::unique_ptr<MemoryServer> StartMemoryServer(const ServerLimits& limits, LaneHandler& handler);

}  // namespace cairn::transport
