// SPDX-License-Identifier: Apache-2.0
#pragma once
// The server of transport/local: it listens on a unix socket, and its clients bring their own
// memory.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "transport/transport.h"

namespace cairn::transport {

struct LocalServerOptions {
  std::string path;  // of the socket file; its folder must exist
  ServerLimits limits;
  // What clients may map: payloads of replies that lie there may be lent. Both outlive the server.
  std::span<const std::byte> shared = {};
  int shared_fd = -1;  // open to read alone, and sealed; -1: they map nothing
};

// Starts the server. `handler` must outlive it. Errors: those of SocketFile::Listen();
// InvalidArgument for limits; ResourceExhausted: no memory for the words of loans.
absl::StatusOr<std::unique_ptr<Server>> StartLocalServer(const LocalServerOptions& options,
                                                         LaneHandler& handler);

}  // namespace cairn::transport
