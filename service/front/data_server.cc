// SPDX-License-Identifier: Apache-2.0
#include "service/front/data_server.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"

namespace cairn {
namespace {

absl::Duration TimeLeft(uint32_t deadline_ms) {
  const uint32_t ms = deadline_ms == 0 ? limits::kDataDeadlineMs : deadline_ms;
  return absl::Milliseconds(std::min(ms, limits::kDeadlineMsMax));
}

}  // namespace

DataServer::DataServer(const Parts& parts, const Options& options)
    : parts_(parts),
      options_(options),
      metrics_(options.transport_label),
      loans_(options.lent_host_bytes, options.lent_staging_bytes),
      replies_(
          options.lanes, parts.clock, metrics_, loans_, options.slow,
          [this](transport::Lane& lane, const Request& request) { OnRequestDone(lane, request); }),
      peers_(static_cast<size_t>(options.lanes)),
      regions_("region_bytes", options.regions_bytes_max) {}

void DataServer::OnArrival(transport::Lane& lane, transport::Arrival arrival) {
  const auto [position, is_new] = PeersOf(lane).try_emplace(arrival.reply_to().peer);
  Peer& peer = position->second;
  if (is_new) {
    metrics_.peers.Add(1);
    replies_.SetLane(lane);
  }
  Request request;
  request.reply_to = arrival.reply_to();
  request.lane = lane.index();
  request.seq = arrival.reply_to().seq;
  request.arrived = parts_.clock.Now();
  request.deadline = request.arrived + TimeLeft(0);
  ++peer.in_flight;
  metrics_.in_flight.Add(1);
  const auto frame = proto::ParseFrame(arrival.frame().bytes());
  if (!frame.ok()) return Strike(lane, request, peer, frame.status(), false);
  request.seq = frame->seq;
  request.ticket = frame->ticket;
  request.trace = frame->trace;
  request.op = OpOf(frame->kind());
  request.deadline = request.arrived + TimeLeft(frame->deadline_ms);
  if (request.op == DataOp::kGoodbye) {
    return replies_.EndRequest(lane, request, absl::StatusCode::kOk);
  }
  const absl::Status status = CheckRequest(request, *frame, arrival, peer);
  if (!status.ok()) return Strike(lane, request, peer, status, false);
  if (request.op == DataOp::kHello) return Greet(lane, request, *frame, arrival.identity(), peer);
  Dispatch(lane, std::move(request), *frame, std::move(arrival), peer);
}

absl::Status DataServer::CheckRequest(const Request& request, const proto::Frame& frame,
                                      const transport::Arrival& arrival, const Peer& peer) const {
  if (request.op == DataOp::kOther) {
    return absl::InvalidArgumentError("kind: expected a request, got a reply");
  }
  if (request.seq != arrival.reply_to().seq) {
    return absl::InvalidArgumentError("seq: differs from the transport's");
  }
  if (frame.payload_bytes != arrival.payload_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("payload_bytes: the frame says ",
                                                   frame.payload_bytes, ", the transport says ",
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
    return absl::FailedPreconditionError("hello must be the first frame, and only the first");
  }
  if (peer.is_greeted && peer.in_flight > peer.window) {
    return absl::ResourceExhaustedError(
        absl::StrCat("window: more than ", peer.window, " requests in flight"));
  }
  return absl::OkStatus();
}

void DataServer::Greet(transport::Lane& lane, const Request& request, const proto::Frame& frame,
                       const PeerIdentity* identity, Peer& peer) {
  const auto session = parts_.sessions.Find(request.ticket);
  if (!session.ok()) {
    metrics_.bad_tickets.Add();
    const auto status = absl::IsUnavailable(session.status())
                            ? session.status()
                            : absl::PermissionDeniedError("ticket: names no open session");
    return Strike(lane, request, peer, status, true);
  }
  const PeerRef ref{options_.server, lane.index(), request.reply_to.peer};
  const absl::Status attached = parts_.sessions.AttachPeer(session->id, ref, identity);
  if (!attached.ok()) return Strike(lane, request, peer, attached, true);
  const auto& hello = std::get<proto::Hello>(frame.body);
  peer.session = *session;
  peer.ticket = request.ticket;
  peer.is_greeted = true;
  peer.window = std::min(hello.window, options_.window);
  const proto::HelloReply reply = {.version = loans_.is_lending() && lane.can_lend() &&
                                                      hello.version_max >= proto::kVersionWithLoans
                                                  ? proto::kVersionWithLoans
                                                  : uint16_t{1},
                                   .window = peer.window,
                                   .payload_bytes_max = options_.payload_bytes_max,
                                   .batch_max = hello.version_max >= proto::kVersionWithBatches
                                                    ? limits::kBatchMax
                                                    : uint16_t{0}};
  replies_.SendReply(lane, {.request = request, .frame = request.Reply(reply)});
}

void DataServer::Dispatch(transport::Lane& lane, Request request, const proto::Frame& frame,
                          transport::Arrival arrival, Peer& peer) {
  if (!proto::TicketsEqual(request.ticket, peer.ticket)) {
    metrics_.bad_tickets.Add();
    const auto status = absl::PermissionDeniedError("ticket: differs from the connection's");
    return Strike(lane, request, peer, status, true);
  }
  if (!parts_.sessions.IsOpen(peer.session.id)) {
    return replies_.RefuseRequest(lane, request, absl::UnavailableError("the session has ended"));
  }
  request.session = peer.session;
  switch (request.op) {
    case DataOp::kPing:
      return replies_.SendReply(lane, {.request = request, .frame = request.Reply(proto::Pong{})});
    case DataOp::kGet: {
      const auto& get = std::get<proto::Get>(frame.body);
      request.space_id = get.space_id;
      request.key = get.key;
      return parts_.gets.StartGet(replies_, std::move(request), frame);
    }
    default: {
      const auto& put = std::get<proto::Put>(frame.body);
      request.space_id = put.space_id;
      request.key = put.key;
      return parts_.puts.StartPut(lane, replies_, std::move(request), frame, std::move(arrival));
    }
  }
}

void DataServer::Strike(transport::Lane& lane, const Request& request, Peer& peer,
                        const absl::Status& status, bool is_last) {
  metrics_.bad_frames.Add();
  ++peer.strikes;
  const bool breaks = is_last || peer.strikes >= kStrikesMax;
  if (breaks) {
    metrics_.peers_broken.Add();
    LogWarn(
        "data", "peer broke the protocol: disconnected",
        {{"transport", options_.transport_label}, {"session", peer.session.id}, {"error", status}});
  }
  replies_.SendReply(lane,
                     {.request = request, .frame = request.Error(status), .breaks_peer = breaks});
}

void DataServer::OnRequestDone(transport::Lane& lane, const Request& request) {
  Peers& peers = PeersOf(lane);
  if (const auto peer = peers.find(request.reply_to.peer); peer != peers.end()) {
    --peer->second.in_flight;
  }
}

absl::StatusOr<std::string> DataServer::OnRegion(const proto::Ticket& ticket,
                                                 const PeerIdentity& identity, uint64_t bytes) {
  const absl::StatusOr<Session> session = parts_.sessions.Find(ticket);
  if (session.ok()) CAIRN_RETURN_IF_ERROR(parts_.sessions.CheckPeer(session->id, &identity));
  std::string owner(session.ok() ? session->tenant.view() : std::string_view());
  const MutexLock lock(regions_mutex_);
  CAIRN_RETURN_IF_ERROR(regions_.CheckRoom(owner, bytes));
  regions_.Add(owner, bytes);
  return owner;
}

void DataServer::OnRegionGone(const std::string& owner, uint64_t bytes) {
  const MutexLock lock(regions_mutex_);
  regions_.Remove(owner, bytes);
}

void DataServer::Report(MetricSink& sink) const {
  metrics_.Report(sink);
  if (loans_.is_lending()) loans_.Report(sink);
  const MutexLock lock(regions_mutex_);
  if (regions_.max() > 0) regions_.Report(sink);
}

void DataServer::OnPeerGone(transport::Lane& lane, transport::PeerId peer) {
  Peers& peers = PeersOf(lane);
  const auto position = peers.find(peer);
  if (position == peers.end()) return;
  if (position->second.is_greeted) {
    parts_.sessions.DetachPeer(position->second.session.id,
                               PeerRef{options_.server, lane.index(), peer});
  }
  peers.erase(position);
  metrics_.peers.Add(-1);
}

}  // namespace cairn
