// SPDX-License-Identifier: Apache-2.0
#pragma once
// The seam for moving bytes between a client and the daemon. Homes behind it: local/ (unix socket
// and client-owned memfd), ucx/ (active messages), memory/ (in process, for tests). Everything
// above this header is the same for all of them, and one conformance suite
// (tests/conformance/transport) holds them to it.
//
// The conversation is request and response. A client sends a request frame, with or without a
// payload; the daemon answers each request with exactly one reply frame, with or without a payload.
// Frames are opaque here but for their size and for `seq` (see proto/frame.h), which pairs a reply
// with its request.
//
// States of a transfer:
//
//   Moving ──ok / error──────────────────────────▶ Over         (callback; memory is free)
//   Moving ──deadline, Break(), peer lost──▶ Breaking ──▶ Over  (callback; memory is free)
//
// While Breaking, the transport is forcing the peer's connection down and the memory counts as
// quarantined. The one completion of every transfer runs when the transfer is Over: only then may
// the memory be reused. Completion of a reply means "memory is free", never "the peer has it".

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

// Names one connection of one lane. Never reused within a process. 0 is no peer.
using PeerId = uint64_t;

// Where a reply goes: plain data, may cross threads. A ReplyTo of a lost peer is harmless: Reply()
// then completes with Unavailable.
struct ReplyTo {
  PeerId peer = 0;
  uint64_t seq = 0;
  uint64_t place = 0;           // the transport's own; local/: offset in the client's memfd
  uint64_t capacity_bytes = 0;  // most payload bytes that the client can take in reply
  bool takes_loan = false;      // Lend() may answer
  uint64_t back_place = 0;      // the transport's own; local/: where the client gives a loan back
};

// A request that has arrived, its payload announced but not yet moved. Move-only.
// Owned by the lane thread. Destroying it untaken refuses the payload (the caller still replies).
class Arrival {
 public:
  // The transport's own part: holds what is needed to move or refuse the payload.
  class Held {
   public:
    virtual ~Held() = default;  // refuses the payload if Receive() has not consumed it
  };

  Arrival(ReplyTo reply_to, const proto::FrameBytes& frame, uint64_t payload_bytes,
          std::unique_ptr<Held> held, std::optional<PeerIdentity> identity = std::nullopt)
      : reply_to_(reply_to),
        frame_(frame),
        payload_bytes_(payload_bytes),
        held_(std::move(held)),
        identity_(identity) {}
  Arrival(Arrival&&) = default;
  Arrival& operator=(Arrival&&) = default;

  const ReplyTo& reply_to() const { return reply_to_; }
  const proto::FrameBytes& frame() const { return frame_; }  // copied, at most 256 bytes, unparsed
  uint64_t payload_bytes() const { return payload_bytes_; }  // as the transport announced it
  // Who is behind the connection, where the transport can tell.
  const std::optional<PeerIdentity>& identity() const { return identity_; }
  Held* held() const { return held_.get(); }
  std::unique_ptr<Held> TakeHeld() { return std::move(held_); }

 private:
  ReplyTo reply_to_;
  proto::FrameBytes frame_;
  uint64_t payload_bytes_ = 0;
  std::unique_ptr<Held> held_;
  std::optional<PeerIdentity> identity_;
};

// Outcome of Lane::Receive.
//   OK                 payload_bytes bytes are in the target; crc32c is the CRC32C of what is there
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

  // Runs `task` on the lane thread, soon. Thread-safe. ResourceExhausted when the lane's queue is
  // full, Unavailable once the server is stopping; the task is then dropped without running.
  virtual absl::Status Submit(absl::AnyInvocable<void(Lane&)> task) = 0;

  // Moves the arrival's payload into target. REQUIRES: target.size() == arrival.payload_bytes().
  // `done` runs on the lane thread, exactly once, never inside this call; target stays lent until
  // then.
  virtual void Receive(Arrival arrival, std::span<std::byte> target, absl::Time deadline,
                       ReceiveDone done) = 0;

  // Sends the one reply of a request. `payload` stays lent until `done` has run (on the lane
  // thread, exactly once, never inside this call). REQUIRES: payload.size() <=
  // reply_to.capacity_bytes.
  virtual void Reply(const ReplyTo& reply_to, const proto::FrameBytes& frame,
                     std::span<const std::byte> payload, absl::Time deadline, ReplyDone done) = 0;

  // Whether peers that ask for it may map memory of the daemon's, and be lent what lies there.
  // Then the answer to such a Hello says version 2.
  virtual bool can_lend() const { return false; }
  // Whether it lies there, and not too much is lent.
  virtual bool CanLendNow(std::span<const std::byte> /*payload*/) const { return false; }
  // Sends the one reply of a request whose payload is not moved: the peer reads it where it lies.
  // The payload must not change until `back` has run, and may change then: what the peer makes of
  // it afterwards it finds to be void (Loan::IsInForce()). Both callbacks run on the lane thread,
  // exactly once, never inside this call, `back` after `sent` and soon after `until` at the latest.
  // REQUIRES: reply_to.takes_loan, CanLendNow(payload).
  virtual void Lend(const ReplyTo& /*reply_to*/, const proto::FrameBytes& /*frame*/,
                    std::span<const std::byte> /*payload*/, absl::Time /*until*/,
                    ReplyDone /*sent*/, LoanDone /*back*/) {}

  // Ends a peer: its connection is forced down, all its transfers complete with Unavailable.
  virtual void Break(PeerId peer) = 0;
};

// What the daemon does with what arrives. Every call is on the lane's thread and must not block.
class LaneHandler {
 public:
  virtual ~LaneHandler() = default;
  virtual void OnArrival(Lane& lane, Arrival arrival) = 0;
  // A client brings so many bytes of memory with a hello of that ticket, which may name no session.
  // Whose they count as, until OnRegionGone(); an error refuses the client.
  virtual absl::StatusOr<std::string> OnRegion(const proto::Ticket& /*ticket*/,
                                               uint64_t /*bytes*/) {
    return std::string();
  }
  virtual void OnRegionGone(const std::string& /*owner*/, uint64_t /*bytes*/) {}
  // The peer is gone for good; no arrival of it follows. Its transfers complete on their own.
  virtual void OnPeerGone(Lane& lane, PeerId peer) = 0;
};

// Limits every server keeps. Each is checked; going over one is a refusal or a closed connection,
// never growth.
struct ServerLimits {
  int lanes = 1;
  int peers_max = 256;         // connections, all lanes together
  int arrivals_held_max = 64;  // per lane: arrived, not yet received or refused
  uint64_t payload_bytes_max = uint64_t{64} << 20;  // of one transfer
  uint64_t region_bytes_max = uint64_t{1} << 30;    // local: mapped client memory per connection
  uint64_t regions_bytes_max = uint64_t{8} << 30;   // local: mapped client memory in all
  // Per lane: lent to transfers that are Breaking; above it receives are refused.
  uint64_t quarantine_bytes_max = uint64_t{256} << 20;
};

// A listening transport with its lanes. Thread-safe. Stop() (also run by the destructor) refuses
// new peers, breaks all peers, completes every transfer, joins the lane threads; bounded by 3
// seconds.
class Server {
 public:
  virtual ~Server() = default;
  virtual void Stop() = 0;
  // Where clients reach it: "unix:/path" or "127.0.0.1:40123" (the port really bound).
  virtual std::string address() const = 0;
  // Looks whether clients still find it at its address, and makes a socket file again that has
  // gone; true says so. FailedPrecondition: somebody else listens there.
  virtual absl::StatusOr<bool> KeepAddress() { return false; }
  virtual int lane_count() const = 0;
  virtual Lane& lane(int index) = 0;
  virtual void Report(MetricSink& sink) const = 0;
};

// ---------------------------------------------------------------------------------------------------
// Client side (the SDK)

// Memory from which puts leave and into which gets land with the fewest copies: inside the
// connection's sealed memfd (local), ordinary memory elsewhere. Move-only; stays readable after its
// Connection ends.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::span<std::byte> bytes() = 0;
};

// The payload of a reply where it lies in the daemon's memory, lent. Destroying it gives it back.
// Once the daemon has taken the loan back, by its deadline or with the connection, the bytes may
// change at any time: copy what is checked before it is used, and look at IsInForce() at the end.
// Thread-safety: Thread-compatible.
class Loan {
 public:
  virtual ~Loan() = default;
  virtual std::span<const std::byte> bytes() const = 0;
  // Whether all that was read of bytes() until now is what was lent.
  virtual bool IsInForce() const = 0;
};

// One request and its reply. Filled in by the caller, lent to the connection from Start() until
// over() is true; it must stay put meanwhile.
struct Call {
  proto::FrameBytes request;
  std::span<const std::byte> payload;  // sent with the request; may be empty
  std::span<std::byte> target;         // where a reply payload lands; its size is the most we take
  bool takes_loan = false;             // a reply payload may be lent instead; nothing else is sent
  absl::Time deadline = absl::InfinitePast();

  // Set when over:
  //   OK                a reply frame came; reply_payload_bytes are in target
  //   DeadlineExceeded  no reply in time; the connection is broken and must be reopened
  //   Unavailable       the daemon is gone
  absl::Status status;
  proto::FrameBytes reply;
  uint64_t reply_payload_bytes = 0;
  std::unique_ptr<Loan> loan;  // not null: they are in loan->bytes(), and not in target

  bool over() const { return is_over; }  // payload and target are free again
  bool is_over = false;
};

// A client's connection to one lane of a daemon. Thread-compatible: one thread at a time drives it;
// it has no thread of its own.
class Connection {
 public:
  virtual ~Connection() = default;  // breaks what is in flight; returns when all memory is free

  // ResourceExhausted when the region is full. A payload or target outside any Buffer of this
  // connection works too, at the price of one more copy.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) = 0;

  // Starts a call. Unavailable when the connection is broken, ResourceExhausted when window() calls
  // are in flight: then nothing was taken. REQUIRES: call->request carries a seq not in flight.
  virtual absl::Status Start(Call* call) = 0;

  // Makes progress until a call ends, `until` passes, or the connection breaks; then returns.
  // Never returns later than 50 ms after `until`.
  virtual void Poll(absl::Time until) = 0;

  virtual bool broken() const = 0;
  // Whether replies may be lent. Over, and nothing of the daemon's mapped, once it is broken.
  virtual bool is_mapped() const { return false; }
  // Lets go of what is mapped of the daemon's, but for loans that are held: replies are moved from
  // now on. Does nothing while a call is in flight.
  virtual void Unmap() {}
  virtual int window() const = 0;  // most calls in flight
};

}  // namespace cairn::transport
