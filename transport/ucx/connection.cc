// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/connection.h"

#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "transport/handshake.h"
#include "transport/heap_buffer.h"

namespace cairn::transport {
namespace {

constexpr int kWindowDefault = 16;
constexpr int kWindowMax = 256;
constexpr absl::Duration kBreakWithin = absl::Seconds(2);

proto::Frame WithBatches(proto::Frame hello) {
  if (auto* const body = std::get_if<proto::Hello>(&hello.body)) {
    body->version_max = proto::kVersionWithBatches;
  }
  return hello;
}

}  // namespace

UcxConnection::UcxConnection(SocketAddress address, UcxSettings settings, const proto::Frame& hello)
    : address_(address), settings_(std::move(settings)), hello_(WithBatches(hello)) {
  const auto* const body = std::get_if<proto::Hello>(&hello.body);
  const int asked =
      body == nullptr ? 0 : static_cast<int>(std::min<uint32_t>(body->window, kWindowMax));
  slots_.resize(static_cast<size_t>(asked == 0 ? kWindowDefault : asked));
  for (Slot& slot : slots_) slot.connection = this;
  window_ = static_cast<int>(slots_.size());
}

absl::StatusOr<std::unique_ptr<UcxConnection>> UcxConnection::Connect(
    std::string_view host, uint16_t port, const proto::Frame& hello,
    const UcxConnectOptions& options, absl::Time deadline, proto::HelloReply* reply) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, ResolveAddresses(host, port));
  absl::Status failure;
  for (size_t i = 0; i < addresses.size(); ++i) {
    // An address that does not answer must leave time for the others.
    const absl::Time now = MonotonicNow();
    const absl::Time until = now + (deadline - now) / static_cast<int64_t>(addresses.size() - i);
    auto connection = ConnectTo(addresses[i], hello, options, until, reply);
    if (connection.ok()) return connection;
    failure = addresses.size() == 1 ? connection.status()
                                    : Annotate(connection.status(), AddressText(addresses[i]));
    if (!absl::IsUnavailable(failure) && !absl::IsDeadlineExceeded(failure)) break;
  }
  return failure;
}

absl::StatusOr<std::unique_ptr<UcxConnection>> UcxConnection::ConnectTo(
    const SocketAddress& address, const proto::Frame& hello, const UcxConnectOptions& options,
    absl::Time deadline, proto::HelloReply* reply) {
  UcxSettings settings{.device = options.device, .port_range = "", .family = address.family()};
  if (settings.device.empty()) {
    CAIRN_ASSIGN_OR_RETURN(settings.device, InterfaceTowards(address));
  }
  std::unique_ptr<UcxConnection> connection(new UcxConnection(address, std::move(settings), hello));
  CAIRN_ASSIGN_OR_RETURN(connection->context_, UcxContext::Make(connection->settings_));
  CAIRN_RETURN_IF_ERROR(connection->Open());
  CAIRN_ASSIGN_OR_RETURN(const proto::HelloReply answer, connection->SayHello(deadline));
  if (reply != nullptr) *reply = answer;
  return connection;
}

// Makes a new worker too, so that no request of the old one can still be answered.
absl::Status UcxConnection::Open() {
  failure_ = absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(worker_, UcxWorker::Make(*context_));
  CAIRN_RETURN_IF_ERROR(worker_->Handle(kReplyId, &OnReply, this));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {address_.get(), address_.bytes};
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&OnEndpointError, this};
  const ucs_status_t status = ucp_ep_create(worker_->get(), &params, &endpoint_);
  if (status != UCS_OK) {
    endpoint_ = nullptr;
    worker_.reset();
    return FromUcs(status, "connect to " + AddressText(address_));
  }
  state_ = State::kOpen;
  return absl::OkStatus();
}

// The connection counts as open only after the daemon has answered, because a stopped daemon still
// accepts connections.
absl::StatusOr<proto::HelloReply> UcxConnection::SayHello(absl::Time deadline) {
  is_saying_hello_ = true;
  absl::StatusOr<proto::HelloReply> reply = Shake(*this, hello_, deadline);
  is_saying_hello_ = false;
  if (!reply.ok()) return reply;
  window_ = static_cast<int>(
      std::clamp<uint32_t>(reply->window, 1, static_cast<uint32_t>(slots_.size())));
  keeps_ = reply->batch_max >= proto::kBatchMax;
  return reply;
}

absl::Status UcxConnection::Reopen(absl::Time deadline) {
  StartBreaking(failure_);
  while (state_ == State::kBreaking) {  // ends after kBreakWithin at the latest
    worker_->Progress();
    FinishBreaking(MonotonicNow());
  }
  CAIRN_RETURN_IF_ERROR(Open());
  absl::Status status = SayHello(deadline).status();
  if (!status.ok()) StartBreaking(status);
  return status;
}

UcxConnection::~UcxConnection() {
  StartBreaking(absl::UnavailableError("the connection was closed"));
  while (state_ == State::kBreaking) {  // ends after kBreakWithin at the latest
    worker_->Progress();
    FinishBreaking(MonotonicNow());
  }
}

absl::StatusOr<std::unique_ptr<Buffer>> UcxConnection::Allocate(size_t bytes) {
  return AllocateHeapBuffer(bytes);
}

bool UcxConnection::is_idle() const {
  return std::all_of(slots_.begin(), slots_.end(),
                     [](const Slot& slot) { return slot.call == nullptr; });
}

UcxConnection::Slot* UcxConnection::FindSlot(uint64_t seq) {
  for (Slot& slot : slots_) {
    if (slot.call != nullptr && slot.seq == seq) return &slot;
  }
  return nullptr;
}

UcxConnection::Slot* UcxConnection::FreeSlot() {
  int used = 0;
  Slot* found = nullptr;
  for (Slot& slot : slots_) {
    if (slot.call != nullptr) {
      ++used;
    } else {
      found = &slot;
    }
  }
  return used < window_ ? found : nullptr;
}

absl::Status UcxConnection::Start(Call* call) {
  if (state_ == State::kOpen && !is_saying_hello_ && is_idle()) {
    for (int i = 0; i < 16 && worker_->Progress() > 0; ++i) {
    }
    if (!failure_.ok()) CAIRN_RETURN_IF_ERROR(Reopen(call->deadline));
  }
  if (state_ != State::kOpen) return absl::UnavailableError("the connection is broken");
  Slot* const slot = FreeSlot();
  if (slot == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(window_, " calls are in flight already"));
  }
  slot->call = call;
  slot->seq = SeqOf(call->request);
  slot->header.Set(call->target.size(), call->request);
  slot->is_sending = false;
  slot->is_receiving = false;
  slot->has_reply = false;
  slot->status = absl::OkStatus();
  call->is_over = false;
  call->status = absl::OkStatus();
  call->reply_payload_bytes = 0;
  if (call->may_wait && keeps_) {
    Keep(*slot);
    return absl::OkStatus();
  }
  SendKept();
  if (state_ == State::kOpen) return Send(*slot);
  slot->call = nullptr;
  return absl::UnavailableError("the connection is broken");
}

namespace {

ucp_request_param_t RequestParam(uint32_t flags, ucp_send_nbx_callback_t sent, void* argument) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_REPLY | flags;
  param.cb.send = sent;
  param.user_data = argument;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  return param;
}

}  // namespace

absl::Status UcxConnection::Send(Slot& slot) {
  const std::span<const std::byte> payload = slot.call->payload;
  const ucp_request_param_t param = RequestParam(
      payload.size() > kEagerRequestBytesMax ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER,
      &OnSent, &slot);
  slot.is_sending = true;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, kRequestId, slot.header.data.data(), slot.header.size,
                      payload.data(), payload.size(), &param);
  if (UCS_PTR_IS_ERR(request)) {
    slot.call = nullptr;
    slot.is_sending = false;
    const absl::Status status = FromUcs(UCS_PTR_STATUS(request), "send");
    StartBreaking(status);
    return absl::UnavailableError(status.message());
  }
  if (request == nullptr) slot.is_sending = false;
  return absl::OkStatus();
}

void UcxConnection::Keep(Slot& slot) {
  if (kept_ == nullptr) {
    kept_ = std::make_unique<Sending>();
    kept_->connection = this;
  }
  kept_->bytes.Add(slot.header);
  kept_->slots.push_back(&slot);
  if (kept_->slots.size() == proto::kBatchMax) SendKept();
}

// A failure breaks the connection, and so ends the calls.
void UcxConnection::SendKept() {
  if (kept_ == nullptr || state_ != State::kOpen) return;
  Sending& sending = *sendings_.emplace_back(std::move(kept_));
  for (Slot* slot : sending.slots) slot->is_sending = true;
  const ucp_request_param_t param = RequestParam(UCP_AM_SEND_FLAG_EAGER, &OnBatchSent, &sending);
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, kBatchId, nullptr, 0, sending.bytes.bytes().data(),
                      sending.bytes.bytes().size(), &param);
  if (UCS_PTR_IS_PTR(request)) return;
  EndSending(sending);
  if (UCS_PTR_IS_ERR(request)) StartBreaking(FromUcs(UCS_PTR_STATUS(request), "send"));
}

void UcxConnection::EndSending(const Sending& sending) {
  for (Slot* slot : sending.slots) slot->is_sending = false;
  std::erase_if(sendings_, [&](const auto& held) { return held.get() == &sending; });
}

// Begins to close the connection, for any cause. Must not run inside a UCX callback.
void UcxConnection::StartBreaking(const absl::Status& why) {
  if (state_ != State::kOpen) return;
  state_ = State::kBreaking;
  breaking_since_ = MonotonicNow();
  for (Slot& slot : slots_) {
    if (slot.call != nullptr && slot.status.ok()) {
      slot.status = absl::UnavailableError(why.message());
    }
  }
  kept_ = nullptr;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t closing = ucp_ep_close_nbx(endpoint_, &param);
  if (UCS_PTR_IS_PTR(closing)) close_request_ = closing;
  endpoint_ = nullptr;
}

void UcxConnection::FinishBreaking(absl::Time now) {
  if (close_request_ != nullptr && ucp_request_check_status(close_request_) != UCS_INPROGRESS) {
    ucp_request_free(close_request_);
    close_request_ = nullptr;
  }
  const bool is_moving =
      is_pong_moving_ ||
      std::any_of(slots_.begin(), slots_.end(), [](const Slot& s) { return s.is_moving(); });
  // After the limit, a callback of UCX is missing. Without its worker, UCX accesses no memory.
  if ((close_request_ == nullptr && !is_moving) || now - breaking_since_ > kBreakWithin) {
    DropWorker();
  }
}

void UcxConnection::DropWorker() {
  if (close_request_ != nullptr) ucp_request_free(std::exchange(close_request_, nullptr));
  worker_.reset();
  state_ = State::kBroken;
  is_pong_moving_ = false;
  for (Slot& slot : slots_) slot.is_sending = slot.is_receiving = false;
  sendings_.clear();
  EndCalls();
}

// --- Progress ------------------------------------------------------------------------------------

namespace {

constexpr absl::Duration kSpin = absl::Microseconds(50);
constexpr absl::Duration kOvertimeMax = absl::Milliseconds(40);  // the time to complete a break
constexpr int kLateTurnsMax = 16;

}  // namespace

void UcxConnection::Poll(absl::Time until) {
  absl::Time idle_since = MonotonicNow();
  int late_turns = 0;
  // Ends at `until`, or up to kOvertimeMax later while breaking.
  while (state_ != State::kBroken) {
    SendKept();
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
    // After `until`, data that has already arrived is still read. So Poll(InfinitePast()) notices
    // that the daemon is gone.
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

// --- Inside UCX callbacks, which only record state
// ------------------------------------------------

void UcxConnection::Fail(absl::Status why) {
  if (failure_.ok()) failure_ = std::move(why);
}

void UcxConnection::OnEndpointError(void* argument, ucp_ep_h, ucs_status_t status) {
  static_cast<UcxConnection*>(argument)->Fail(FromUcs(status, "the daemon is gone"));
}

void UcxConnection::AfterMove(ucs_status_t status) {
  // Rejected: the daemon did not take the payload. Its reply has the reason.
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

void UcxConnection::OnBatchSent(void* request, ucs_status_t status, void* argument) {
  ucp_request_free(request);
  const Sending& sending = *static_cast<Sending*>(argument);
  UcxConnection& connection = *sending.connection;
  connection.EndSending(sending);
  connection.AfterMove(status);
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
