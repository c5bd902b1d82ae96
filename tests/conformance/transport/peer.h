// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client in a process of its own, to be stopped and killed.

#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/file.h"

namespace cairn::transport {

// What the peer does, over and over until something fails:
//   "put"   puts of 8 MiB, four at a time
//   "get"   gets of block 1, four at a time
//   "stop"  one put of 32 MiB, and SIGSTOP to itself as soon as it has begun; after SIGCONT it goes
//   on
// When its first call has begun, it writes a line to stdout.
int RunPeer(const std::string& address, std::string_view what);

// The running program again, as a peer. Killed and waited for when destroyed.
// Thread-safety: Thread-compatible.
class PeerProcess {
 public:
  PeerProcess(const std::string& address, const std::string& what);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;

  // Until its first call has begun. False: it ended before.
  bool AwaitBegun();
  void Signal(int signal);
  // Until it has stopped itself.
  void AwaitStopped();

 private:
  pid_t pid_ = -1;
  Fd out_;
};

}  // namespace cairn::transport
