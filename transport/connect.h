// SPDX-License-Identifier: Apache-2.0
#pragma once
// Connects a client to a daemon's data plane. The form of the target determines the transport:
//
//   unix:PATH       transport/local: the unix socket of a daemon on this host
//   tls:HOST:PORT   transport/stream: TLS
//   HOST:PORT       transport/ucx, through its module
//
// An IPv6 HOST stands in brackets.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/frame.h"
#include "transport/transport.h"

namespace cairn::transport {

class TlsFiles;

// A parsed target.
struct Target {
  enum class Kind { kUnix, kTcp, kTls };
  Kind kind = Kind::kUnix;
  std::string path;   // kUnix
  std::string host;   // kTcp and kTls, without brackets
  uint16_t port = 0;  // likewise
};
// Parses a target. Errors: InvalidArgument, with the three forms.
absl::StatusOr<Target> ParseTarget(std::string_view text);

struct ConnectOptions {
  // local: size of the memory that is shared with the daemon. It is allocated at once and keeps its
  // size.
  uint64_t region_bytes = uint64_t{64} << 20;
  bool maps = true;               // local: maps the daemon's memory if the daemon lends it
  std::string ucx_module;         // ucx: path of the module; empty: LoadUcxModule() searches for it
  const TlsFiles* tls = nullptr;  // stream: must outlive the call of Connect()
  // stream: the name in the daemon's certificate; empty: the host of the target
  std::string tls_server;
  std::string ucx_device;  // ucx: network interface; empty: the one with the route to the host
};

// Connects, sends `hello`, and returns once the daemon has answered. Sets region_bytes in `hello`,
// which is a Hello frame. Sets *reply, if it is not null, to the answer. Errors: InvalidArgument
// (target or options), the status of the daemon's error reply, DeadlineExceeded, Unavailable (no
// daemon listens at the address, or there is no module).
absl::StatusOr<std::unique_ptr<Connection>> Connect(std::string_view target,
                                                    const proto::Frame& hello,
                                                    const ConnectOptions& options,
                                                    absl::Time deadline,
                                                    proto::HelloReply* reply = nullptr);

}  // namespace cairn::transport
