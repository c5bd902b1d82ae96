// SPDX-License-Identifier: Apache-2.0
#pragma once
// Connections to other members, for calls of cairn.v1.Peer.
//
// Over TLS, a daemon is accepted as a member by its certificate, and not by its address.
//
// Thread-safety: Thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/peer_identity.h"
#include "cairn/v1/peer.grpc.pb.h"
#include "service/members/view.h"
#include "transport/tls/tls_files.h"

namespace cairn {

struct PeerDial {
  transport::TlsFiles* tls = nullptr;  // null: plain text; must outlive the channels
  // Whether the daemon with that certificate may be a member. Called on threads of gRPC. Must
  // be set if `tls` is not null.
  std::function<absl::Status(const PeerIdentity&)> may_be_member = {};

  uint64_t tls_generation() const { return tls == nullptr ? 0 : tls->generation(); }
};

using PeerStub = v1::Peer::Stub;

// Returns a new connection to `address`, which no other caller shares. It uses the TLS files as
// they are now, and connects at the first call. Answers have at most `answer_bytes_max` bytes.
std::unique_ptr<PeerStub> OpenPeer(const std::string& address, const PeerDial& dial,
                                   int answer_bytes_max);

// Waits for the next finished call of the queue and returns its tag. Returns null if no call has
// finished at `deadline` (on the clock of MonotonicNow()).
void* NextOver(grpc::CompletionQueue& queue, absl::Time deadline);
// Shuts the queue down. Waits until its calls are over: cancel them first.
void Drain(grpc::CompletionQueue& queue);

// One connection to each member. All calls share it.
class PeerChannels {
 public:
  PeerChannels(PeerDial dial, int answer_bytes_max)
      : dial_(std::move(dial)), answer_bytes_max_(answer_bytes_max) {}

  // Never null. Returns a new connection after the member's address or the TLS files have changed.
  // Running calls keep the old connection.
  std::shared_ptr<PeerStub> To(const Member& member);
  // Closes the connections to those that are not in the view.
  void Keep(const View& view);

 private:
  struct Line {
    std::string address;
    uint64_t tls_generation = 0;
    std::shared_ptr<PeerStub> stub;
  };
  const PeerDial dial_;
  const int answer_bytes_max_;
  Mutex mutex_;
  std::map<uint32_t, Line> lines_ ABSL_GUARDED_BY(mutex_);  // by the member's number
};

}  // namespace cairn
