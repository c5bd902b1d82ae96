// SPDX-License-Identifier: Apache-2.0
#pragma once
// A lane's records of its peers and of its requests in UCX. Owned by the lane thread.

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "transport/transport.h"
#include "transport/ucx/wire.h"

namespace cairn::transport {

class UcxLane;

// One endpoint: the connection of one client to one lane.
struct UcxPeer {
  UcxLane* lane = nullptr;
  PeerId id = 0;
  ucp_ep_h endpoint = nullptr;
  int transfers = 0;     // given to UCX, callback not yet run
  int own_frames = 0;    // refusals, Ping and Pong frames among them
  uint32_t arrived = 0;  // requests of this iteration that the handler has not seen
  absl::Time heard;      // last message of the peer
  int pings_missed = 0;

  // Set by Condemn(), which may run inside a UCX callback. The loop closes the endpoint later.
  bool is_breaking = false;
  bool is_close_started = false;
  void* close_request = nullptr;
  absl::Time breaking_since;
};

// One send or receive. Until its callback runs, UCX uses its header storage and the memory that it
// moves.
struct UcxTransfer {
  enum class Kind : uint8_t { kReceive, kReply, kOwnFrame };
  static constexpr size_t kNotMoving = ~size_t{0};

  UcxLane* lane = nullptr;
  UcxPeer* peer = nullptr;  // null: the peer was gone before UCX got anything
  Kind kind = Kind::kReply;
  std::span<std::byte> target;         // kReceive
  std::span<const std::byte> payload;  // kReply
  absl::Time deadline;
  HeaderBytes header;
  ReceiveDone receive_done;
  ReplyDone reply_done;

  absl::Status status;  // the result; not OK as soon as the peer is condemned
  size_t moving_index = kNotMoving;
  bool is_quarantined = false;

  size_t bytes() const { return kind == Kind::kReceive ? target.size() : payload.size(); }
};

// The payload of an arrival until it is received or refused.
class UcxHeld final : public Arrival::Held {
 public:
  UcxHeld(UcxLane& lane, UcxPeer& peer) : lane_(&lane), peer_(&peer) {}
  ~UcxHeld() override;  // refuses the payload

  UcxPeer* peer() const { return peer_; }

 private:
  friend class UcxLane;
  UcxLane* lane_;  // null once the peer is gone or the payload was taken
  UcxPeer* peer_;
  void* descriptor_ = nullptr;     // rendezvous: UCX's; received into or released
  std::vector<std::byte> copied_;  // eager: at most kEagerRequestBytesMax
  size_t index_ = 0;               // in the lane's list
};

}  // namespace cairn::transport
