// SPDX-License-Identifier: Apache-2.0
#pragma once
// The server of transport/local: it listens on a unix socket, and its clients bring their own
// memory.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/transport.h"

namespace cairn::transport {

struct LocalServerOptions {
  std::string path;  // of the socket file; its folder must exist
  ServerLimits limits;
};

// Starts the server. `handler` must outlive it. Errors: those of SocketFile::Listen();
// InvalidArgument for limits.
absl::StatusOr<std::unique_ptr<Server>> StartLocalServer(const LocalServerOptions& options,
                                                         LaneHandler& handler);

}  // namespace cairn::transport
