// SPDX-License-Identifier: Apache-2.0
// How peers of a lane begin and end.
#include <sys/epoll.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/ucx/lane.h"
#include "transport/ucx/status.h"

namespace cairn::transport {
namespace {

constexpr absl::Duration kStuckAfter = absl::Seconds(2);
constexpr int kLaneBits = 8;
constexpr uint64_t kUcxPeerBit = uint64_t{1} << 62;  // apart from the ids of other transports

}  // namespace

void UcxLane::Accept(ucp_conn_request_h request) {
  auto peer = std::make_unique<UcxPeer>();
  peer->lane = this;
  peer->id = kUcxPeerBit | (++peers_made_ << kLaneBits) | static_cast<uint64_t>(index_);
  peer->heard = MonotonicNow();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.conn_request = request;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&OnEndpointError, peer.get()};
  const ucs_status_t status = ucp_ep_create(worker_->get(), &params, &peer->endpoint);
  if (status != UCS_OK) {  // the request is consumed all the same
    metrics_.peers_refused.Add();
    peer_count_.fetch_sub(1, std::memory_order_relaxed);
    LogDebug("ucx", "connection request failed", {{"status", FromUcs(status, "accept")}});
    return;
  }
  metrics_.peers_opened.Add();
  metrics_.peers.Add(1);
  peers_by_endpoint_[peer->endpoint] = peer.get();
  const PeerId id = peer->id;
  peers_.emplace(id, std::move(peer));
}

void UcxLane::OnEndpointError(void* argument, ucp_ep_h, ucs_status_t status) {
  UcxPeer& peer = *static_cast<UcxPeer*>(argument);
  peer.lane->Condemn(peer, FromUcs(status, "the peer is gone"));
}

UcxPeer* UcxLane::FindPeer(PeerId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() || found->second->is_breaking ? nullptr : found->second.get();
}

// May run inside a UCX callback, where an endpoint must not be closed: the loop does that.
void UcxLane::Condemn(UcxPeer& peer, const absl::Status& why) {
  if (peer.is_breaking) return;
  peer.is_breaking = true;
  peer.breaking_since = MonotonicNow();
  breaking_.push_back(&peer);
  for (UcxTransfer* transfer : moving_) {
    if (transfer->peer != &peer) continue;
    if (transfer->status.ok()) transfer->status = absl::UnavailableError(why.message());
    transfer->is_quarantined = true;
    quarantine_bytes_ += transfer->bytes();
    metrics_.quarantine_bytes.Add(static_cast<int64_t>(transfer->bytes()));
  }
  LogDebug("ucx", "peer is being closed", {{"peer", peer.id}, {"why", why}});
}

void UcxLane::BreakPeer(UcxPeer& peer, const absl::Status& why) {
  if (peer.is_breaking) return;
  metrics_.peers_broken.Add();
  Condemn(peer, why);
}

void UcxLane::Break(PeerId peer) {
  if (UcxPeer* const found = FindPeer(peer)) {
    BreakPeer(*found, absl::UnavailableError("the session is over"));
  }
}

size_t UcxLane::CloseBroken() {
  size_t closed = 0;
  // By index: OnPeerGone() may break another peer.
  for (size_t i = 0; i < breaking_.size(); ++i) {
    if (breaking_[i]->is_close_started) continue;
    StartClose(*breaking_[i]);
    ++closed;
  }
  return closed;
}

void UcxLane::StartClose(UcxPeer& peer) {
  peer.is_close_started = true;
  peers_by_endpoint_.erase(peer.endpoint);
  std::erase_if(arrived_,
                [&peer](const Arrival& arrival) { return arrival.reply_to().peer == peer.id; });
  // Held payloads of the peer will never come. From the back: Release() takes them out of the list.
  for (size_t i = held_.size(); i-- > 0;) {
    if (held_[i]->peer_ == &peer) Release(*held_[i]);
  }
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t closing = ucp_ep_close_nbx(peer.endpoint, &param);
  if (UCS_PTR_IS_PTR(closing)) peer.close_request = closing;
  handler_.OnPeerGone(*this, peer.id);
}

size_t UcxLane::ReapClosed(absl::Time now) {
  size_t reaped = 0;
  bool is_stuck = false;
  for (size_t i = breaking_.size(); i-- > 0;) {
    UcxPeer& peer = *breaking_[i];
    if (!peer.is_close_started) continue;
    if (peer.close_request != nullptr &&
        ucp_request_check_status(peer.close_request) != UCS_INPROGRESS) {
      ucp_request_free(peer.close_request);
      peer.close_request = nullptr;
    }
    if (peer.close_request == nullptr && peer.transfers == 0) {
      breaking_.erase(breaking_.begin() + static_cast<std::ptrdiff_t>(i));
      Forget(peer);
      ++reaped;
    } else if (now - peer.breaking_since > kStuckAfter) {
      is_stuck = true;
      metrics_.stuck_transfers.Add(static_cast<uint64_t>(peer.transfers));
    }
  }
  if (is_stuck) RebuildWorker();
  return reaped;
}

void UcxLane::Forget(UcxPeer& peer) {
  metrics_.peers.Add(-1);
  peer_count_.fetch_sub(1, std::memory_order_relaxed);
  peers_.erase(peer.id);
}

// UCX owes a callback that does not come. Without its worker it cannot touch our memory any more.
void UcxLane::RebuildWorker() {
  LogError("ucx", "transfers did not end after their connection was closed: the lane restarts",
           {{"lane", index_}, {"transfers", moving_.size()}, {"peers", peers_.size()}});
  for (const auto& [id, peer] : peers_) {
    Condemn(*peer, absl::UnavailableError("the lane started over"));
  }
  CloseBroken();
  AbandonWorker();
  const absl::Status status = SetUp();
  CAIRN_CHECK(status.ok(),
              absl::StrCat("a lane cannot go on without a worker: ", status.ToString()));
}

void UcxLane::AbandonWorker() {
  for (const auto& [id, peer] : peers_) {
    Condemn(*peer, absl::UnavailableError("the lane stopped"));
  }
  CloseBroken();
  for (UcxPeer* peer : breaking_) {
    if (peer->close_request != nullptr) ucp_request_free(peer->close_request);
    peer->close_request = nullptr;
  }
  worker_.reset();
  while (!moving_.empty()) {
    UcxTransfer& transfer = *moving_.back();
    StopMoving(transfer);
    finished_.push_back(&transfer);
  }
  while (!breaking_.empty()) {
    UcxPeer& peer = *breaking_.back();
    breaking_.pop_back();
    Forget(peer);
  }
}

UcxHeld::~UcxHeld() {
  if (lane_ != nullptr) lane_->Release(*this);
}

}  // namespace cairn::transport
