// SPDX-License-Identifier: Apache-2.0
#pragma once
// TCP sockets of transport/stream. The functions do not block, except where noted.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "transport/address.h"

namespace cairn::transport {

// Listens at the first address of the host. `port` 0 picks a free port. Sets *address to the bound
// address. Errors: Unavailable.
absl::StatusOr<Fd> ListenTcp(std::string_view host, uint16_t port, SocketAddress* address);

// Connects. Blocks until `deadline` at most. Errors: Unavailable, DeadlineExceeded.
absl::StatusOr<Fd> ConnectTcp(const SocketAddress& address, absl::Time deadline);

// Lets the kernel close the connection within half a minute if the other host is gone. Also
// disables the delay of small packets.
void KeepAlive(int socket);

// Closes a socket so that the peer can still read the data that was sent. It first reads the data
// that has already arrived, because otherwise the kernel would send a reset.
void CloseInOrder(Fd socket);

}  // namespace cairn::transport
