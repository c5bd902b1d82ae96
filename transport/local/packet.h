// SPDX-License-Identifier: Apache-2.0
#pragma once
// One packet with its file descriptors over a SOCK_SEQPACKET socket, without blocking.

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
  bool is_cut =
      false;  // it was longer than any message, or had more descriptors than a process may send
  std::vector<Fd> fds;  // close on exec
  std::span<const std::byte> bytes() const { return {data.data(), size}; }
};

// Every descriptor that comes along is owned by the result, so none leaks.
Packet ReceivePacket(int socket);

// Sends `bytes` and, where fd is not -1, a copy of that descriptor, whole or not at all.
// ResourceExhausted: the socket is full. Unavailable: the other side is gone.
absl::Status SendPacket(int socket, std::span<const std::byte> bytes, int fd = -1);

}  // namespace cairn::transport
