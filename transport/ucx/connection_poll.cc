// SPDX-License-Identifier: Apache-2.0
// How calls of a connection make progress and end.
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/status.h"

namespace cairn::transport {
namespace {

constexpr absl::Duration kSpin = absl::Microseconds(50);
constexpr absl::Duration kOvertimeMax = absl::Milliseconds(40);  // to see a break through
constexpr int kLateTurnsMax = 16;

}  // namespace

void UcxConnection::Poll(absl::Time until) {
  absl::Time idle_since = MonotonicNow();
  int late_turns = 0;
  // Ends at `until`, give or take kOvertimeMax while breaking.
  while (state_ != State::kBroken) {
    const unsigned events = worker_->Progress();
    const absl::Time now = MonotonicNow();
    if (!failure_.ok()) StartBreaking(failure_);
    ExpireDeadlines(now);
    const bool has_ended = EndCalls();
    if (state_ == State::kBreaking) {
      FinishBreaking(now);
      if (state_ == State::kBroken || now > until + kOvertimeMax) return;
      continue;
    }
    // Past `until`, what has arrived already is still taken, so that Poll(InfinitePast()) notices a
    // daemon that has gone.
    if (has_ended || (now >= until && (events == 0 || ++late_turns > kLateTurnsMax))) return;
    if (events > 0) {
      idle_since = now;
    } else if (now - idle_since >= kSpin) {
      Sleep(now, until);
      idle_since = MonotonicNow();
    }
  }
}

void UcxConnection::Sleep(absl::Time now, absl::Time until) {
  for (const Slot& slot : slots_) {
    if (slot.call != nullptr) until = std::min(until, slot.call->deadline);
  }
  if (!worker_->Arm()) return;
  const absl::Duration wait = std::min(until - now, absl::Seconds(1));
  pollfd event{.fd = worker_->event_fd(), .events = POLLIN, .revents = 0};
  poll(&event, 1,
       static_cast<int>(absl::ToInt64Milliseconds(std::max(absl::ZeroDuration(), wait) +
                                                  absl::Microseconds(999))));
}

size_t UcxConnection::ExpireDeadlines(absl::Time now) {
  size_t expired = 0;
  if (state_ != State::kOpen) return expired;
  for (Slot& slot : slots_) {
    if (slot.call == nullptr || slot.call->deadline > now) continue;
    slot.status = absl::DeadlineExceededError("no reply in time; the connection was broken");
    ++expired;
  }
  if (expired > 0) StartBreaking(absl::UnavailableError("another call's deadline passed"));
  return expired;
}

bool UcxConnection::EndCalls() {
  bool has_ended = false;
  for (Slot& slot : slots_) {
    if (slot.call == nullptr || slot.is_moving()) continue;
    const bool is_answered = slot.has_reply && slot.status.ok();
    if (!is_answered && state_ == State::kOpen) continue;
    Call& call = *std::exchange(slot.call, nullptr);
    call.status = slot.status;
    if (!is_answered) call.reply_payload_bytes = 0;
    call.is_over = true;
    has_ended = true;
  }
  return has_ended;
}

// ---- inside UCX callbacks: only noted ----

void UcxConnection::Fail(absl::Status why) {
  if (failure_.ok()) failure_ = std::move(why);
}

void UcxConnection::OnEndpointError(void* argument, ucp_ep_h, ucs_status_t status) {
  static_cast<UcxConnection*>(argument)->Fail(FromUcs(status, "the daemon is gone"));
}

void UcxConnection::AfterMove(ucs_status_t status) {
  // Rejected: the daemon did not want the payload, and says why in its reply.
  if (status != UCS_OK && status != UCS_ERR_REJECTED && state_ == State::kOpen) {
    Fail(FromUcs(status, "transfer"));
  }
}

void UcxConnection::OnSent(void* request, ucs_status_t status, void* argument) {
  ucp_request_free(request);
  Slot& slot = *static_cast<Slot*>(argument);
  slot.is_sending = false;
  slot.connection->AfterMove(status);
}

void UcxConnection::OnReceived(void* request, ucs_status_t status, size_t bytes, void* argument) {
  ucp_request_free(request);
  Slot& slot = *static_cast<Slot*>(argument);
  slot.is_receiving = false;
  CAIRN_CHECK(status != UCS_OK || slot.call == nullptr || bytes == slot.call->reply_payload_bytes);
  if (status != UCS_OK) slot.has_reply = false;
  slot.connection->AfterMove(status);
}

ucs_status_t UcxConnection::OnReply(void* argument, const void* header, size_t header_bytes,
                                    void* data, size_t data_bytes,
                                    const ucp_am_recv_param_t* param) {
  UcxConnection& connection = *static_cast<UcxConnection*>(argument);
  if (connection.state_ != State::kOpen) return RefusedPayload(param);
  const std::optional<Header> read = ReadHeader(header, header_bytes);
  if (!read.has_value()) {
    connection.Fail(absl::UnavailableError(
        absl::StrCat("the daemon sent a message header of ", header_bytes, " bytes")));
    return RefusedPayload(param);
  }
  if (read->capacity_bytes == kOwnFrame) {
    connection.SendPong();
    return RefusedPayload(param);
  }
  Slot* const slot = connection.FindSlot(SeqOf(read->frame));
  if (slot == nullptr || slot->has_reply) return RefusedPayload(param);
  return connection.TakeReply(*slot, *read, data, data_bytes, param);
}

ucs_status_t UcxConnection::TakeReply(Slot& slot, const Header& header, void* data,
                                      size_t data_bytes, const ucp_am_recv_param_t* param) {
  Call& call = *slot.call;
  if (data_bytes > call.target.size()) {
    Fail(absl::UnavailableError(absl::StrCat("the daemon sent ", data_bytes,
                                             " bytes for a target of ", call.target.size())));
    return RefusedPayload(param);
  }
  call.reply = header.frame;
  call.reply_payload_bytes = data_bytes;
  slot.has_reply = true;
  if (data_bytes == 0) return RefusedPayload(param);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
    std::memcpy(call.target.data(), data, data_bytes);
    return UCS_OK;
  }
  ucp_request_param_t receive{};
  receive.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  receive.cb.recv_am = &OnReceived;
  receive.user_data = &slot;
  receive.memory_type = UCS_MEMORY_TYPE_HOST;
  slot.is_receiving = true;
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_->get(), data, call.target.data(), data_bytes, &receive);
  if (!UCS_PTR_IS_PTR(request)) {
    slot.is_receiving = false;
    if (UCS_PTR_IS_ERR(request)) slot.has_reply = false;
    AfterMove(UCS_PTR_RAW_STATUS(request));
  }
  return UCS_INPROGRESS;
}

void UcxConnection::SendPong() {
  if (is_pong_moving_) return;
  proto::Frame frame;
  frame.body = proto::Pong{};
  pong_.Set(kOwnFrame, proto::Serialize(frame));
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &OnPongSent;
  param.user_data = this;
  is_pong_moving_ = true;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, kRequestId, pong_.data.data(), pong_.size, nullptr, 0, &param);
  if (!UCS_PTR_IS_PTR(request)) is_pong_moving_ = false;
}

void UcxConnection::OnPongSent(void* request, ucs_status_t status, void* argument) {
  ucp_request_free(request);
  UcxConnection& connection = *static_cast<UcxConnection*>(argument);
  connection.is_pong_moving_ = false;
  connection.AfterMove(status);
}

}  // namespace cairn::transport
