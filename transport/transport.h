// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface for moving bytes between a client and the daemon. Implementations: local/ (unix
// socket and client-owned memfd), ucx/ (active messages), memory/ (in process, for tests). Callers
// see no difference, and one conformance suite (tests/conformance/transport) tests them all.
//
// A client sends a request frame, with or without a payload. The daemon answers each request with
// exactly one reply frame, with or without a payload. A transport reads only a frame's size and its
// `seq` (see proto/frame.h), which pairs a reply with its request.
//
// States of a transfer:
//
//   Moving ──ok / error──────────────────────────▶ Over         (callback; memory is free)
//   Moving ──deadline, Break(), peer lost──▶ Breaking ──▶ Over  (callback; memory is free)
//
// While a transfer is Breaking, the transport closes the peer's connection by force and the memory
// counts as quarantined. Every transfer has one completion, which runs when the transfer is Over.
// Only then may the memory be reused. The completion of a reply means "the memory is free", never
// "the peer has it".

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "base/peer_identity.h"
#include "proto/frame.h"

namespace cairn::transport {

// ---------------------------------------------------------------------------------------------------
// Server side (the daemon)

// Names one connection of one lane. Never reused within a process. 0 names no peer.
using PeerId = uint64_t;

// The destination of a reply: plain data, may cross threads. The peer may be gone: Reply() then
// completes with Unavailable.
struct ReplyTo {
  PeerId peer = 0;
  uint64_t seq = 0;
  uint64_t place = 0;           // the transport's own; local/: offset in the client's memfd
  uint64_t capacity_bytes = 0;  // most payload bytes that the client accepts
  bool takes_loan = false;      // Lend() may answer
  uint64_t back_place = 0;      // for the transport; local/: where the client gives a loan back
};

// A request that has arrived. Its payload is announced but not yet moved. Move-only. Owned by the
// lane thread. Destroying it before Receive() refuses the payload; the caller must still reply.
class Arrival {
 public:
  // The transport's own part: what it needs to move or refuse the payload.
  class Held {
   public:
    virtual ~Held() = default;  // refuses the payload if Receive() has not consumed it
  };

  Arrival(ReplyTo reply_to, const proto::FrameBytes& frame, uint64_t payload_bytes,
          std::unique_ptr<Held> held, const PeerIdentity* identity = nullptr)
      : reply_to_(reply_to),
        frame_(frame),
        payload_bytes_(payload_bytes),
        held_(std::move(held)),
        identity_(identity) {}
  Arrival(Arrival&&) = default;
  Arrival& operator=(Arrival&&) = default;

  const ReplyTo& reply_to() const { return reply_to_; }
  // Copied, at most 256 bytes, not parsed.
  const proto::FrameBytes& frame() const { return frame_; }
  uint64_t payload_bytes() const { return payload_bytes_; }  // as the transport announced it
  // Who is behind the connection. Valid during OnArrival(). Null: the transport cannot know.
  const PeerIdentity* identity() const { return identity_; }
  Held* held() const { return held_.get(); }
  std::unique_ptr<Held> TakeHeld() { return std::move(held_); }

 private:
  ReplyTo reply_to_;
  proto::FrameBytes frame_;
  uint64_t payload_bytes_ = 0;
  std::unique_ptr<Held> held_;
  const PeerIdentity* identity_ = nullptr;
};

// The outcome of Lane::Receive().
//   OK                 the target holds payload_bytes bytes; crc32c is their CRC32C
//   DeadlineExceeded   the peer's connection was broken
//   Unavailable        the peer is gone
struct Received {
  absl::Status status;
  uint32_t crc32c = 0;
};

using ReceiveDone = absl::AnyInvocable<void(Received)>;
using ReplyDone = absl::AnyInvocable<void(absl::Status)>;

enum class LoanEnd : uint8_t {
  kGivenBack,
  kLate,  // its deadline passed
  kGone,  // its peer is
};
using LoanDone = absl::AnyInvocable<void(LoanEnd)>;

// One thread that moves bytes for its peers. Owned by its thread, except Submit() and Report().
class Lane {
 public:
  virtual ~Lane() = default;

  virtual int index() const = 0;

  // Runs `task` on the lane thread, soon. Thread-safe. Errors: ResourceExhausted (the lane's queue
  // is full), Unavailable (the server is stopping); the task is then dropped without running.
  virtual absl::Status Submit(absl::AnyInvocable<void(Lane&)> task) = 0;

  // Moves the arrival's payload into `target`. `done` runs on the lane thread, exactly once, never
  // inside this call; `target` is lent until then. REQUIRES: target.size() ==
  // arrival.payload_bytes().
  virtual void Receive(Arrival arrival, std::span<std::byte> target, absl::Time deadline,
                       ReceiveDone done) = 0;

  // Sends the one reply to a request. `done` runs on the lane thread, exactly once, never inside
  // this call; `payload` is lent until then. REQUIRES: payload.size() <= reply_to.capacity_bytes.
  virtual void Reply(const ReplyTo& reply_to, const proto::FrameBytes& frame,
                     std::span<const std::byte> payload, absl::Time deadline, ReplyDone done) = 0;

  // Returns whether peers that ask for it may map memory of the daemon and be lent payloads in it.
  // The reply to such a Hello says version 2.
  virtual bool can_lend() const { return false; }
  // Returns whether the payload is in that memory, and not too much is lent.
  virtual bool CanLendNow(std::span<const std::byte> /*payload*/) const { return false; }
  // Sends the one reply of a request without moving its payload: the peer reads it in place. The
  // payload must not change until `back` has run. After that it may change, and the peer finds out
  // by Loan::IsInForce(). Both callbacks run on the lane thread, exactly once, never inside this
  // call, `back` after `sent` and soon after `until` at the latest.
  // REQUIRES: reply_to.takes_loan, CanLendNow(payload).
  virtual void Lend(const ReplyTo& /*reply_to*/, const proto::FrameBytes& /*frame*/,
                    std::span<const std::byte> /*payload*/, absl::Time /*until*/,
                    ReplyDone /*sent*/, LoanDone /*back*/) {}

  // Closes a peer's connection by force. All its transfers complete with Unavailable.
  virtual void Break(PeerId peer) = 0;
};

// Receives the events of lanes. Every call runs on the lane's thread and must not block.
class LaneHandler {
 public:
  virtual ~LaneHandler() = default;
  virtual void OnArrival(Lane& lane, Arrival arrival) = 0;
  // A client brings `bytes` of memory with a hello that carries `ticket`, which may name no
  // session. Returns the owner that the memory is charged to until OnRegionGone(). An error refuses
  // the client.
  virtual absl::StatusOr<std::string> OnRegion(const proto::Ticket& /*ticket*/,
                                               uint64_t /*bytes*/) {
    return std::string();
  }
  virtual void OnRegionGone(const std::string& /*owner*/, uint64_t /*bytes*/) {}
  // The peer is gone and sends no more arrivals. Its transfers complete on their own.
  virtual void OnPeerGone(Lane& lane, PeerId peer) = 0;
};

// The limits of every server. A client that exceeds one is refused or disconnected; a server never
// grows beyond them.
struct ServerLimits {
  int lanes = 1;
  int peers_max = 256;         // connections, all lanes together
  int arrivals_held_max = 64;  // per lane: arrived, neither received nor refused
  uint64_t payload_bytes_max = uint64_t{64} << 20;  // of one transfer
  uint64_t region_bytes_max = uint64_t{1} << 30;    // local: mapped client memory per connection
  uint64_t regions_bytes_max = uint64_t{8} << 30;   // local: mapped client memory in all
  // Per lane: memory lent to transfers that are Breaking. Above it receives are refused.
  uint64_t quarantine_bytes_max = uint64_t{256} << 20;
};

// A listening transport with its lanes. Thread-safe. Stop(), which the destructor calls too,
// refuses new peers, breaks all peers, completes every transfer and joins the lane threads, within
// 3 seconds.
class Server {
 public:
  virtual ~Server() = default;
  virtual void Stop() = 0;
  // The address for clients: "unix:/path" or "127.0.0.1:40123" (the port that is bound).
  virtual std::string address() const = 0;
  // Checks that clients can still connect at the address. Returns true if it had to make a missing
  // socket file again. Errors: FailedPrecondition (another process listens there).
  virtual absl::StatusOr<bool> KeepAddress() { return false; }
  virtual int lane_count() const = 0;
  virtual Lane& lane(int index) = 0;
  virtual void Report(MetricSink& sink) const = 0;
};

// ---------------------------------------------------------------------------------------------------
// Client side (the SDK)

// Memory with the fewest copies on the way to and from the daemon: inside the connection's sealed
// memfd (local), ordinary memory elsewhere. Move-only; stays readable after its Connection ends.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::span<std::byte> bytes() = 0;
};

// The payload of a reply, lent: it stays in the daemon's memory. Destroying the loan gives it back.
// When the daemon has ended the loan, at its deadline or with the connection, the bytes may change
// at any time: copy data before you check and use it, and call IsInForce() at the end.
// Thread-safety: Thread-compatible.
class Loan {
 public:
  virtual ~Loan() = default;
  virtual std::span<const std::byte> bytes() const = 0;
  // Returns whether everything that was read of bytes() so far is what was lent.
  virtual bool IsInForce() const = 0;
};

// One request and its reply. The caller fills it in and lends it to the connection from Start()
// until over() is true. It must not move meanwhile.
struct Call {
  proto::FrameBytes request;
  std::span<const std::byte> payload;  // sent with the request; may be empty
  std::span<std::byte> target;         // where a reply's payload is written; its size is the limit
  bool takes_loan = false;             // a reply's payload may be lent; `payload` must be empty
  // The request may be kept back until the next Poll(), to leave in one message with others;
  // `payload` must be empty.
  bool may_wait = false;
  absl::Time deadline = absl::InfinitePast();

  // Set when the call is over:
  //   OK                a reply frame came; `target` holds reply_payload_bytes bytes
  //   DeadlineExceeded  no reply in time; the connection is broken and must be reopened
  //   Unavailable       the daemon is gone
  absl::Status status;
  proto::FrameBytes reply;
  uint64_t reply_payload_bytes = 0;
  std::unique_ptr<Loan> loan;  // not null: they are in loan->bytes(), and not in target

  bool over() const { return is_over; }  // payload and target are free again
  bool is_over = false;
};

// A client's connection to one lane of a daemon. Thread-compatible: one thread at a time uses it.
// It has no thread of its own.
class Connection {
 public:
  virtual ~Connection() = default;  // breaks running calls; returns when all their memory is free

  // Allocates a Buffer. Errors: ResourceExhausted (the region is full). Payloads and targets
  // outside the Buffers of this connection work too and cost one more copy.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) = 0;

  // Starts a call. Errors: Unavailable (the connection is broken), ResourceExhausted (window()
  // calls are running); the call is then not started. REQUIRES: no running call has the seq of
  // call->request.
  virtual absl::Status Start(Call* call) = 0;

  // Makes progress until a call ends, `until` passes, or the connection breaks. Returns at most 50
  // ms after `until`.
  virtual void Poll(absl::Time until) = 0;

  virtual bool broken() const = 0;
  // Returns whether replies may be lent. Once the connection is broken it is false, and nothing of
  // the daemon is mapped.
  virtual bool is_mapped() const { return false; }
  // Unmaps the daemon's memory, but for loans that are held; later replies are copied. Does nothing
  // while a call is in flight.
  virtual void Unmap() {}
  virtual int window() const = 0;  // most calls at once
};

}  // namespace cairn::transport
