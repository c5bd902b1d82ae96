// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface for moving bytes between a client and the daemon. Implementations: local/ (unix
// socket and a memfd of the client), ucx/ (active messages), memory/ (in one process, for tests).
// All of them behave alike: tests/conformance/transport tests them with one suite.
//
// A client sends a request frame, with or without a payload. The daemon answers each request with
// exactly one reply frame, with or without a payload. A transport reads only a frame's size and its
// `seq` (proto/frame.h). The `seq` tells which request a reply answers.
//
// States of a transfer:
//
//   Moving ──ok / error──────────────────────────▶ Over         (callback; memory is free)
//   Moving ──deadline, Break(), peer lost──▶ Breaking ──▶ Over  (callback; memory is free)
//
// When a transfer is Breaking, the transport closes the peer's connection by force, and counts the
// memory as quarantined. Every transfer has one completion, which runs when the transfer is Over.
// The memory must not be used again before that. The completion of a reply means that the memory is
// free. It does not mean that the peer has received the reply.

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

// Identifies one connection of one lane. Never used again within a process. 0: no peer.
using PeerId = uint64_t;

// The destination of a reply. Plain data that can be passed to other threads. If the peer is gone,
// Reply() completes with Unavailable.
struct ReplyTo {
  PeerId peer = 0;
  uint64_t seq = 0;
  uint64_t place = 0;           // used by the transport; local/: offset in the client's memfd
  uint64_t capacity_bytes = 0;  // maximum number of payload bytes that the client accepts
  bool takes_loan = false;      // Lend() may be called instead of Reply()
  bool takes_places = false;    // LendPlaces() may be called, too
  uint64_t back_place = 0;      // used by the transport; local/: where the client gives a loan back
};

// A payload whose bytes lie apart: those of `head`, then those of `places`, in order. If it is
// lent, `head` is moved to the peer, and only `places` are lent. Borrows both lists and their
// bytes.
struct PlacedPayload {
  std::span<const std::byte> head;
  std::span<const std::span<const std::byte>> places;

  uint64_t bytes() const {
    uint64_t sum = head.size();
    for (const std::span<const std::byte> place : places) sum += place.size();
    return sum;
  }
  // Returns the bytes that the reply to a LendPlaces() needs in the peer's memory.
  uint64_t room_bytes() const { return kPlaceBytes * places.size() + head.size(); }
  static constexpr size_t kPlaceBytes = 16;  // an entry of the list that tells the peer the places
};

// A request that has arrived. Its payload has not moved yet. Move-only. Owned by the lane thread.
// Destroying it before Receive() refuses the payload; the caller must still reply.
class Arrival {
 public:
  // The transport's own state, with which it moves or refuses the payload.
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
  // A copy of at most 256 bytes, not parsed.
  const proto::FrameBytes& frame() const { return frame_; }
  uint64_t payload_bytes() const { return payload_bytes_; }  // as the transport announced it
  // The peer's identity. Valid during OnArrival(). Null if the transport cannot know it.
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
//   OK                 `target` has payload_bytes bytes; crc32c is their CRC32C
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
  kGone,  // its peer is gone
};
using LoanDone = absl::AnyInvocable<void(LoanEnd)>;

// One thread that moves bytes for its peers. Owned by its thread, except Submit() and Report().
class Lane {
 public:
  virtual ~Lane() = default;

  virtual int index() const = 0;

  // Runs `task` on the lane thread, soon. Thread-safe. Errors: ResourceExhausted (the lane's queue
  // is full), Unavailable (the server is stopping). Then the task is dropped without running.
  virtual absl::Status Submit(absl::AnyInvocable<void(Lane&)> task) = 0;

  // Moves the arrival's payload into `target`. `done` runs on the lane thread, exactly once, never
  // inside this call. The transport uses `target` until then. REQUIRES: target.size() ==
  // arrival.payload_bytes().
  virtual void Receive(Arrival arrival, std::span<std::byte> target, absl::Time deadline,
                       ReceiveDone done) = 0;

  // Sends the one reply to a request. `done` runs on the lane thread, exactly once, never inside
  // this call. `payload` is in use until then. REQUIRES: payload.size() <= reply_to.capacity_bytes.
  virtual void Reply(const ReplyTo& reply_to, const proto::FrameBytes& frame,
                     std::span<const std::byte> payload, absl::Time deadline, ReplyDone done) = 0;

  // Returns whether this daemon lends memory. If so, peers that ask for it may map memory of the
  // daemon, and read payloads in it. The reply to the Hello of such a peer has version 2.
  virtual bool can_lend() const { return false; }
  // Returns whether the payload is in the memory to lend, and the number of loans is below its
  // limit.
  virtual bool CanLendNow(std::span<const std::byte> /*payload*/) const { return false; }
  // Sends the one reply to a request without moving the payload: the peer reads the payload in
  // place. The payload must not change before `back` has run. After that it may change, and the
  // peer can see this with Loan::IsInForce(). Both callbacks run on the lane thread, exactly once,
  // never inside this call. `back` runs after `sent`, and at the latest soon after `until`.
  // REQUIRES: reply_to.takes_loan, CanLendNow(payload).
  virtual void Lend(const ReplyTo& /*reply_to*/, const proto::FrameBytes& /*frame*/,
                    std::span<const std::byte> /*payload*/, absl::Time /*until*/,
                    ReplyDone /*sent*/, LoanDone /*back*/) {}

  // LendPlaces() is Lend() for a payload that lies in several places, and ReplyPlaces() is Reply()
  // for it. The list `payload.places` and `payload.head` are read during the call by LendPlaces(),
  // and until `done` by ReplyPlaces(). One loan has all places.
  // REQUIRES: reply_to.takes_places; 1 to proto::kLentPlacesMax places, none of them empty;
  // payload.bytes() and payload.room_bytes() are at most reply_to.capacity_bytes. LendPlaces() also
  // requires CanLendNow() of each place.
  virtual void LendPlaces(const ReplyTo& /*reply_to*/, const proto::FrameBytes& /*frame*/,
                          const PlacedPayload& /*payload*/, absl::Time /*until*/,
                          ReplyDone /*sent*/, LoanDone /*back*/) {}
  virtual void ReplyPlaces(const ReplyTo& /*reply_to*/, const proto::FrameBytes& /*frame*/,
                           const PlacedPayload& /*payload*/, absl::Time /*deadline*/,
                           ReplyDone /*done*/) {}

  // Closes a peer's connection by force. All of the peer's transfers complete with Unavailable.
  virtual void Break(PeerId peer) = 0;
};

// Receives the events of lanes. Every call runs on the lane's thread and must not block.
class LaneHandler {
 public:
  virtual ~LaneHandler() = default;
  virtual void OnArrival(Lane& lane, Arrival arrival) = 0;
  // Called when a client's hello brings `bytes` of memory. The hello carries `ticket`, which may
  // name no session, or that of a peer other than `identity`. Returns the owner that pays for the
  // memory until OnRegionGone(). An error refuses the client.
  virtual absl::StatusOr<std::string> OnRegion(const proto::Ticket& /*ticket*/,
                                               const PeerIdentity& /*identity*/,
                                               uint64_t /*bytes*/) {
    return std::string();
  }
  virtual void OnRegionGone(const std::string& /*owner*/, uint64_t /*bytes*/) {}
  // The peer is gone: there are no more arrivals from it. Its transfers complete as usual.
  virtual void OnPeerGone(Lane& lane, PeerId peer) = 0;
};

// The limits of every server. A client that exceeds a limit is refused or disconnected. A server
// never uses more than its limits.
struct ServerLimits {
  int lanes = 1;
  int peers_max = 256;         // connections of all lanes together
  int arrivals_held_max = 64;  // per lane: arrivals that are neither received nor refused
  uint64_t payload_bytes_max = uint64_t{64} << 20;  // maximum for one transfer
  uint64_t region_bytes_max = uint64_t{1} << 30;    // local: mapped client memory per connection
  uint64_t regions_bytes_max = uint64_t{8} << 30;   // local: mapped client memory of all together
  // Per lane: memory of transfers that are Breaking. Above this limit, Receive() is refused.
  uint64_t quarantine_bytes_max = uint64_t{256} << 20;
};

// A listening transport with its lanes. Thread-safe. Stop() refuses new peers, breaks all peers,
// completes every transfer and joins the lane threads, within 3 seconds. The destructor calls it,
// too.
class Server {
 public:
  virtual ~Server() = default;
  virtual void Stop() = 0;
  // The address for clients: "unix:/path", or "127.0.0.1:40123" with the port that is bound.
  virtual std::string address() const = 0;
  // Checks that clients can still connect at the address. Returns true if a socket file was missing
  // and was made again. Errors: FailedPrecondition (another process listens there).
  virtual absl::StatusOr<bool> KeepAddress() { return false; }
  virtual int lane_count() const = 0;
  virtual Lane& lane(int index) = 0;
  virtual void Report(MetricSink& sink) const = 0;
};

// ---------------------------------------------------------------------------------------------------
// Client side (the SDK)

// Memory for payloads that need the fewest copies. With local/ it is inside the connection's memfd;
// elsewhere it is ordinary memory. Move-only. Stays readable after its Connection is destroyed.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::span<std::byte> bytes() = 0;
};

// A lent payload of a reply, which stays in the daemon's memory. Destroying the loan gives the
// payload back. The daemon may end the loan at its deadline or with the connection. Then the bytes
// may change at any time. So copy the data, then call IsInForce(), and use the copy only if it
// returns true. Thread-safety: Thread-compatible.
class Loan {
 public:
  virtual ~Loan() = default;
  // The payload is head(), followed by the bytes of places(), in order. There is at least one
  // place. head() was moved, and lies in the call's target. It is empty if the payload lies in one
  // place.
  virtual std::span<const std::byte> head() const = 0;
  virtual std::span<const std::span<const std::byte>> places() const = 0;
  // Returns the payload if it lies in one place, otherwise an empty span.
  std::span<const std::byte> bytes() const {
    return head().empty() && places().size() == 1 ? places().front() : std::span<const std::byte>();
  }
  uint64_t payload_bytes() const { return PlacedPayload{head(), places()}.bytes(); }
  // Returns whether places() still are the lent payload. If so, everything read so far is right.
  virtual bool IsInForce() const = 0;
};

// One request and its reply. The caller fills it in. From Start() until over() is true the
// connection uses it, and it must not be moved or destroyed.
struct Call {
  proto::FrameBytes request;
  std::span<const std::byte> payload;  // sent with the request; may be empty
  std::span<std::byte> target;         // for a reply's payload; its size is the limit
  bool takes_loan = false;             // a reply's payload may be lent; `payload` must be empty
  // The connection may keep the request back until the next Poll(), to send it in one message with
  // others; `payload` must be empty.
  bool may_wait = false;
  absl::Time deadline = absl::InfinitePast();

  // Set when the call is over:
  //   OK                a reply frame came; `target` has reply_payload_bytes bytes
  //   DeadlineExceeded  no reply in time; the connection is broken and must be opened again
  //   Unavailable       the daemon is gone
  absl::Status status;
  proto::FrameBytes reply;
  uint64_t reply_payload_bytes = 0;
  std::unique_ptr<Loan> loan;  // if not null, the payload is lent, and not in `target`

  bool over() const { return is_over; }  // if true, `payload` and `target` are free again
  bool is_over = false;
};

// A client's connection to one lane of a daemon. Thread-compatible: one thread at a time may use
// it. It has no thread of its own.
class Connection {
 public:
  virtual ~Connection() = default;  // breaks running calls; returns once their memory is free

  // Allocates a Buffer. Errors: ResourceExhausted (the region is full). Payloads and targets may
  // also be outside the Buffers of this connection, but this costs one more copy.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) = 0;

  // Starts a call. Errors: Unavailable (the connection is broken), ResourceExhausted (window()
  // calls are running). After an error the call was not started. REQUIRES: no running call has the
  // same seq as call->request.
  virtual absl::Status Start(Call* call) = 0;

  // Makes progress until a call is over, `until` passes, or the connection breaks. Returns at most
  // 50 ms after `until`.
  virtual void Poll(absl::Time until) = 0;

  virtual bool broken() const = 0;
  // Returns whether replies may be lent. Returns false once the connection is broken; the daemon's
  // memory is then not mapped.
  virtual bool is_mapped() const { return false; }
  // Unmaps the daemon's memory, except for loans that still exist. Later replies are copied. Does
  // nothing while a call is running.
  virtual void Unmap() {}
  virtual int window() const = 0;  // maximum number of calls that may run at once
};

}  // namespace cairn::transport
