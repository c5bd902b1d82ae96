// SPDX-License-Identifier: Apache-2.0
#pragma once
// A listening socket that keeps working when the process runs out of file descriptors. It then
// closes a spare descriptor, accepts the next connection with it, and closes that connection. So
// the peer sees a closed connection, and the accepting thread does not spin.
//
// Thread-safety: Owned by the thread that accepts.

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "base/file.h"
#include "service/config_value.h"

namespace cairn {

class Acceptor {
 public:
  // Binds to exactly that address. Errors: Unavailable (cannot bind), InvalidArgument (`address` is
  // not an address).
  static absl::StatusOr<Acceptor> Listen(const HostPort& address);
  // Accepts from a non-blocking listening socket that another object owns.
  static Acceptor Borrow(int listener) { return Acceptor(Fd(), listener); }

  enum class Outcome {
    kPeer,        // *socket is the new connection
    kGone,        // the peer has closed the connection: call again
    kTurnedAway,  // accepted and closed, because descriptors ran out: wait a moment
    kStuck,       // descriptors ran out, and the peer still waits: wait a moment
    kNone,        // no peer waits
  };
  // Gives the listening socket away. REQUIRES: Listen() made it. Call no other function afterwards.
  Fd TakeSocket() { return std::move(owned_); }
  // *socket is non-blocking and closed on exec.
  Outcome Accept(Fd* socket);

  int get() const { return listener_; }
  uint16_t port() const;  // 0 for a unix socket

 private:
  Acceptor(Fd owned, int listener);
  Fd owned_, spare_;
  int listener_ = -1;
};

}  // namespace cairn
