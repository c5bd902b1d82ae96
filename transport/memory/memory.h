// SPDX-License-Identifier: Apache-2.0
#pragma once
// A transport within one process, for tests. It uses the lanes of transport/local, connected by
// socket pairs. Messages have addresses instead of offsets in a memfd. The lane's thread copies
// the bytes, as it does between processes.
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
  // Connects to the next lane in turn, and returns once the hello is answered. The destructor of
  // the server breaks the connection, which may exist longer than the server. Errors: those of
  // Shake(), ResourceExhausted (there are peers_max connections).
  virtual absl::StatusOr<std::unique_ptr<Connection>> Connect(
      const proto::Frame& hello, absl::Time deadline, proto::HelloReply* reply = nullptr) = 0;
};

// Starts the server. `handler` must outlive it. REQUIRES: 1 <= limits.lanes <= 64.
std::unique_ptr<MemoryServer> StartMemoryServer(const ServerLimits& limits, LaneHandler& handler);

}  // namespace cairn::transport
