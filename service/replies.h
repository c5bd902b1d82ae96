// SPDX-License-Identifier: Apache-2.0
#pragma once
// Passes the replies of one data server from the threads that make them to the lanes that send
// them.
//
// A reply that was made on the lane's own thread is sent at once. A reply from another thread waits
// in the lane's outbox. A task in the lane's queue empties the outbox, and there is at most one
// such task. So a lane never refuses a reply for lack of room.
//
// Thread-safety: SetLane(), SendReply(), RefuseRequest() and EndRequest() are Owned by the lane's
// thread. The rest is Thread-safe. Must outlive its transport server and the path pool's jobs.

#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "service/data_metrics.h"
#include "service/loan_budget.h"
#include "service/request.h"
#include "transport/transport.h"

namespace cairn {

// A reply, and the request that it answers. Move-only.
struct Outgoing {
  Request request;
  proto::Frame frame;
  std::span<const std::byte> payload = {};
  // If not empty, the reply's payload is `payload`, followed by the bytes of `places`. `kept` owns
  // the list, too. REQUIRES: request.reply_to.takes_places.
  std::span<const std::span<const std::byte>> places = {};
  // Runs on the lane with the outcome of the transfer, unless the server stops before. May be null.
  transport::ReplyDone sent = nullptr;
  // Owns the memory of the payload. Destroyed when the transfer no longer uses it.
  absl::AnyInvocable<void()> kept = nullptr;
  // If not empty, the payload may be lent to the client until `lent_until`. The loan then counts
  // these bytes in the session's loan budget. The payload does not change while `kept` lives.
  LoanBudget::Bytes lent_bytes = {};
  absl::Time lent_until = absl::InfinitePast();
  bool breaks_peer = false;  // disconnects the peer after the reply is sent
};

class Replies {
 public:
  // Called on the lane when a request is complete.
  using RequestDone = std::function<void(transport::Lane&, const Request&)>;
  // Gets and puts that take longer than `slow` are logged with the time of each step. `loans` must
  // outlive this object.
  Replies(int lanes, const Clock& clock, DataMetrics& metrics, LoanBudget& loans,
          absl::Duration slow, RequestDone request_done);

  // Must be called before the first reply of a lane is posted.
  void SetLane(transport::Lane& lane);

  void SendReply(transport::Lane& lane, Outgoing outgoing);
  void RefuseRequest(transport::Lane& lane, const Request& request, const absl::Status& status);
  // Ends a request that was answered with `code`. Also ends a Goodbye, which has no answer.
  void EndRequest(transport::Lane& lane, const Request& request, absl::StatusCode code);

  // Sends a reply at once if called on the reply's lane. Otherwise queues it for the lane.
  void PostReply(Outgoing outgoing);
  // Queues the disconnection of a peer. Ignores unknown peers.
  void BreakPeer(const PeerRef& peer);

 private:
  struct Outbox {
    Mutex mutex;
    transport::Lane* lane ABSL_GUARDED_BY(mutex) = nullptr;
    std::thread::id thread ABSL_GUARDED_BY(mutex);  // the thread of the lane
    // Has at most window * peers replies, and one disconnection per peer.
    std::vector<Outgoing> replies ABSL_GUARDED_BY(mutex);
    std::vector<transport::PeerId> breaks ABSL_GUARDED_BY(mutex);
    bool is_scheduled ABSL_GUARDED_BY(mutex) = false;
    // Used only by the lane's thread. The vectors keep their memory, so that sending does not
    // allocate.
    std::vector<Outgoing> leaving;
    std::vector<transport::PeerId> breaking;
  };
  Outbox& OutboxOf(int lane) { return *outboxes_[static_cast<size_t>(lane)]; }
  // Lends the payload to the peer. If the payload must be sent instead, returns false and does not
  // move anything.
  bool LendPayload(transport::Lane& lane, const proto::FrameBytes& frame, Outgoing& outgoing);
  // Schedules a task that empties the outbox. REQUIRES: the caller has set is_scheduled to true.
  void ScheduleDrain(Outbox& outbox, transport::Lane& lane);
  void DrainOutbox(transport::Lane& lane);

  const Clock& clock_;
  DataMetrics& metrics_;
  LoanBudget& loans_;
  const absl::Duration slow_;
  const RequestDone request_done_;
  std::vector<std::unique_ptr<Outbox>> outboxes_;
};

}  // namespace cairn
