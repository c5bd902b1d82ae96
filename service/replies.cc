// SPDX-License-Identifier: Apache-2.0
#include "service/replies.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "proto/block_key.h"
#include "proto/traceparent.h"

namespace cairn {
namespace {

// A late answer must still be sent, because the peer may be waiting with a deadline of its own.
constexpr absl::Duration kReplyGrace = absl::Seconds(1);
constexpr int kSubmitTriesMax = 50;
constexpr absl::Duration kSubmitPause = absl::Microseconds(200);
constexpr size_t kKeyBytesLogged = 8;

// Rounds down to whole microseconds.
absl::Duration Rounded(absl::Duration step) { return absl::Trunc(step, absl::Microseconds(1)); }

// Returns the time between two events, or zero if the second one did not happen.
absl::Duration Between(absl::Time from, absl::Time to) {
  return to == absl::InfinitePast() ? absl::ZeroDuration() : Rounded(to - from);
}

void LogSlow(const Request& request, absl::StatusCode code, absl::Time now) {
  const RequestTimes& times = request.times;
  const absl::Time landed = std::max(request.arrived, times.landed);
  const absl::Time made = std::max(std::max(landed, times.started), times.made);
  LogWarn("data", request.op == DataOp::kGet ? "get was slow" : "put was slow",
          {{"request", absl::StrCat(request.session.id, "/", request.seq)},
           {"trace", proto::TraceName(request.trace)},
           {"tenant", request.session.tenant.view()},
           {"space", request.space_id},
           {"key", proto::Hex(std::span(request.key).first(kKeyBytesLogged))},
           {"code", absl::StatusCodeToString(code)},
           {"took", Rounded(now - request.arrived)},
           {"receive", Between(request.arrived, times.landed)},
           {"queue", Between(landed, times.started)},
           {"path", Between(times.started, times.made) - Rounded(times.promote)},
           {"promote", Rounded(times.promote)},
           {"send", Rounded(now - made)}});
}

}  // namespace

Replies::Replies(int lanes, const Clock& clock, DataMetrics& metrics, LoanBudget& loans,
                 absl::Duration slow, RequestDone request_done)
    : clock_(clock),
      metrics_(metrics),
      loans_(loans),
      slow_(slow),
      request_done_(std::move(request_done)) {
  for (int i = 0; i < lanes; ++i) outboxes_.push_back(std::make_unique<Outbox>());
}

void Replies::SetLane(transport::Lane& lane) {
  Outbox& outbox = OutboxOf(lane.index());
  const MutexLock lock(outbox.mutex);
  outbox.lane = &lane;
  outbox.thread = std::this_thread::get_id();
}

void Replies::SendReply(transport::Lane& lane, Outgoing outgoing) {
  const transport::ReplyTo reply_to = outgoing.request.reply_to;
  const proto::FrameBytes frame = proto::Serialize(outgoing.frame);
  if (!outgoing.lent_bytes.is_empty() && LendPayload(lane, frame, outgoing)) return;
  const std::span<const std::byte> payload = outgoing.payload;
  const std::span<const std::span<const std::byte>> places = outgoing.places;
  const absl::Time deadline = std::max(outgoing.request.deadline, clock_.Now() + kReplyGrace);
  transport::ReplyDone done =
      [this, &lane, request = std::move(outgoing.request), code = outgoing.frame.status,
       sent = std::move(outgoing.sent), kept = std::move(outgoing.kept),
       breaks_peer = outgoing.breaks_peer](const absl::Status& status) mutable {
        if (sent) sent(status);
        kept = nullptr;
        EndRequest(lane, request, status.ok() ? code : status.code());
        if (breaks_peer) lane.Break(request.reply_to.peer);
      };
  if (places.empty()) {
    lane.Reply(reply_to, frame, payload, deadline, std::move(done));
  } else {
    lane.ReplyPlaces(reply_to, frame, {payload, places}, deadline, std::move(done));
  }
}

bool Replies::LendPayload(transport::Lane& lane, const proto::FrameBytes& frame,
                          Outgoing& outgoing) {
  const uint64_t session_id = outgoing.request.session.id;
  const LoanBudget::Bytes bytes = outgoing.lent_bytes;
  const std::span<const std::span<const std::byte>> places = outgoing.places;
  const bool can_lend =
      places.empty() ? lane.CanLendNow(outgoing.payload)
                     : std::all_of(places.begin(), places.end(),
                                   [&](const auto& place) { return lane.CanLendNow(place); });
  if (!can_lend || !loans_.TakeBytes(session_id, bytes)) return false;
  transport::ReplyDone sent =
      [this, &lane, request = outgoing.request, code = outgoing.frame.status,
       then = std::move(outgoing.sent)](const absl::Status& status) mutable {
        if (then) then(status);
        EndRequest(lane, request, status.ok() ? code : status.code());
      };
  transport::LoanDone back = [this, session_id, bytes,
                              kept = std::move(outgoing.kept)](transport::LoanEnd) mutable {
    kept = nullptr;
    loans_.GiveBytesBack(session_id, bytes);
  };
  const transport::ReplyTo& reply_to = outgoing.request.reply_to;
  if (places.empty()) {
    lane.Lend(reply_to, frame, outgoing.payload, outgoing.lent_until, std::move(sent),
              std::move(back));
  } else {
    lane.LendPlaces(reply_to, frame, {outgoing.payload, places}, outgoing.lent_until,
                    std::move(sent), std::move(back));
  }
  return true;
}

void Replies::RefuseRequest(transport::Lane& lane, const Request& request,
                            const absl::Status& status) {
  SendReply(lane, {.request = request, .frame = request.Error(status)});
}

void Replies::EndRequest(transport::Lane& lane, const Request& request, absl::StatusCode code) {
  request_done_(lane, request);
  // Count and log the request before it leaves in_flight.
  const absl::Time now = clock_.Now();
  metrics_.Count(request.op, code, now - request.arrived);
  if (now - request.arrived > slow_ && (request.op == DataOp::kGet || request.op == DataOp::kPut)) {
    LogSlow(request, code, now);
  }
  metrics_.in_flight.Add(-1);
}

void Replies::PostReply(Outgoing outgoing) {
  Outbox& outbox = OutboxOf(outgoing.request.lane);
  transport::Lane* lane = nullptr;
  bool is_lane_thread = false;
  {
    const MutexLock lock(outbox.mutex);
    lane = outbox.lane;
    is_lane_thread = lane != nullptr && outbox.thread == std::this_thread::get_id();
    if (!is_lane_thread) {
      outbox.replies.push_back(std::move(outgoing));
      if (lane == nullptr || std::exchange(outbox.is_scheduled, true)) return;
    }
  }
  return is_lane_thread ? SendReply(*lane, std::move(outgoing)) : ScheduleDrain(outbox, *lane);
}

void Replies::BreakPeer(const PeerRef& peer) {
  if (peer.lane < 0 || static_cast<size_t>(peer.lane) >= outboxes_.size()) return;
  Outbox& outbox = OutboxOf(peer.lane);
  transport::Lane* lane = nullptr;
  {
    const MutexLock lock(outbox.mutex);
    outbox.breaks.push_back(peer.peer);
    lane = outbox.lane;
    if (lane == nullptr || std::exchange(outbox.is_scheduled, true)) return;
  }
  ScheduleDrain(outbox, *lane);
}

void Replies::ScheduleDrain(Outbox& outbox, transport::Lane& lane) {
  absl::Status status;
  for (int i = 0; i < kSubmitTriesMax; ++i) {
    status = lane.Submit([this](transport::Lane& ours) { DrainOutbox(ours); });
    if (!absl::IsResourceExhausted(status)) break;
    absl::SleepFor(kSubmitPause);
  }
  if (status.ok()) return;
  if (absl::IsResourceExhausted(status)) {
    // The replies stay in the outbox. The next reply schedules the task again.
    LogError("data", "lane accepts no tasks", {{"error", status}});
    const MutexLock lock(outbox.mutex);
    outbox.is_scheduled = false;
    return;
  }
  // The server is stopping and all its peers are disconnected, so nobody receives the replies.
  std::vector<Outgoing> dropped;
  {
    const MutexLock lock(outbox.mutex);
    dropped.swap(outbox.replies);
    outbox.breaks.clear();
    outbox.is_scheduled = false;
  }
  metrics_.in_flight.Add(-static_cast<int64_t>(dropped.size()));
}

void Replies::DrainOutbox(transport::Lane& lane) {
  Outbox& outbox = OutboxOf(lane.index());
  {
    const MutexLock lock(outbox.mutex);
    outbox.leaving.swap(outbox.replies);
    outbox.breaking.swap(outbox.breaks);
    outbox.is_scheduled = false;
  }
  for (Outgoing& outgoing : outbox.leaving) SendReply(lane, std::move(outgoing));
  outbox.leaving.clear();
  for (const transport::PeerId peer : outbox.breaking) lane.Break(peer);
  outbox.breaking.clear();
}

}  // namespace cairn
