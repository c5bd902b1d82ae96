// SPDX-License-Identifier: Apache-2.0
#pragma once
// A listening socket that goes on when the process is out of descriptors. It keeps a spare one,
// which it closes to take the next peer in and turn it away: the peer learns of it, and nothing
// spins.
//
// Thread-safety: Owned by the thread that accepts.

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/file.h"
#include "service/config_value.h"

namespace cairn {

class Acceptor {
 public:
  // Binds to exactly that address. Unavailable when it cannot, InvalidArgument when it is none.
  static absl::StatusOr<Acceptor> Listen(const HostPort& address);
  // Accepts from a non-blocking socket that listens, and that is owned elsewhere.
  static Acceptor Borrow(int listener) { return Acceptor(Fd(), listener); }

  enum class Outcome {
    kPeer,        // *socket is its connection
    kGone,        // it had left already: ask again
    kTurnedAway,  // it was accepted and closed, for want of a descriptor: wait a moment
    kStuck,       // not even that: wait a moment
    kNone,        // nobody waits
  };
  // *socket is non-blocking and closed on exec.
  Outcome Accept(Fd* socket);

  int get() const { return listener_; }
  uint16_t port() const;  // 0: it is a unix socket

 private:
  Acceptor(Fd owned, int listener);
  Fd owned_, spare_;
  int listener_ = -1;
};

}  // namespace cairn
