// SPDX-License-Identifier: Apache-2.0
// What arrives at a lane: peers, their memory, their requests. Everything here is hostile.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/local/lane.h"
#include "transport/local/lane_internal.h"

namespace cairn::transport {
namespace {

constexpr int kAcceptsPerTurn = 16;
constexpr int kPacketsPerTurn = 16;  // of one peer
constexpr absl::Duration kListenPause = absl::Milliseconds(100);

}  // namespace

void LocalLane::ServeListener() {
  for (int i = 0; i < kAcceptsPerTurn && is_listening_; ++i) {
    switch (accept_()) {
      case Accepted::kPeer:
        break;
      case Accepted::kNone:
        return;
      case Accepted::kNoDescriptor:
        // The connection stays in the backlog; asking for it again at once would only burn the CPU.
        is_listening_ = false;
        listen_again_ = MonotonicNow() + kListenPause;
        WatchSocket(epoll_.get(), listener_, kListenerTag, 0);
        break;
    }
  }
}

bool LocalLane::AddPeer(Fd socket, std::optional<Region> region) {
  LaneShare& share = share_;
  const absl::Status taken =
      Submit([socket = std::move(socket), region = std::move(region)](Lane& lane) mutable {
        static_cast<LocalLane&>(lane).OpenPeer(std::move(socket), std::move(region));
      });
  if (!taken.ok()) {
    share.metrics.peers_refused.Add();
    share.peers.fetch_sub(1);
  }
  return taken.ok();
}

void LocalLane::OpenPeer(Fd socket, std::optional<Region> region) {
  auto peer = std::make_unique<Peer>();
  peer->id = (++peers_made_ << kLaneBits) | static_cast<uint64_t>(index_);
  peer->socket = std::move(socket);
  peer->identity = PeerIdentityOf(peer->socket.get());
  if (region.has_value()) {
    peer->region = std::move(*region);
    peer->has_region = true;
  }
  greeting_.emplace_back(MonotonicNow() + kHelloWait, peer->id);
  share_.metrics.peers_opened.Add();
  share_.metrics.peers.Add(1);
  WatchSocket(epoll_.get(), peer->socket.get(), peer->id, EPOLLIN | EPOLLRDHUP);
  peers_.emplace(peer->id, std::move(peer));
}

void LocalLane::ReadPeer(Peer& peer) {
  for (int i = 0; i < kPacketsPerTurn && !peer.is_breaking; ++i) {
    Packet packet = ReceivePacket(peer.socket.get());
    switch (packet.outcome) {
      case Packet::Outcome::kNothing:
        return;
      case Packet::Outcome::kClosed:
        BreakPeer(peer, absl::UnavailableError("the peer is gone"));
        return;
      case Packet::Outcome::kPacket:
        TakePacket(peer, std::move(packet));
        break;
    }
  }
}

void LocalLane::TakePacket(Peer& peer, Packet packet) {
  const auto drop = [&](const absl::Status& why) {
    LogDebug("transport", "peer sends what it must not", {{"peer", peer.id}, {"why", why}});
    (peer.is_open ? share_.metrics.peers_broken : share_.metrics.peers_refused).Add();
    BreakPeer(peer, absl::UnavailableError("the peer broke the protocol"));
  };
  if (packet.is_cut) {
    return drop(absl::InvalidArgumentError("message: longer than any may be"));
  }
  absl::StatusOr<Message> message = ParseMessage(packet.bytes(), Direction::kRequest);
  if (!message.ok()) {
    return drop(message.status());
  }
  if (!peer.is_open) {
    if (absl::Status taken = TakeHello(peer, *message, std::move(packet.fds)); !taken.ok()) {
      // Said before the socket closes, so that an honest client learns what was wrong with its
      // memory.
      const proto::Frame error = proto::ErrorFrame(message->seq, {}, taken);
      SendPacket(peer.socket.get(),
                 Serialize({.direction = Direction::kReply}, proto::Serialize(error)).bytes())
          .IgnoreError();  // it is closed in any case
      return drop(taken);
    }
  } else if (!packet.fds.empty()) {
    return drop(absl::InvalidArgumentError("message: descriptors after the hello"));
  }
  if (absl::Status placed = CheckPlaces(peer, *message); !placed.ok()) {
    return drop(placed);
  }
  if (++peer.unanswered > kUnansweredMax) {
    return drop(absl::ResourceExhaustedError("more requests than any window allows"));
  }
  TakeRequest(peer, *message);
}

absl::Status LocalLane::TakeHello(Peer& peer, const Message& message, std::vector<Fd> fds) {
  CAIRN_ASSIGN_OR_RETURN(const proto::Frame frame, proto::ParseFrame(message.frame.bytes()));
  const auto* hello = std::get_if<proto::Hello>(&frame.body);
  if (hello == nullptr) {
    return absl::InvalidArgumentError("the first frame of a connection is not a hello");
  }
  if (peer.has_region) {
    if (!fds.empty()) {
      return absl::InvalidArgumentError("hello: descriptors where none is needed");
    }
    peer.is_open = true;
    return absl::OkStatus();
  }
  if (fds.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello: it came with ", fds.size(), " descriptors, expected 1"));
  }
  if (hello->region_bytes > share_.limits.region_bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat("hello.region_bytes is ", hello->region_bytes,
                                                   ", expected at most ",
                                                   share_.limits.region_bytes_max));
  }
  CAIRN_ASSIGN_OR_RETURN(std::string owner,
                         share_.handler.OnRegion(frame.ticket, hello->region_bytes));
  absl::StatusOr<Region> region =
      Region::Map(std::move(fds[0]), share_.limits.region_bytes_max, share_.regions);
  if (region.ok() && region->bytes() != hello->region_bytes) {
    region = absl::InvalidArgumentError(absl::StrCat("hello.region_bytes is ", hello->region_bytes,
                                                     ", expected ", region->bytes()));
  }
  if (!region.ok()) {
    share_.handler.OnRegionGone(owner, hello->region_bytes);
    return region.status();
  }
  peer.region = *std::move(region);
  peer.region_owner = std::move(owner);
  peer.has_region = true;
  peer.is_open = true;
  share_.metrics.regions_bytes.Set(static_cast<int64_t>(share_.regions.used_bytes()));
  return absl::OkStatus();
}

absl::Status LocalLane::CheckPlaces(const Peer& peer, const Message& message) const {
  const Envelope& envelope = message.envelope;
  const auto lies_within = [&peer](uint64_t place, uint64_t bytes) {
    return bytes == 0 || peer.region.At(place, bytes) != nullptr;
  };
  if (!lies_within(envelope.payload_place, envelope.payload_bytes)) {
    return absl::InvalidArgumentError("message: the payload lies outside the region");
  }
  if (!lies_within(envelope.reply_place, envelope.reply_capacity_bytes)) {
    return absl::InvalidArgumentError("message: the room for the reply lies outside the region");
  }
  return absl::OkStatus();
}

void LocalLane::TakeRequest(Peer& peer, const Message& message) {
  const Envelope& envelope = message.envelope;
  const ReplyTo reply_to{peer.id, message.seq, envelope.reply_place, envelope.reply_capacity_bytes};
  if (envelope.payload_bytes > share_.limits.payload_bytes_max) {
    return RefuseRequest(reply_to, message,
                         absl::InvalidArgumentError(
                             absl::StrCat("payload_bytes is ", envelope.payload_bytes,
                                          ", expected at most ", share_.limits.payload_bytes_max)));
  }
  std::unique_ptr<Arrival::Held> held;
  if (envelope.payload_bytes > 0) {
    if (arrivals_held_.load(std::memory_order_relaxed) >= share_.limits.arrivals_held_max) {
      return RefuseRequest(reply_to, message,
                           absl::ResourceExhaustedError(absl::StrCat(
                               "the lane holds ", share_.limits.arrivals_held_max, " arrivals")));
    }
    held = std::make_unique<HeldPayload>(*this, envelope.payload_place);
  }
  share_.handler.OnArrival(*this, Arrival(reply_to, message.frame, envelope.payload_bytes,
                                          std::move(held), peer.identity));
}

void LocalLane::RefuseRequest(const ReplyTo& reply_to, const Message& message,
                              const absl::Status& status) {
  share_.metrics.arrivals_refused.Add();
  const absl::StatusOr<proto::Frame> request = proto::ParseFrame(message.frame.bytes());
  const proto::Ticket ticket = request.ok() ? request->ticket : proto::Ticket{};
  Reply(reply_to, proto::Serialize(proto::ErrorFrame(message.seq, ticket, status)), {},
        absl::InfiniteFuture(), [](absl::Status) {});
}

}  // namespace cairn::transport
