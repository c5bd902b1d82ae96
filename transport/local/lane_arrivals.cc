// SPDX-License-Identifier: Apache-2.0
// What arrives at a lane: peers and their requests. Everything here is hostile.
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/epoll.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/local/lane.h"
#include "transport/local/lane_internal.h"
#include "transport/local/lent_memory.h"
#include "transport/local/packet.h"

namespace cairn::transport {
namespace {

constexpr int kPacketsPerTurn = 16;  // of one peer

}  // namespace

absl::Status LocalLane::AddPeer(Greeted& greeted) {
  // A task that is not taken is dropped, which must not close the socket here.
  auto owned = std::make_shared<Greeted>(std::move(greeted));
  absl::Status taken =
      Submit([owned](Lane& lane) { static_cast<LocalLane&>(lane).OpenPeer(std::move(*owned)); });
  if (!taken.ok()) {
    greeted = std::move(*owned);
  }
  return taken;
}

void LocalLane::OpenPeer(Greeted greeted) {
  auto owned = std::make_unique<Peer>();
  Peer& peer = *owned;
  peer.id = (++peers_made_ << kLaneBits) | static_cast<uint64_t>(index_);
  peer.socket = std::move(greeted.socket);
  peer.identity = greeted.identity;
  peer.party = greeted.party;
  peer.region = std::move(greeted.region);
  share_.metrics.peers.Add(1);
  WatchSocket(epoll_.get(), peer.socket.get(), peer.id, EPOLLIN | EPOLLRDHUP);
  peers_.emplace(peer.id, std::move(owned));
  if (absl::Status counted = CountRegion(peer, greeted); !counted.ok()) {
    // Said before the socket closes, so that an honest client learns why.
    const proto::Frame error = proto::ErrorFrame(greeted.hello.seq, {}, counted);
    SendPacket(peer.socket.get(),
               Serialize({.direction = Direction::kReply}, proto::Serialize(error)).bytes())
        .IgnoreError();  // it is closed in any case
    share_.metrics.peers_refused.Add();
    return BreakPeer(peer, std::move(counted));
  }
  if (absl::Status taken = TakeMessage(peer, greeted.hello); !taken.ok()) {
    BreakForWhatItSent(peer, taken);
  }
}

absl::Status LocalLane::CountRegion(Peer& peer, const Greeted& greeted) {
  if (!greeted.is_memfd) {
    return absl::OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(const proto::Frame frame, proto::ParseFrame(greeted.hello.frame.bytes()));
  const auto* hello = std::get_if<proto::Hello>(&frame.body);
  peer.asks_to_map = share_.lender != nullptr && hello != nullptr &&
                     hello->version_max >= proto::kVersionWithLoans;
  CAIRN_ASSIGN_OR_RETURN(peer.region_owner,
                         share_.handler.OnRegion(frame.ticket, peer.region.bytes()));
  return absl::OkStatus();
}

void LocalLane::ReadPeer(Peer& peer) {
  for (int i = 0; i < kPacketsPerTurn && !peer.is_breaking; ++i) {
    Packet packet = ReceivePacket(peer.socket.get());
    switch (packet.outcome) {
      case Packet::Outcome::kNothing:
        return;
      case Packet::Outcome::kClosed:
        peer.brought = std::move(packet.fds);
        BreakPeer(peer, absl::UnavailableError("the peer is gone"));
        return;
      case Packet::Outcome::kPacket:
        if (absl::Status taken = TakePacket(peer, std::move(packet)); !taken.ok()) {
          BreakForWhatItSent(peer, taken);
        }
        break;
    }
  }
}

void LocalLane::BreakForWhatItSent(Peer& peer, const absl::Status& why) {
  LogDebug("transport", "peer sent what the protocol forbids", {{"peer", peer.id}, {"why", why}});
  share_.metrics.peers_broken.Add();
  BreakPeer(peer, absl::UnavailableError("the peer broke the protocol"));
}

absl::Status LocalLane::TakePacket(Peer& peer, Packet packet) {
  peer.brought = std::move(packet.fds);
  if (!peer.brought.empty()) {
    return absl::InvalidArgumentError("message: descriptors after the hello");
  }
  if (packet.is_cut) {
    return absl::InvalidArgumentError("message: too long");
  }
  CAIRN_ASSIGN_OR_RETURN(const Message message,
                         ParseMessage(packet.bytes(), Direction::kRequest, peer.is_mapped));
  return TakeMessage(peer, message);
}

absl::Status LocalLane::TakeMessage(Peer& peer, const Message& message) {
  CAIRN_RETURN_IF_ERROR(CheckPlaces(peer, message));
  // Before the request is looked at: its answer may be a loan that is given back in the same cell.
  LookAfterLoans(peer, MonotonicNow());
  if (++peer.unanswered > kUnansweredMax) {
    return absl::ResourceExhaustedError("more requests than any window allows");
  }
  TakeRequest(peer, message);
  return absl::OkStatus();
}

absl::Status LocalLane::CheckPlaces(const Peer& peer, const Message& message) const {
  const Envelope& envelope = message.envelope;
  const auto lies_within = [&peer](uint64_t place, uint64_t bytes) {
    return bytes == 0 || peer.region.At(place, bytes) != nullptr;
  };
  if (envelope.direction == Direction::kLendableRequest) {
    if (envelope.payload_bytes != 0 || envelope.payload_place % sizeof(LoanWord) != 0 ||
        !lies_within(envelope.payload_place, sizeof(LoanWord))) {
      return absl::InvalidArgumentError("message: a loan cannot be given back there");
    }
  } else if (!lies_within(envelope.payload_place, envelope.payload_bytes)) {
    return absl::InvalidArgumentError("message: the payload is outside the region");
  }
  if (!lies_within(envelope.reply_place, envelope.reply_capacity_bytes)) {
    return absl::InvalidArgumentError("message: the reply's place is outside the region");
  }
  return absl::OkStatus();
}

void LocalLane::TakeRequest(Peer& peer, const Message& message) {
  const Envelope& envelope = message.envelope;
  const ReplyTo reply_to{.peer = peer.id,
                         .seq = message.seq,
                         .place = envelope.reply_place,
                         .capacity_bytes = envelope.reply_capacity_bytes,
                         .takes_loan = envelope.direction == Direction::kLendableRequest,
                         .back_place = envelope.payload_place};
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
