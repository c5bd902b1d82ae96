// SPDX-License-Identifier: Apache-2.0
#pragma once
// The first exchange of every connection, the same on all transports.

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/frame.h"
#include "transport/transport.h"

namespace cairn::transport {

// Sends `hello` over a connection that has carried nothing yet and waits for its answer.
// Returns the daemon's HelloReply, its window cut to what `hello` asked for.
// Errors: InvalidArgument for a hello that no frame can say, the status of the daemon's error
// reply, DeadlineExceeded, Unavailable; DataLoss when the
// answer is not a frame, Internal when it is a frame of another kind.
absl::StatusOr<proto::HelloReply> Shake(Connection& connection, const proto::Frame& hello,
                                        absl::Time deadline);

}  // namespace cairn::transport
