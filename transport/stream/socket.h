// SPDX-License-Identifier: Apache-2.0
#pragma once
// TCP sockets of transport/stream. Free functions; none blocks but where it says so.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "transport/address.h"

namespace cairn::transport {

// Listens at the host's first address. `port` 0 picks one; *address is what was bound.
// Errors: Unavailable.
absl::StatusOr<Fd> ListenTcp(std::string_view host, uint16_t port, SocketAddress* address);

// Connects; blocks until `deadline` at most. Errors: Unavailable, DeadlineExceeded.
absl::StatusOr<Fd> ConnectTcp(const SocketAddress& address, absl::Time deadline);

// Has the kernel end the connection if the other host has vanished, within half a minute; and send
// small pieces at once.
void KeepAlive(int socket);

// Closes a socket so that the other end can still read what was sent: what has come is taken first,
// as far as it is there.
void CloseInOrder(Fd socket);

}  // namespace cairn::transport
