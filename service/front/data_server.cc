// SPDX-License-Identifier: Apache-2.0
#include "service/front/data_server.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status.h"

namespace cairn {
namespace {

// An answer that comes late still has to leave: the peer may be waiting with a deadline of its own.
constexpr absl::Duration kReplyGrace = absl::Seconds(1);
constexpr int kSubmitTriesMax = 5000;
constexpr absl::Duration kSubmitPause = absl::Microseconds(200);

absl::Duration TimeLeft(uint32_t deadline_ms) {
  const uint32_t ms = deadline_ms == 0 ? limits::kDataDeadlineMs : deadline_ms;
  return absl::Milliseconds(std::min(ms, limits::kDeadlineMsMax));
}

}  // namespace

DataServer::DataServer(const Parts& parts, const Options& options)
    : parts_(parts), options_(options), metrics_(options.transport_label) {
  for (int i = 0; i < options.lanes; ++i) lanes_.push_back(std::make_unique<LaneState>());
}

DataServer::~DataServer() = default;

// --- on the lane ---------------------------------------------------------------------------------

void DataServer::OnArrival(transport::Lane& lane, transport::Arrival arrival) {
  LaneState& state = *lanes_[static_cast<size_t>(lane.index())];
  const auto [position, is_new] = state.peers.try_emplace(arrival.reply_to().peer);
  Peer& peer = position->second;
  if (is_new) {
    metrics_.peers.Add(1);
    const MutexLock lock(state.mutex);
    state.lane = &lane;
  }
  Request request;
  request.reply_to = arrival.reply_to();
  request.lane = lane.index();
  request.arrived = parts_.clock.Now();
  request.frame.seq = arrival.reply_to().seq;
  request.deadline = request.arrived + TimeLeft(0);
  ++peer.in_flight;
  metrics_.in_flight.Add(1);
  auto frame = proto::ParseFrame(arrival.frame().bytes());
  if (!frame.ok()) return Strike(lane, std::move(request), peer, frame.status(), false);
  request.frame = *std::move(frame);
  request.op = OpOf(request.frame.kind());
  request.deadline = request.arrived + TimeLeft(request.frame.deadline_ms);
  if (request.op == DataOp::kGoodbye) return Over(lane, request, absl::StatusCode::kOk);
  const absl::Status status = CheckRequest(request, arrival, peer);
  if (!status.ok()) return Strike(lane, std::move(request), peer, status, false);
  if (request.op == DataOp::kHello) return StartHello(lane, std::move(request), peer);
  Dispatch(lane, std::move(request), std::move(arrival), peer);
}

absl::Status DataServer::CheckRequest(const Request& request, const transport::Arrival& arrival,
                                      const Peer& peer) const {
  if (request.op == DataOp::kOther) {
    return absl::InvalidArgumentError("kind: a reply where a request belongs");
  }
  if (request.frame.seq != arrival.reply_to().seq) {
    return absl::InvalidArgumentError("seq: not that of the transport");
  }
  if (request.frame.payload_bytes != arrival.payload_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("payload_bytes: the frame says ",
                                                   request.frame.payload_bytes, ", what comes has ",
                                                   arrival.payload_bytes()));
  }
  if (request.op != DataOp::kPut && arrival.payload_bytes() != 0) {
    return absl::InvalidArgumentError("payload_bytes: only a put has a payload");
  }
  if (arrival.payload_bytes() > options_.payload_bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat("payload_bytes: ", arrival.payload_bytes(),
                                                   " is over ", options_.payload_bytes_max));
  }
  if (peer.is_greeted == (request.op == DataOp::kHello)) {
    return absl::FailedPreconditionError("hello must be the first frame and the first only");
  }
  if (peer.is_greeted && peer.in_flight > peer.window) {
    return absl::ResourceExhaustedError(
        absl::StrCat("window: more than ", peer.window, " requests in flight"));
  }
  return absl::OkStatus();
}

void DataServer::Dispatch(transport::Lane& lane, Request request, transport::Arrival arrival,
                          Peer& peer) {
  if (!proto::TicketsEqual(request.frame.ticket, peer.ticket)) {
    metrics_.bad_tickets.Add();
    const auto status = absl::PermissionDeniedError("ticket: not that of this connection");
    return Strike(lane, std::move(request), peer, status, true);
  }
  if (!parts_.sessions.IsOpen(peer.session.id)) {
    return Refuse(lane, std::move(request), absl::UnavailableError("the session has ended"));
  }
  request.session = peer.session;
  switch (request.op) {
    case DataOp::kPing: {
      const proto::Frame reply = ReplyOf(request, proto::Pong{});
      return Send(lane, std::move(request), reply, Answer(), false);
    }
    case DataOp::kGet:
      return StartGet(lane, std::move(request));
    default:
      return StartPut(lane, std::move(request), std::move(arrival));
  }
}

void DataServer::StartHello(transport::Lane& lane, Request request, Peer& peer) {
  const auto session = parts_.sessions.Find(request.frame.ticket);
  if (!session.ok()) {
    metrics_.bad_tickets.Add();
    const auto status = absl::PermissionDeniedError("ticket: names no open session");
    return Strike(lane, std::move(request), peer, status, true);
  }
  const PeerRef ref{options_.server, lane.index(), request.reply_to.peer};
  const absl::Status attached = parts_.sessions.AttachPeer(session->id, ref);
  if (!attached.ok()) return Strike(lane, std::move(request), peer, attached, true);
  const auto& hello = std::get<proto::Hello>(request.frame.body);
  peer.session = *session;
  peer.ticket = request.frame.ticket;
  peer.is_greeted = true;
  peer.window = std::min(hello.window, options_.window);
  const proto::Frame reply =
      ReplyOf(request, proto::HelloReply{.version = 1,
                                         .window = peer.window,
                                         .payload_bytes_max = options_.payload_bytes_max});
  Send(lane, std::move(request), reply, Answer(), false);
}

void DataServer::StartGet(transport::Lane& lane, Request request) {
  PathPool::Job job = [this, request] { RunGet(request); };
  const absl::Status status = parts_.pool.Submit(std::move(job));
  if (!status.ok()) {
    parts_.get.Count(GetPath::Outcome::kRefused);
    Refuse(lane, std::move(request), status);
  }
}

void DataServer::StartPut(transport::Lane& lane, Request request, transport::Arrival arrival) {
  if (refuses_puts_.load(std::memory_order_relaxed)) {
    parts_.put.Count(PutPath::Outcome::kRefused);
    return Refuse(lane, std::move(request), absl::UnavailableError("draining: no new puts"));
  }
  auto context = Admit(parts_.put, request.session, request.frame);
  if (!context.ok()) return Refuse(lane, std::move(request), context.status());
  if (context->is_duplicate()) {
    const proto::Frame reply = ReplyOf(request, context->reply());
    return Send(lane, std::move(request), reply, Answer(), false);
  }
  const std::span<std::byte> target = context->target();
  const absl::Time deadline = request.deadline;
  lane.Receive(std::move(arrival), target, deadline,
               [this, &lane, request = std::move(request),
                context = *std::move(context)](const transport::Received& received) mutable {
                 Landed(lane, std::move(request), std::move(context), received);
               });
}

void DataServer::Landed(transport::Lane& lane, Request request, PutContext context,
                        const transport::Received& received) {
  if (!received.status.ok()) {
    parts_.put.CountFailure(received.status);
    return Refuse(lane, std::move(request), received.status);
  }
  if (parts_.pool.is_busy()) context.KeepRaw();
  PathPool::Job job = [this, request, context = std::move(context),
                       crc32c = received.crc32c]() mutable {
    RunPut(std::move(request), std::move(context), crc32c);
  };
  const absl::Status status = parts_.pool.Submit(std::move(job));
  if (!status.ok()) {
    parts_.put.CountFailure(status);
    Refuse(lane, std::move(request), status);
  }
}

void DataServer::Strike(transport::Lane& lane, Request request, Peer& peer,
                        const absl::Status& status, bool is_last) {
  metrics_.bad_frames.Add();
  ++peer.strikes;
  const bool breaks = is_last || peer.strikes >= kStrikesMax;
  if (breaks) {
    metrics_.peers_broken.Add();
    LogWarn(
        "data", "peer broke the rules and is dropped",
        {{"transport", options_.transport_label}, {"session", peer.session.id}, {"error", status}});
  }
  const proto::Frame reply = proto::ErrorFrame(request.frame.seq, request.frame.ticket, status);
  Send(lane, std::move(request), reply, Answer(), breaks);
}

void DataServer::Refuse(transport::Lane& lane, Request request, const absl::Status& status) {
  const proto::Frame reply = proto::ErrorFrame(request.frame.seq, request.frame.ticket, status);
  Send(lane, std::move(request), reply, Answer(), false);
}

void DataServer::Send(transport::Lane& lane, Request request, const proto::Frame& reply,
                      Answer answer, bool breaks_after) {
  const transport::ReplyTo reply_to = request.reply_to;
  const std::span<const std::byte> payload = answer.payload;
  const absl::Time now = parts_.clock.Now();
  const absl::Time deadline = std::max(request.deadline, now + kReplyGrace);
  const bool has_answer = reply.kind() == proto::FrameKind::kGetReply;
  lane.Reply(
      reply_to, proto::Serialize(reply), payload, deadline,
      [this, &lane, request = std::move(request), answer = std::move(answer), code = reply.status,
       now, has_answer, breaks_after](const absl::Status& sent) mutable {
        if (has_answer) {
          parts_.get.seconds(GetPath::Step::kSend).Observe(parts_.clock.Now() - now);
          if (sent.ok()) parts_.get.sent_bytes.Add(answer.payload.size());
        }
        answer = Answer();
        Over(lane, request, sent.ok() ? code : sent.code());
        if (breaks_after) lane.Break(request.reply_to.peer);
      });
}

void DataServer::Over(transport::Lane& lane, const Request& request, absl::StatusCode code) {
  auto& peers = lanes_[static_cast<size_t>(lane.index())]->peers;
  if (const auto peer = peers.find(request.reply_to.peer); peer != peers.end()) {
    --peer->second.in_flight;
  }
  // In this order, so that what is no longer in flight is counted.
  metrics_.Count(request.op, code, parts_.clock.Now() - request.arrived);
  metrics_.in_flight.Add(-1);
}

void DataServer::OnPeerGone(transport::Lane& lane, transport::PeerId peer) {
  auto& peers = lanes_[static_cast<size_t>(lane.index())]->peers;
  const auto position = peers.find(peer);
  if (position == peers.end()) return;
  if (position->second.is_greeted) {
    parts_.sessions.DetachPeer(position->second.session.id,
                               PeerRef{options_.server, lane.index(), peer});
  }
  peers.erase(position);
  metrics_.peers.Add(-1);
}

// --- on the pool ---------------------------------------------------------------------------------

void DataServer::RunGet(const Request& request) {
  const auto& get = std::get<proto::Get>(request.frame.body);
  absl::StatusOr<Answer> answer = absl::DeadlineExceededError("waited too long for its turn");
  if (parts_.clock.Now() < request.deadline) {
    answer = Get(parts_.get, request.session, get,
                 std::min(get.target_bytes, request.reply_to.capacity_bytes));
  } else {
    parts_.get.Count(GetPath::Outcome::kRefused);
  }
  if (!answer.ok()) {
    const auto reply = proto::ErrorFrame(request.frame.seq, request.frame.ticket, answer.status());
    return Post(request.lane, {.request = request, .reply = reply});
  }
  proto::Frame reply = ReplyOf(request, answer->reply);
  reply.payload_bytes = answer->payload.size();
  reply.payload_crc32c = answer->payload_crc32c;
  Post(request.lane, {.request = request, .reply = reply, .answer = *std::move(answer)});
}

void DataServer::RunPut(const Request& request, PutContext context, uint32_t crc32c) {
  absl::Status status = absl::DeadlineExceededError("waited too long for its turn");
  if (parts_.clock.Now() < request.deadline) {
    status = Put(context, Arrived(context, crc32c));
  } else {
    parts_.put.CountFailure(status);
  }
  const proto::Frame reply =
      status.ok() ? ReplyOf(request, context.reply())
                  : proto::ErrorFrame(request.frame.seq, request.frame.ticket, status);
  context = PutContext();  // its memory is free before the client hears of it
  Post(request.lane, {.request = request, .reply = reply});
}

// --- anywhere ------------------------------------------------------------------------------------

proto::Frame DataServer::ReplyOf(const Request& request, proto::Body body) const {
  proto::Frame reply;
  reply.seq = request.frame.seq;
  reply.ticket = request.frame.ticket;
  reply.body = std::move(body);
  return reply;
}

void DataServer::BreakPeer(const PeerRef& peer) {
  if (peer.lane < 0 || static_cast<size_t>(peer.lane) >= lanes_.size()) return;
  Post(peer.lane, {.peer_to_break = peer.peer});
}

// At most one task of ours waits in a lane's queue, so that it never refuses a reply for want of
// room.
void DataServer::Post(int lane, Outgoing outgoing) {
  LaneState& state = *lanes_[static_cast<size_t>(lane)];
  transport::Lane* target = nullptr;
  {
    const MutexLock lock(state.mutex);
    state.outbox.push_back(std::move(outgoing));
    if (state.lane == nullptr || std::exchange(state.is_scheduled, true)) return;
    target = state.lane;
  }
  absl::Status status;
  for (int i = 0; i < kSubmitTriesMax; ++i) {
    status = target->Submit([this](transport::Lane& ours) { DrainOutbox(ours); });
    if (!absl::IsResourceExhausted(status)) break;
    absl::SleepFor(kSubmitPause);
  }
  if (status.ok()) return;
  // The server is stopping: all its peers are gone, and with them all who could be answered.
  std::vector<Outgoing> dropped;
  {
    const MutexLock lock(state.mutex);
    dropped.swap(state.outbox);
    state.is_scheduled = false;
  }
  for (const Outgoing& lost : dropped) {
    if (lost.peer_to_break == 0) metrics_.in_flight.Add(-1);
  }
  if (!absl::IsUnavailable(status)) LogError("data", "lane takes no tasks", {{"error", status}});
}

void DataServer::DrainOutbox(transport::Lane& lane) {
  LaneState& state = *lanes_[static_cast<size_t>(lane.index())];
  {
    const MutexLock lock(state.mutex);
    state.draining.swap(state.outbox);
    state.is_scheduled = false;
  }
  for (Outgoing& outgoing : state.draining) {
    if (outgoing.peer_to_break != 0) {
      lane.Break(outgoing.peer_to_break);
    } else {
      Send(lane, std::move(outgoing.request), outgoing.reply, std::move(outgoing.answer), false);
    }
  }
  state.draining.clear();
}

}  // namespace cairn
