// SPDX-License-Identifier: Apache-2.0
#pragma once
// The server of transport/stream: the data plane over TLS 1.3 (docs/internals/transport-stream.md).
//

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/tls/handshakes.h"
#include "transport/transport.h"

namespace cairn::transport {

struct StreamServerOptions {
  std::string host;   // an address or a name of this host; "0.0.0.0" and "::" are all addresses
  uint16_t port = 0;  // 0 picks one
  ServerLimits limits = {};
  // For tests: sees each connection before its lane does.
  std::function<void(TlsArrival&)> on_arrival = {};
};

// Starts the server. `handshakes` and `handler` must outlive it. address() is "tls:HOST:PORT".
// Errors: Unavailable if the address cannot be bound; InvalidArgument for a bad number of lanes.
absl::StatusOr<std::unique_ptr<Server>> StartStreamServer(const StreamServerOptions& options,
                                                          Handshakes& handshakes,
                                                          LaneHandler& handler);

}  // namespace cairn::transport
