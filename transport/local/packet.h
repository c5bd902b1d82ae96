// SPDX-License-Identifier: Apache-2.0
#pragma once
// One packet with its file descriptors over a SOCK_SEQPACKET socket, without blocking.
//
// A descriptor that a peer sends may be one whose last close() blocks: a TCP socket that lingers
// does for hours, a file of a FUSE mount for as long as its owner likes. The kernel closes those
// that nobody has received together with the socket that they wait in.

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
    kNothing,  // none is there now
    kClosed,   // the other side is gone
  };
  Outcome outcome = Outcome::kNothing;
  std::array<std::byte, kMessageBytesMax> data;
  size_t size = 0;
  bool is_cut = false;  // it was longer than any message, or descriptors were lost
  std::vector<Fd> fds;  // close on exec
  std::span<const std::byte> bytes() const { return {data.data(), size}; }
};

// Every descriptor that comes along is owned by the result, so none leaks.
Packet ReceivePacket(int socket);

// Sends `bytes` and copies of the descriptors, whole or not at all. ResourceExhausted: the socket
// is full. Unavailable: the other side is gone. REQUIRES: at most two descriptors.
absl::Status SendPacket(int socket, std::span<const std::byte> bytes, std::span<const int> fds);
// Of one descriptor, or with -1 of none.
absl::Status SendPacket(int socket, std::span<const std::byte> bytes, int fd = -1);

// From now on no packet with a descriptor comes: its sender gets EPERM. Those that have come stay.
// A listening socket passes this on to its connections. False: the kernel cannot (before Linux
// 6.16).
bool RefuseDescriptors(int socket);
// Ends the connection, both ways, and drops what waits in it. False: a descriptor waits in it, so
// that closing the socket may block.
[[nodiscard]] bool EndConnection(int socket);
// Closes a socket and descriptors that came through it. May block, less likely than close() alone.
void CloseSlowly(Fd socket, std::vector<Fd> fds);

}  // namespace cairn::transport
