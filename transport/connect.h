// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client's way to a daemon's data plane. The target says which transport it is, without guessing:
//
//   unix:PATH    transport/local: the unix socket of a daemon on this host
//   HOST:PORT    transport/ucx, through its module; an IPv6 HOST stands in brackets

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/frame.h"
#include "transport/transport.h"

namespace cairn::transport {

// A target, taken apart.
struct Target {
  enum class Kind { kUnix, kTcp };
  Kind kind = Kind::kUnix;
  std::string path;   // kUnix
  std::string host;   // kTcp, without brackets
  uint16_t port = 0;  // kTcp
};
// InvalidArgument says what a target looks like.
absl::StatusOr<Target> ParseTarget(std::string_view text);

struct ConnectOptions {
  // local: memory shared with the daemon, allocated at once; fixed for the connection's life
  uint64_t region_bytes = uint64_t{64} << 20;
  bool maps = true;        // local: maps what the daemon lends, if it does
  std::string ucx_module;  // ucx: the module's file; empty: see LoadUcxModule()
  std::string ucx_device;  // ucx: network interface; empty: the one that reaches the host
};

// Returns once the daemon has answered `hello` (a Hello frame; region_bytes is filled in here).
// *reply, if given, is what it answered. Errors: InvalidArgument (target, options), the status of
// the daemon's error reply, DeadlineExceeded, Unavailable (nobody there, or no module).
absl::StatusOr<std::unique_ptr<Connection>> Connect(std::string_view target,
                                                    const proto::Frame& hello,
                                                    const ConnectOptions& options,
                                                    absl::Time deadline,
                                                    proto::HelloReply* reply = nullptr);

}  // namespace cairn::transport
