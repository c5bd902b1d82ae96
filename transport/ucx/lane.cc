// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/lane.h"

#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "codecs/checksum/checksum.h"

namespace cairn::transport {
namespace {

constexpr size_t kTasksMax = 4096;
constexpr size_t kConnectionsMax = 256;
constexpr absl::Duration kSleepMax = absl::Seconds(1);
constexpr absl::Duration kFinishWithin = absl::Seconds(2);
// For running transfers when a lane ends.
constexpr absl::Duration kDrainWithin = absl::Milliseconds(500);

absl::Status Watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::InternalError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace

UcxLane::UcxLane(int index, const UcxContext& context, const UcxLaneOptions& options,
                 LaneHandler& handler, TransportMetrics& metrics)
    : index_(index),
      context_(context),
      options_(options),
      handler_(handler),
      metrics_(metrics),
      submitted_(kTasksMax),
      connections_(kConnectionsMax) {}

UcxLane::~UcxLane() {
  Finish();
  CAIRN_CHECK(held_.empty() && moving_.empty() && finished_.empty());
}

absl::Status UcxLane::Start() {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), absl::StrCat("cairn-ucx-", index_).c_str());
  const absl::Time deadline = MonotonicNow() + absl::Seconds(30);
  const MutexLock lock(state_mutex_);
  while (!is_set_up_) {
    if (!state_changed_.WaitUntil(state_mutex_, deadline) && !is_set_up_) {
      return absl::DeadlineExceededError("the lane's UCX worker did not start");
    }
  }
  return set_up_status_;
}

absl::Status UcxLane::SetUp() {
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.is_valid()) {
    return absl::InternalError(absl::StrCat("epoll_create1: ", std::strerror(errno)));
  }
  CAIRN_RETURN_IF_ERROR(Watch(epoll_.get(), submitted_.event_fd()));
  CAIRN_ASSIGN_OR_RETURN(worker_, UcxWorker::Make(context_));
  CAIRN_RETURN_IF_ERROR(worker_->Handle(kRequestId, &OnRequest, this));
  CAIRN_RETURN_IF_ERROR(worker_->Handle(kBatchId, &OnBatch, this));
  return Watch(epoll_.get(), worker_->event_fd());
}

void UcxLane::Run() {
  const absl::Status status = SetUp();
  {
    const MutexLock lock(state_mutex_);
    set_up_status_ = status;
    is_set_up_ = true;
  }
  state_changed_.NotifyAll();
  if (!status.ok()) {
    worker_.reset();
    return;
  }
  // Ends after Finish(). acquire: pairs with the store there.
  while (phase_.load(std::memory_order_acquire) != Phase::kFinishing) {
    const absl::Time now = MonotonicNow();
    if (Turn(now) > 0) {
      idle_since_ = now;
    } else if (now - idle_since_ >= options_.spin) {
      Sleep(now);
    }
  }
  ShutDown();
}

// One turn: does everything that is due. Returns the number of events.
size_t UcxLane::Turn(absl::Time now) {
  size_t events = worker_->Progress();
  events += static_cast<size_t>(submitted_.RunAll(*this));
  events += AcceptConnections();
  events += DispatchArrivals();
  events += ExpireDeadlines(now);
  events += CloseBroken();
  events += ReapClosed(now);
  events += RunFinished();
  events += WatchIdlePeers(now);
  return events;
}

void UcxLane::Sleep(absl::Time now) {
  if (!submitted_.PrepareSleep()) return;
  // Arming must be the last action before the sleep. If it reports pending events, the lane does
  // not sleep.
  if (worker_->Arm()) {
    absl::Duration wait = std::min({next_deadline_ - now, next_watch_ - now, kSleepMax});
    if (!breaking_.empty()) wait = std::min(wait, absl::Milliseconds(1));
    // Rounded up, so that the lane does not spin until a deadline.
    const int64_t wait_ms = absl::ToInt64Milliseconds(wait + absl::Microseconds(999));
    std::array<epoll_event, 2> events;
    epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
               static_cast<int>(std::max<int64_t>(0, wait_ms)));
    idle_since_ = MonotonicNow();
  }
  submitted_.Awake();
}

absl::Status UcxLane::Submit(absl::AnyInvocable<void(Lane&)> task) {
  return submitted_.Push(std::move(task));
}

bool UcxLane::Adopt(ucp_conn_request_h request) {
  peer_count_.fetch_add(1, std::memory_order_relaxed);
  if (!connections_.TryPush(std::move(request))) {
    peer_count_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  submitted_.Wake();
  return true;
}

size_t UcxLane::AcceptConnections() {
  if (phase_.load(std::memory_order_acquire) != Phase::kServing) {
    const MutexLock lock(state_mutex_);
    if (!is_refusing_) {
      is_refusing_ = true;
      state_changed_.NotifyAll();
    }
    return 0;
  }
  size_t count = 0;
  while (std::optional<ucp_conn_request_h> request = connections_.TryPop()) {
    Accept(*request);
    ++count;
  }
  return count;
}

size_t UcxLane::WatchIdlePeers(absl::Time now) {
  if (now < next_watch_) return 0;
  next_watch_ = now + std::min(kSleepMax, options_.ping_interval / 2);
  proto::Frame ping;
  ping.body = proto::Ping{};
  for (const auto& [id, owned] : peers_) {
    UcxPeer& peer = *owned;
    if (peer.is_breaking || peer.transfers > 0) continue;
    if (now - peer.heard < options_.ping_interval * (peer.pings_missed + 1)) continue;
    if (peer.pings_missed == 2) {
      BreakPeer(peer, absl::UnavailableError("two pings were not answered"));
      continue;
    }
    ++peer.pings_missed;
    SendOwnFrame(peer, kOwnFrame, proto::Serialize(ping));
  }
  return 0;
}

void UcxLane::Refuse() {
  if (!thread_.joinable()) return;
  connections_.Close();
  Phase serving = Phase::kServing;
  phase_.compare_exchange_strong(serving, Phase::kRefusing);
  submitted_.Wake();
  const absl::Time deadline = MonotonicNow() + kFinishWithin;
  const MutexLock lock(state_mutex_);
  while (!is_refusing_ && set_up_status_.ok()) {
    if (!state_changed_.WaitUntil(state_mutex_, deadline) && !is_refusing_) {
      LogError("ucx", "lane does not respond while stopping", {{"lane", index_}});
      return;
    }
  }
}

ucp_conn_request_h UcxLane::TakeUnaccepted() { return connections_.TryPop().value_or(nullptr); }

void UcxLane::Finish() {
  if (!thread_.joinable()) return;
  Refuse();
  submitted_.Close();
  phase_.store(Phase::kFinishing, std::memory_order_release);  // pairs with the load in Run()
  submitted_.Wake();
  thread_.join();
}

void UcxLane::ShutDown() {
  // Running transfers may complete first. If a payload is interrupted, an assertion of UCX 1.13 can
  // abort its sender (docs/internals/transport-ucx.md).
  is_draining_ = true;
  const absl::Time deadline = MonotonicNow() + kFinishWithin;
  const absl::Time drained_by = MonotonicNow() + kDrainWithin;
  while (!moving_.empty() && MonotonicNow() < drained_by) {
    Turn(MonotonicNow());
  }
  for (const auto& [id, peer] : peers_) {
    Condemn(*peer, absl::UnavailableError("the daemon is stopping"));
  }
  // Ends at the deadline at the latest: AbandonWorker() completes the rest.
  while (!peers_.empty() && MonotonicNow() < deadline) {
    Turn(MonotonicNow());
  }
  AbandonWorker();
  while (static_cast<size_t>(submitted_.RunAll(*this)) + RunFinished() > 0) {
  }
}

// --- Peers ---------------------------------------------------------------------------------------

namespace {

constexpr absl::Duration kStuckAfter = absl::Seconds(2);
constexpr int kLaneBits = 8;
// Distinguishes these ids from those of other transports.
constexpr uint64_t kUcxPeerBit = uint64_t{1} << 62;

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
  if (status != UCS_OK) {  // UCX has consumed the request in any case
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

// May run inside a UCX callback, where an endpoint must not be closed. The loop closes it later.
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
  // By index, because OnPeerGone() may break another peer.
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
  // The held payloads of the peer will not arrive. Backwards, because Release() removes them from
  // the list.
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

// A callback of UCX is missing. After its worker is destroyed, UCX cannot access our memory.
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

// --- Transfers -----------------------------------------------------------------------------------

namespace {

// A peer that sends more requests in one turn is broken. No window is larger.
constexpr uint32_t kArrivedMax = proto::kWindowMax;
constexpr int kOwnFramesMax = 64;  // maximum number of refusals that a peer has not read
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

// --- Transfers: arrivals -------------------------------------------------------------------------

ucs_status_t UcxLane::OnRequest(void* argument, const void* header, size_t header_bytes, void* data,
                                size_t data_bytes, const ucp_am_recv_param_t* param) {
  UcxLane& lane = *static_cast<UcxLane*>(argument);
  UcxPeer* const peer = lane.PeerOf(param);
  if (peer == nullptr) return RefusedPayload(param);
  const std::optional<Header> read = ReadHeader(header, header_bytes);
  if (!read.has_value()) {
    lane.BreakPeer(*peer, absl::InvalidArgumentError(
                              absl::StrCat("message header of ", header_bytes, " bytes")));
    return RefusedPayload(param);
  }
  return lane.TakeRequest(*peer, *read, data, data_bytes, param);
}

ucs_status_t UcxLane::OnBatch(void* argument, const void*, size_t header_bytes, void* data,
                              size_t data_bytes, const ucp_am_recv_param_t* param) {
  UcxLane& lane = *static_cast<UcxLane*>(argument);
  UcxPeer* const peer = lane.PeerOf(param);
  if (peer == nullptr) return RefusedPayload(param);
  const bool is_rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  std::span<const std::byte> rest;
  if (!is_rendezvous && header_bytes == 0 && data_bytes <= kBatchBytesMax) {
    rest = {static_cast<const std::byte*>(data), data_bytes};
  }
  bool is_valid = !rest.empty();
  lane.metrics_.batches.Add();
  for (int count = 0; is_valid && !rest.empty() && !peer->is_breaking; ++count) {
    const std::optional<Header> read = TakeHeader(&rest);
    is_valid = read.has_value() && count < proto::kBatchMax;
    if (is_valid) lane.TakeRequest(*peer, *read, nullptr, 0, param);
  }
  if (!is_valid) lane.BreakPeer(*peer, absl::InvalidArgumentError("malformed batch"));
  return RefusedPayload(param);
}

UcxPeer* UcxLane::PeerOf(const ucp_am_recv_param_t* param) {
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return nullptr;
  const auto found = peers_by_endpoint_.find(param->reply_ep);
  return found == peers_by_endpoint_.end() || found->second->is_breaking ? nullptr : found->second;
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
    // If the peer was broken meanwhile, the arrival is dropped.
    UcxPeer* const peer = FindPeer(arrival.reply_to().peer);
    if (peer == nullptr) continue;
    --peer->arrived;
    handler_.OnArrival(*this, std::move(arrival));
  }
  arrived.clear();
  if (arrived_.empty()) arrived_.swap(arrived);  // keeps the allocated memory
  return count;
}

// Sends the one reply to a request that does not reach the handler.
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

// --- Transfers: held payloads --------------------------------------------------------------------

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

// Tells the sender that its memory is free. UCX reports OK to the sender, which relies on our reply
// frame instead.
void UcxLane::Release(UcxHeld& held) {
  void* const descriptor = LetGo(held);
  if (descriptor != nullptr) ucp_am_data_release(worker_->get(), descriptor);
}

// --- Transfers: receives and replies -------------------------------------------------------------

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

// Called before UCX, because a callback inside the UCX call must find the transfer in the list.
void UcxLane::StartMoving(UcxTransfer& transfer) {
  transfer.moving_index = moving_.size();
  moving_.push_back(&transfer);
  ++transfer.peer->transfers;
  next_deadline_ = std::min(next_deadline_, transfer.deadline);
}

// The callback. After this, the memory is free.
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
    // A client may reject a reply that it does not expect, and stays connected. All other errors
    // break the peer.
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
  // All results are decided first, because breaking a peer answers its other transfers with
  // Unavailable.
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
  if (finished_.empty()) finished_.swap(finished);  // keeps the allocated memory
  return count;
}

}  // namespace cairn::transport
