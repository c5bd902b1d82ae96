// SPDX-License-Identifier: Apache-2.0
// What moves through a lane: arrivals, receives, replies.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "codecs/checksum/checksum.h"
#include "transport/ucx/lane.h"
#include "transport/ucx/status.h"

namespace cairn::transport {
namespace {

// A peer that brings more than that in one turn of the lane is flooding: no window is wider.
constexpr uint32_t kArrivedMax = proto::kWindowMax;
constexpr int kOwnFramesMax = 64;  // refusals that a peer lets pile up unread
constexpr absl::Duration kOwnFrameWithin = absl::Seconds(5);

ucp_request_param_t MoveParam(UcxTransfer& transfer) {
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.user_data = &transfer;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  return param;
}

}  // namespace

// ---- arrivals ----

ucs_status_t UcxLane::OnRequest(void* argument, const void* header, size_t header_bytes, void* data,
                                size_t data_bytes, const ucp_am_recv_param_t* param) {
  UcxLane& lane = *static_cast<UcxLane*>(argument);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) {
    return RefusedPayload(param);
  }
  const auto found = lane.peers_by_endpoint_.find(param->reply_ep);
  if (found == lane.peers_by_endpoint_.end() || found->second->is_breaking) {
    return RefusedPayload(param);
  }
  UcxPeer& peer = *found->second;
  const std::optional<Header> read = ReadHeader(header, header_bytes);
  if (!read.has_value()) {
    lane.BreakPeer(peer, absl::InvalidArgumentError(
                             absl::StrCat("message header of ", header_bytes, " bytes")));
    return RefusedPayload(param);
  }
  return lane.TakeRequest(peer, *read, data, data_bytes, param);
}

ucs_status_t UcxLane::TakeRequest(UcxPeer& peer, const Header& header, void* data,
                                  size_t data_bytes, const ucp_am_recv_param_t* param) {
  peer.heard = MonotonicNow();
  peer.pings_missed = 0;
  if (header.capacity_bytes == kOwnFrame) return RefusedPayload(param);
  const bool is_rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  if ((!is_rendezvous && data_bytes > kEagerRequestBytesMax) || peer.arrived >= kArrivedMax) {
    BreakPeer(peer, absl::InvalidArgumentError("message outside the protocol"));
    return RefusedPayload(param);
  }
  if (is_draining_) {
    RefuseRequest(peer, header.frame, absl::UnavailableError("the daemon is stopping"));
    return RefusedPayload(param);
  }
  const ServerLimits& limits = options_.limits;
  if (data_bytes > limits.payload_bytes_max) {
    RefuseRequest(
        peer, header.frame,
        absl::InvalidArgumentError(absl::StrCat("payload of ", data_bytes, " bytes; the limit is ",
                                                limits.payload_bytes_max)));
    return RefusedPayload(param);
  }
  if (data_bytes > 0 && held_.size() >= static_cast<size_t>(limits.arrivals_held_max)) {
    RefuseRequest(peer, header.frame,
                  absl::ResourceExhaustedError(absl::StrCat(
                      "the lane holds ", limits.arrivals_held_max, " payloads already")));
    return RefusedPayload(param);
  }
  std::unique_ptr<UcxHeld> held;
  if (data_bytes > 0) {
    held = std::make_unique<UcxHeld>(*this, peer);
    if (is_rendezvous) {
      held->descriptor_ = data;
    } else {
      const auto* const bytes = static_cast<const std::byte*>(data);
      held->copied_.assign(bytes, bytes + data_bytes);
    }
    Hold(*held);
  }
  const ReplyTo reply_to{
      .peer = peer.id,
      .seq = SeqOf(header.frame),
      .place = 0,
      .capacity_bytes = std::min(header.capacity_bytes, limits.payload_bytes_max)};
  arrived_.emplace_back(reply_to, header.frame, data_bytes, std::move(held));
  ++peer.arrived;
  return is_rendezvous && data_bytes > 0 ? UCS_INPROGRESS : RefusedPayload(param);
}

size_t UcxLane::DispatchArrivals() {
  const size_t count = arrived_.size();
  if (count == 0) return 0;
  std::vector<Arrival> arrived;
  arrived.swap(arrived_);
  for (Arrival& arrival : arrived) {
    // One whose peer an earlier one has broken is dropped.
    UcxPeer* const peer = FindPeer(arrival.reply_to().peer);
    if (peer == nullptr) continue;
    --peer->arrived;
    handler_.OnArrival(*this, std::move(arrival));
  }
  arrived.clear();
  if (arrived_.empty()) arrived_.swap(arrived);  // keeps the storage
  return count;
}

// A request that never reaches the handler gets its one reply from here.
void UcxLane::RefuseRequest(UcxPeer& peer, const proto::FrameBytes& request,
                            const absl::Status& status) {
  metrics_.arrivals_refused.Add();
  proto::Ticket ticket{};
  if (request.size >= proto::kFrameHeadBytes) {
    std::memcpy(ticket.data(), request.data.data() + 16, ticket.size());
  }
  SendOwnFrame(peer, 0, proto::Serialize(proto::ErrorFrame(SeqOf(request), ticket, status)));
}

void UcxLane::SendOwnFrame(UcxPeer& peer, uint64_t capacity_bytes, const proto::FrameBytes& frame) {
  if (peer.own_frames >= kOwnFramesMax) {
    BreakPeer(peer, absl::ResourceExhaustedError("the peer does not read its replies"));
    return;
  }
  UcxTransfer& transfer =
      NewTransfer(UcxTransfer::Kind::kOwnFrame, &peer, MonotonicNow() + kOwnFrameWithin);
  transfer.header.Set(capacity_bytes, frame);
  ++peer.own_frames;
  Send(transfer, UCP_AM_SEND_FLAG_EAGER);
}

// ---- held payloads ----

void UcxLane::Hold(UcxHeld& held) {
  held.index_ = held_.size();
  held_.push_back(&held);
  metrics_.arrivals_held.Add(1);
}

void* UcxLane::LetGo(UcxHeld& held) {
  held_[held.index_] = held_.back();
  held_[held.index_]->index_ = held.index_;
  held_.pop_back();
  metrics_.arrivals_held.Add(-1);
  held.lane_ = nullptr;
  return std::exchange(held.descriptor_, nullptr);
}

// Tells the sender that its memory is free. It takes that for OK: what it believes is our reply
// frame.
void UcxLane::Release(UcxHeld& held) {
  void* const descriptor = LetGo(held);
  if (descriptor != nullptr) ucp_am_data_release(worker_->get(), descriptor);
}

// ---- transfers ----

UcxTransfer& UcxLane::NewTransfer(UcxTransfer::Kind kind, UcxPeer* peer, absl::Time deadline) {
  if (free_.empty()) {
    transfers_.push_back(std::make_unique<UcxTransfer>());
    free_.push_back(transfers_.back().get());
  }
  UcxTransfer& transfer = *free_.back();
  free_.pop_back();
  transfer.lane = this;
  transfer.peer = peer;
  transfer.kind = kind;
  transfer.target = {};
  transfer.payload = {};
  transfer.deadline = deadline;
  transfer.status = absl::OkStatus();
  transfer.is_quarantined = false;
  return transfer;
}

void UcxLane::Receive(Arrival arrival, std::span<std::byte> target, absl::Time deadline,
                      ReceiveDone done) {
  CAIRN_CHECK(target.size() == arrival.payload_bytes());
  const std::unique_ptr<Arrival::Held> taken = arrival.TakeHeld();
  auto* const held = static_cast<UcxHeld*>(taken.get());
  UcxTransfer& transfer = NewTransfer(UcxTransfer::Kind::kReceive, nullptr, deadline);
  transfer.target = target;
  transfer.receive_done = std::move(done);
  if (target.empty()) return FinishLater(transfer, absl::OkStatus());
  if (held == nullptr || held->lane_ == nullptr || held->peer_->is_breaking) {
    return FinishLater(transfer, absl::UnavailableError("the peer is gone"));
  }
  if (is_draining_) {
    return FinishLater(transfer, absl::UnavailableError("the daemon is stopping"));
  }
  if (quarantine_bytes_ >= options_.limits.quarantine_bytes_max) {
    metrics_.arrivals_refused.Add();
    return FinishLater(transfer, absl::ResourceExhaustedError(
                                     "too many bytes wait for broken connections to close"));
  }
  transfer.peer = held->peer_;
  void* const descriptor = LetGo(*held);
  if (descriptor == nullptr) {
    std::memcpy(target.data(), held->copied_.data(), target.size());
    metrics_.received_bytes.Add(target.size());
    return FinishLater(transfer, absl::OkStatus());
  }
  ucp_request_param_t param = MoveParam(transfer);
  param.cb.recv_am = &OnReceived;
  StartMoving(transfer);
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_->get(), descriptor, target.data(), target.size(), &param);
  if (!UCS_PTR_IS_PTR(request)) OnMoved(transfer, UCS_PTR_RAW_STATUS(request));
}

void UcxLane::Reply(const ReplyTo& reply_to, const proto::FrameBytes& frame,
                    std::span<const std::byte> payload, absl::Time deadline, ReplyDone done) {
  UcxPeer* const peer = FindPeer(reply_to.peer);
  UcxTransfer& transfer = NewTransfer(UcxTransfer::Kind::kReply, peer, deadline);
  transfer.payload = payload;
  transfer.reply_done = std::move(done);
  if (peer == nullptr) return FinishLater(transfer, absl::UnavailableError("the peer is gone"));
  if (payload.size() > reply_to.capacity_bytes) {
    return FinishLater(transfer, absl::InvalidArgumentError(absl::StrCat(
                                     "reply payload of ", payload.size(),
                                     " bytes; the client takes ", reply_to.capacity_bytes)));
  }
  transfer.header.Set(0, frame);
  Send(transfer,
       payload.size() <= kEagerReplyBytesMax ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV);
}

void UcxLane::Send(UcxTransfer& transfer, uint32_t flags) {
  ucp_request_param_t param = MoveParam(transfer);
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = flags;
  param.cb.send = &OnSent;
  StartMoving(transfer);
  const ucs_status_ptr_t request = ucp_am_send_nbx(
      transfer.peer->endpoint, kReplyId, transfer.header.data.data(), transfer.header.size,
      transfer.payload.data(), transfer.payload.size(), &param);
  if (!UCS_PTR_IS_PTR(request)) OnMoved(transfer, UCS_PTR_RAW_STATUS(request));
}

void UcxLane::OnSent(void* request, ucs_status_t status, void* argument) {
  ucp_request_free(request);
  UcxTransfer& transfer = *static_cast<UcxTransfer*>(argument);
  transfer.lane->OnMoved(transfer, status);
}

void UcxLane::OnReceived(void* request, ucs_status_t status, size_t bytes, void* argument) {
  ucp_request_free(request);
  UcxTransfer& transfer = *static_cast<UcxTransfer*>(argument);
  CAIRN_CHECK(status != UCS_OK || bytes == transfer.target.size());
  transfer.lane->OnMoved(transfer, status);
}

// Before UCX is called, so that a callback from inside the call finds the transfer in place.
void UcxLane::StartMoving(UcxTransfer& transfer) {
  transfer.moving_index = moving_.size();
  moving_.push_back(&transfer);
  ++transfer.peer->transfers;
  next_deadline_ = std::min(next_deadline_, transfer.deadline);
}

// The callback: from here on the memory is free.
void UcxLane::OnMoved(UcxTransfer& transfer, ucs_status_t status) {
  if (options_.lost_completions != nullptr && transfer.kind == UcxTransfer::Kind::kReceive &&
      options_.lost_completions->load() > 0) {
    options_.lost_completions->fetch_sub(1);
    return;
  }
  if (!transfer.status.ok()) {
    if (status == UCS_OK) metrics_.late_transfers.Add();
  } else if (status != UCS_OK) {
    transfer.status = FromUcs(status, "transfer");
    // A client that rejects what it did not ask for goes on; everything else is the end of the
    // peer.
    if (status != UCS_ERR_REJECTED) Condemn(*transfer.peer, transfer.status);
  } else if (transfer.kind == UcxTransfer::Kind::kReceive) {
    metrics_.received_bytes.Add(transfer.target.size());
  } else {
    metrics_.sent_bytes.Add(transfer.payload.size());
  }
  StopMoving(transfer);
  finished_.push_back(&transfer);
}

void UcxLane::StopMoving(UcxTransfer& transfer) {
  moving_[transfer.moving_index] = moving_.back();
  moving_[transfer.moving_index]->moving_index = transfer.moving_index;
  moving_.pop_back();
  --transfer.peer->transfers;
  if (transfer.kind == UcxTransfer::Kind::kOwnFrame) --transfer.peer->own_frames;
  if (transfer.is_quarantined) {
    quarantine_bytes_ -= transfer.bytes();
    metrics_.quarantine_bytes.Add(-static_cast<int64_t>(transfer.bytes()));
  }
}

void UcxLane::FinishLater(UcxTransfer& transfer, absl::Status status) {
  transfer.status = std::move(status);
  finished_.push_back(&transfer);
}

size_t UcxLane::ExpireDeadlines(absl::Time now) {
  if (now < next_deadline_) return 0;
  size_t expired = 0;
  next_deadline_ = absl::InfiniteFuture();
  // First all verdicts: breaking a peer answers the rest of its transfers with Unavailable.
  for (UcxTransfer* transfer : moving_) {
    if (!transfer->status.ok()) continue;
    if (transfer->deadline > now) {
      next_deadline_ = std::min(next_deadline_, transfer->deadline);
      continue;
    }
    transfer->status = absl::DeadlineExceededError("the transfer's deadline passed");
    metrics_.deadlines_exceeded.Add();
    ++expired;
  }
  for (UcxTransfer* transfer : moving_) {
    if (absl::IsDeadlineExceeded(transfer->status)) BreakPeer(*transfer->peer, transfer->status);
  }
  return expired;
}

size_t UcxLane::RunFinished() {
  const size_t count = finished_.size();
  if (count == 0) return 0;
  std::vector<UcxTransfer*> finished;
  finished.swap(finished_);
  for (UcxTransfer* transfer : finished) {
    ReceiveDone receive_done = std::exchange(transfer->receive_done, nullptr);
    ReplyDone reply_done = std::exchange(transfer->reply_done, nullptr);
    const absl::Status status = std::move(transfer->status);
    const std::span<std::byte> target = transfer->target;
    free_.push_back(transfer);
    if (receive_done != nullptr) {
      const bool is_summed = status.ok() && options_.is_crc_computed;
      receive_done({status, is_summed ? codecs::Crc32c(target) : 0});
    } else if (reply_done != nullptr) {
      reply_done(status);
    }
  }
  finished.clear();
  if (finished_.empty()) finished_.swap(finished);  // keeps the storage
  return count;
}

}  // namespace cairn::transport
