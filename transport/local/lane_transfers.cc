// SPDX-License-Identifier: Apache-2.0
// The transfers of a lane: Receive() and Reply() begin one, the loop moves it piece by piece.
#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "base/check.h"
#include "codecs/checksum/checksum.h"
#include "transport/local/lane.h"
#include "transport/local/lane_internal.h"
#include "transport/local/lent_memory.h"
#include "transport/local/packet.h"

namespace cairn::transport {
namespace {

// Whether it is an answer to a hello that says so.
bool IsWelcomeToMap(const proto::FrameBytes& bytes) {
  const absl::StatusOr<proto::Frame> frame = proto::ParseFrame(bytes.bytes());
  const auto* reply = frame.ok() ? std::get_if<proto::HelloReply>(&frame->body) : nullptr;
  return reply != nullptr && reply->version >= proto::kVersionWithLoans;
}

}  // namespace

void LocalLane::Receive(Arrival arrival, std::span<std::byte> target, absl::Time deadline,
                        ReceiveDone done) {
  CAIRN_CHECK(target.size() == arrival.payload_bytes(),
              "a target of another size than its payload");
  const Peer* peer = Find(arrival.reply_to().peer);
  if (peer == nullptr || peer->is_breaking) {
    completed_.push_back(
        {.status = absl::UnavailableError("the peer is gone"), .receive_done = std::move(done)});
    return;
  }
  Moving moving;
  moving.peer = peer->id;
  moving.target = target;
  moving.bytes = target.size();
  moving.deadline = deadline;
  moving.receive_done = std::move(done);
  if (arrival.held() != nullptr) {
    moving.place = static_cast<HeldPayload*>(arrival.held())->place();
  }
  moving_.push_back(std::move(moving));
}

void LocalLane::Reply(const ReplyTo& reply_to, const proto::FrameBytes& frame,
                      std::span<const std::byte> payload, absl::Time deadline, ReplyDone done) {
  CAIRN_CHECK(payload.size() <= reply_to.capacity_bytes, "a reply is larger than its room");
  Peer* peer = Find(reply_to.peer);
  if (peer == nullptr || peer->is_breaking) {
    completed_.push_back(
        {.status = absl::UnavailableError("the peer is gone"), .reply_done = std::move(done)});
    return;
  }
  peer->unanswered = std::max(0, peer->unanswered - 1);
  CAIRN_CHECK(payload.empty() || peer->region.At(reply_to.place, payload.size()) != nullptr,
              "a reply lies outside its peer's memory");
  Moving moving;
  moving.peer = reply_to.peer;
  moving.place = reply_to.place;
  moving.source = payload;
  moving.bytes = payload.size();
  moving.deadline = deadline;
  moving.frame = frame;
  moving.brings_memory = std::exchange(peer->asks_to_map, false) && IsWelcomeToMap(frame);
  moving.reply_done = std::move(done);
  moving_.push_back(std::move(moving));
}

int LocalLane::MovePiece() {
  if (moving_.empty()) {
    return 0;
  }
  moving_next_ = moving_next_ < moving_.size() ? moving_next_ : 0;
  const size_t index = moving_next_;
  Moving& moving = moving_[index];
  Peer* peer = Find(moving.peer);
  CAIRN_CHECK(peer != nullptr, "a transfer outlives its peer");
  if (peer->is_breaking) {  // CloseBroken() ends it
    ++moving_next_;
    return 1;
  }
  CopyPiece(moving, *peer);
  if (moving.moved_bytes < moving.bytes) {
    ++moving_next_;
    return 1;
  }
  FinishMoving(index, moving.reply_done ? SendReply(moving, *peer) : absl::OkStatus());
  return 1;
}

void LocalLane::CopyPiece(Moving& moving, const Peer& peer) {
  const size_t bytes = std::min(kPieceBytes, moving.bytes - moving.moved_bytes);
  if (bytes == 0) {
    return;
  }
  // The place was checked when the request came, and the region lives as long as its peer.
  std::byte* theirs = peer.region.At(moving.place + moving.moved_bytes, bytes);
  if (moving.receive_done) {
    moving.crc32c = codecs::CopyCrc32c(moving.crc32c, moving.target.data() + moving.moved_bytes,
                                       {theirs, bytes});
  } else {
    std::memcpy(theirs, moving.source.data() + moving.moved_bytes, bytes);
  }
  moving.moved_bytes += bytes;
}

absl::Status LocalLane::SendReply(const Moving& moving, Peer& peer) {
  const Envelope envelope{Direction::kReply, moving.place, moving.bytes, 0, 0};
  absl::Status status;
  if (moving.brings_memory) {
    const int fds[] = {share_.lender->memory_fd(), share_.lender->words_fd()};
    status = SendTo(peer, envelope, moving.frame, fds);
    peer.is_mapped = status.ok();
  } else {
    status = SendTo(peer, envelope, moving.frame, {});
  }
  if (status.ok()) {
    share_.metrics.sent_bytes.Add(moving.bytes);
  }
  return status;
}

absl::Status LocalLane::SendTo(Peer& peer, const Envelope& envelope, const proto::FrameBytes& frame,
                               std::span<const int> fds) {
  const absl::Status status =
      SendPacket(peer.socket.get(), Serialize(envelope, frame).bytes(), fds);
  if (status.ok()) {
    return status;
  }
  // A peer that does not read its replies is not waited for.
  share_.metrics.peers_broken.Add();
  BreakPeer(peer, absl::UnavailableError("the peer does not read its replies"));
  return absl::UnavailableError(status.message());
}

void LocalLane::FinishMoving(size_t index, absl::Status status) {
  Moving& moving = moving_[index];
  if (status.ok() && moving.receive_done) {
    share_.metrics.received_bytes.Add(moving.bytes);
  }
  completed_.push_back({.status = std::move(status),
                        .crc32c = moving.crc32c,
                        .receive_done = std::move(moving.receive_done),
                        .reply_done = std::move(moving.reply_done)});
  if (index + 1 != moving_.size()) {
    moving = std::move(moving_.back());
  }
  moving_.pop_back();
}

}  // namespace cairn::transport
