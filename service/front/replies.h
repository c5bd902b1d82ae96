// SPDX-License-Identifier: Apache-2.0
#pragma once
// The way back: every reply of one data server, from whatever thread made it to the lane that sends
// it.
//
// A reply made on another thread waits in its lane's outbox. At most one task of ours, never more,
// waits in a lane's own queue to empty the outbox, so a lane never refuses a reply for want of
// room.
//
// Thread-safety: SetLane(), Send(), Refuse() and End() are Owned by the lane's thread; the rest is
//                Thread-safe. Must outlive its transport server and the path pool's jobs.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "service/front/data_metrics.h"
#include "service/front/loan_budget.h"
#include "service/front/request.h"
#include "transport/transport.h"

namespace cairn {

// One reply and the request that it answers. Move-only.
struct Outgoing {
  Request request;
  proto::Frame frame;
  std::span<const std::byte> payload = {};
  // Runs on the lane with how the transfer went, before kept goes; not at all where the server
  // stops first. May be null.
  transport::ReplyDone sent = nullptr;
  // Owns what payload lies in; destroyed when that is free again.
  absl::AnyInvocable<void()> kept = nullptr;
  // The payload may be lent until then, in so many bytes of the session's: it stays as it is while
  // kept lives. 0: it is moved.
  uint64_t lent_bytes = 0;
  absl::Time lent_until = absl::InfinitePast();
  bool breaks_peer = false;  // once it is sent
};

class Replies {
 public:
  // `over` runs on the lane when a request is over.
  using Over = std::function<void(transport::Lane&, const Request&)>;
  // A get or put that takes longer than `slow` is logged with where its time went.
  // `loans` outlives it.
  Replies(int lanes, const Clock& clock, DataMetrics& metrics, LoanBudget& loans,
          absl::Duration slow, Over over);

  // Has to be called before the first reply of a lane is posted.
  void SetLane(transport::Lane& lane);

  void Send(transport::Lane& lane, Outgoing outgoing);
  void Refuse(transport::Lane& lane, const Request& request, const absl::Status& status);
  // The request is over, answered with `code` or, as a Goodbye, with nothing.
  void End(transport::Lane& lane, const Request& request, absl::StatusCode code);

  // Has the lane send it.
  void Post(Outgoing outgoing);
  // Has the lane end a peer; an unknown one is ignored.
  void BreakPeer(const PeerRef& peer);

 private:
  struct Outbox {
    Mutex mutex;
    transport::Lane* lane ABSL_GUARDED_BY(mutex) = nullptr;
    // At most window * peers of the lane, and a break for each peer.
    std::vector<Outgoing> replies ABSL_GUARDED_BY(mutex);
    std::vector<transport::PeerId> breaks ABSL_GUARDED_BY(mutex);
    bool is_scheduled ABSL_GUARDED_BY(mutex) = false;
    // Of the lane thread; they keep their memory between turns.
    std::vector<Outgoing> leaving;
    std::vector<transport::PeerId> breaking;
  };
  Outbox& OutboxOf(int lane) { return *outboxes_[static_cast<size_t>(lane)]; }
  // False: it is to be sent; nothing of it was taken.
  bool Lend(transport::Lane& lane, const proto::FrameBytes& frame, Outgoing& outgoing);
  // Has the outbox emptied. REQUIRES: the caller has set is_scheduled, which was not set.
  void Schedule(Outbox& outbox, transport::Lane& lane);
  void Drain(transport::Lane& lane);

  const Clock& clock_;
  DataMetrics& metrics_;
  LoanBudget& loans_;
  const absl::Duration slow_;
  const Over over_;
  std::vector<std::unique_ptr<Outbox>> outboxes_;
};

}  // namespace cairn
