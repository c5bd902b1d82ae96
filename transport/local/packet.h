// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sends and receives packets with file descriptors over a SOCK_SEQPACKET socket, without blocking.
//
// The last close() of a descriptor that a peer sent can block: hours for a TCP socket that lingers,
// without end for a file of a FUSE mount. Descriptors that nobody received are closed by the kernel
// together with the socket that they wait in.

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file.h"
#include "transport/local/envelope.h"

namespace cairn::transport {

struct Packet {
  enum class Outcome {
    kPacket,
    kNothing,  // no packet is waiting
    kClosed,   // the other side is gone
  };
  Outcome outcome = Outcome::kNothing;
  std::array<std::byte, kMessageBytesMax> data;
  size_t size = 0;
  bool is_cut = false;  // it was longer than any message, or descriptors were lost
  std::vector<Fd> fds;  // close on exec
  std::span<const std::byte> bytes() const { return {data.data(), size}; }
};

// Receives one packet. The result owns every descriptor that came with it.
Packet ReceivePacket(int socket);

// Sends `bytes` and copies of the descriptors, at most two: all of it or nothing. Errors:
// ResourceExhausted (the socket is full), Unavailable (the peer is gone).
absl::Status SendPacket(int socket, std::span<const std::byte> bytes, std::span<const int> fds);
// The same with one descriptor, or none if it is -1.
absl::Status SendPacket(int socket, std::span<const std::byte> bytes, int fd = -1);

// Makes the kernel refuse later packets with descriptors: their sender gets EPERM. Descriptors that
// have arrived stay. Connections of a listening socket inherit this. Returns false if the kernel
// cannot do it (before Linux 6.16).
bool RefuseDescriptors(int socket);
// Shuts the connection down in both directions and drops the packets that wait in it. Returns false
// if a descriptor waits in it, so that closing the socket may block.
[[nodiscard]] bool EndConnection(int socket);
// Closes a socket and the descriptors that came through it. May block, though less likely than
// close() alone.
void CloseSlowly(Fd socket, std::vector<Fd> fds);

}  // namespace cairn::transport
