// SPDX-License-Identifier: Apache-2.0
#pragma once
// The first exchange of every connection. All transports share it.

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/frame.h"
#include "transport/transport.h"

namespace cairn::transport {

// Sends `hello` over a new connection and waits for the answer. Returns the daemon's HelloReply,
// whose window is at most the one in `hello`. Errors: InvalidArgument if `hello` does not fit into
// a frame; the status of the daemon's error reply; DeadlineExceeded; Unavailable; DataLoss if the
// answer is not a frame; Internal if the answer is a frame of another kind.
absl::StatusOr<proto::HelloReply> Shake(Connection& connection, const proto::Frame& hello,
                                        absl::Time deadline);

}  // namespace cairn::transport
