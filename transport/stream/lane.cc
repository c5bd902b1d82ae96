// SPDX-License-Identifier: Apache-2.0
#include "transport/stream/lane.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>

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
#include "transport/stream/socket.h"

namespace cairn::transport {
namespace {

constexpr size_t kStreamTasksMax = 4096;
constexpr size_t kStreamArrivalsMax = 256;
constexpr uint64_t kStreamWakeTag = 0;
constexpr int kStreamLaneBits = 8;
// Distinguishes these ids from those of other transports.
constexpr uint64_t kStreamPeerBit = uint64_t{1} << 61;
constexpr absl::Duration kStreamSleepMax = absl::Seconds(1);
// The maximum window, plus room for refusals that a peer has not read yet.
constexpr int kUnansweredMax = static_cast<int>(proto::kWindowMax) + 64;
constexpr absl::Duration kOwnReplyWithin = absl::Seconds(5);

}  // namespace

StreamLane::StreamLane(int index, const StreamLaneOptions& options, LaneHandler& handler,
                       TransportMetrics& metrics, const TlsFiles& files)
    : index_(index),
      options_(options),
      handler_(handler),
      metrics_(metrics),
      files_(files),
      submitted_(kStreamTasksMax),
      arrivals_(kStreamArrivalsMax),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      generation_(files.generation()) {
  CAIRN_CHECK(epoll_.is_valid(), "no file descriptor left for a lane");
  WatchSocket(epoll_.get(), submitted_.event_fd(), kStreamWakeTag, EPOLLIN);
}

StreamLane::~StreamLane() {
  Stop();
  Join();
  CAIRN_CHECK(held_.empty() && moving_.empty() && finished_.empty());
}

void StreamLane::Start() {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), absl::StrCat("cairn-strm-", index_).c_str());
}

void StreamLane::Stop() {
  arrivals_.Close();
  submitted_.Close();
  is_stopping_.store(true, std::memory_order_release);  // pairs with the load in Run()
  submitted_.Wake();
}

void StreamLane::Join() {
  if (thread_.joinable()) thread_.join();
}

absl::Status StreamLane::Submit(absl::AnyInvocable<void(Lane&)> task) {
  return submitted_.Push(std::move(task));
}

bool StreamLane::Adopt(TlsArrival arrival) {
  peer_count_.fetch_add(1, std::memory_order_relaxed);
  if (!arrivals_.TryPush(std::move(arrival))) {
    peer_count_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  submitted_.Wake();
  return true;
}

// --- The loop ------------------------------------------------------------------------------------

void StreamLane::Run() {
  // Ends after Stop(). acquire: pairs with the store there.
  while (!is_stopping_.load(std::memory_order_acquire)) Turn();
  ShutDown();
}

int StreamLane::SleepMs(absl::Time now) {
  if (!ready_.empty() || !finished_.empty() || !gone_.empty()) return 0;
  const absl::Duration wait = std::min(next_deadline_ - now, kStreamSleepMax);
  // Rounded up, so that the lane does not spin until a deadline.
  return static_cast<int>(
      std::max<int64_t>(0, absl::ToInt64Milliseconds(wait + absl::Microseconds(999))));
}

void StreamLane::Turn() {
  std::array<epoll_event, 64> events;
  const bool may_sleep = submitted_.PrepareSleep();
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                               may_sleep ? SleepMs(MonotonicNow()) : 0);
  if (may_sleep) submitted_.Awake();
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.u64 == kStreamWakeTag) continue;
    StreamPeer* const peer = FindPeer(event.data.u64);
    if (peer == nullptr) continue;
    if ((event.events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) peer->can_read_ = true;
    MakeReady(*peer);
  }
  submitted_.RunAll(*this);
  AdoptAll();
  EndRevoked();
  std::vector<PeerId> ready;
  ready.swap(ready_);
  for (const PeerId id : ready) {
    StreamPeer* const peer = FindPeer(id);
    if (peer == nullptr) continue;
    peer->is_ready_ = false;
    Pump(*peer);
  }
  ExpireDeadlines(MonotonicNow());
  ReapGone();
  RunFinished();
}

void StreamLane::MakeReady(StreamPeer& peer) {
  if (std::exchange(peer.is_ready_, true)) return;
  ready_.push_back(peer.id_);
}

// Does one step in each direction. It reads first, so that answers can leave in the same turn.
void StreamLane::Pump(StreamPeer& peer) {
  if (peer.can_read_) {
    const ChunkStream::State read = peer.stream_.Read();
    if (peer.is_gone_) return;
    if (read == ChunkStream::State::kEnded) {
      const absl::Status& why = peer.stream_.end();
      return absl::IsInvalidArgument(why) ? BreakPeer(peer, why) : Condemn(peer, why);
    }
    peer.can_read_ = read == ChunkStream::State::kMore;
    if (peer.can_read_) MakeReady(peer);
  }
  const ChunkStream::State written = peer.stream_.Write();
  if (peer.is_gone_) return;
  if (written == ChunkStream::State::kEnded) return Condemn(peer, peer.stream_.end());
  if (written == ChunkStream::State::kMore) MakeReady(peer);
  if (peer.stream_.wants_write() != peer.is_watched_out_) {
    peer.is_watched_out_ = peer.stream_.wants_write();
    WatchSocket(epoll_.get(), peer.tls_.socket.get(), peer.id_,
                EPOLLIN | (peer.is_watched_out_ ? EPOLLOUT : 0u));
  }
}

size_t StreamLane::AdoptAll() {
  size_t count = 0;
  while (std::optional<TlsArrival> arrival = arrivals_.TryPop()) {
    const PeerId id =
        kStreamPeerBit | (++peers_made_ << kStreamLaneBits) | static_cast<uint64_t>(index_);
    auto owned = std::make_unique<StreamPeer>(*this, id, *std::move(arrival));
    StreamPeer& peer = *owned;
    peer.hello_by_ = MonotonicNow() + options_.hello_within;
    next_deadline_ = std::min(next_deadline_, peer.hello_by_);
    peers_.emplace(id, std::move(owned));
    metrics_.peers_opened.Add();
    metrics_.peers.Add(1);
    WatchSocket(epoll_.get(), peer.tls_.socket.get(), id, EPOLLIN);
    MakeReady(peer);  // data may have arrived with the end of the handshake
    ++count;
  }
  return count;
}

// Called after the files have changed: a new revocation list may revoke connected peers.
void StreamLane::EndRevoked() {
  const uint64_t now = files_.generation();
  if (now == generation_) return;
  generation_ = now;
  const TlsContext context = files_.context();
  for (const auto& [id, peer] : peers_) {
    if (!peer->is_gone_ && peer->tls_.session->IsPeerRevoked(context)) {
      LogWarn("stream", "connection ended: its certificate is revoked",
              {{"peer", peer->identity_.ToString()}});
      BreakPeer(*peer, absl::UnavailableError("the certificate is revoked"));
    }
  }
}

void StreamLane::ShutDown() {
  AdoptAll();
  for (const auto& [id, peer] : peers_) {
    Condemn(*peer, absl::UnavailableError("the daemon is stopping"));
  }
  ReapGone();
  // Ends: no more requests arrive, and each completion answers at most one more request.
  while (static_cast<size_t>(submitted_.RunAll(*this)) + RunFinished() > 0) {
  }
}

// --- Peers ---------------------------------------------------------------------------------------

StreamPeer::StreamPeer(StreamLane& lane, PeerId id, TlsArrival arrival)
    : lane_(lane),
      id_(id),
      tls_(std::move(arrival)),
      identity_(tls_.session->peer()),
      stream_(*tls_.session, *this) {
  KeepAlive(tls_.socket.get());
}

StreamPeer* StreamLane::FindPeer(PeerId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() || found->second->is_gone_ ? nullptr : found->second.get();
}

// May run inside a call of the peer's stream. The stream then stops, and ReapGone() destroys the
// peer later.
void StreamLane::Condemn(StreamPeer& peer, const absl::Status& why) {
  if (std::exchange(peer.is_gone_, true)) return;
  peer.stream_.Stop();
  peer.tls_.session->Close();
  CloseInOrder(std::move(peer.tls_.socket));
  gone_.push_back(peer.id_);
  peer.replies_.clear();
  peer.puts_.clear();
  for (size_t i = moving_.size(); i-- > 0;) {
    if (moving_[i]->peer == &peer) {
      OnMoved(*moving_[i],
              moving_[i]->status.ok() ? absl::UnavailableError(why.message()) : moving_[i]->status);
    }
  }
  // The held payloads of the peer will not arrive. Backwards, because LetGo() removes them from the
  // list.
  for (size_t i = held_.size(); i-- > 0;) {
    if (held_[i]->peer_ == &peer) LetGo(*held_[i]);
  }
  LogDebug("stream", "peer is gone", {{"peer", peer.id_}, {"why", why}});
}

void StreamLane::BreakPeer(StreamPeer& peer, const absl::Status& why) {
  if (peer.is_gone_) return;
  metrics_.peers_broken.Add();
  Condemn(peer, why);
}

void StreamLane::Break(PeerId peer) {
  if (StreamPeer* const found = FindPeer(peer)) {
    BreakPeer(*found, absl::UnavailableError("the session is over"));
  }
}

void StreamLane::ReapGone() {
  // By index, because OnPeerGone() may break another peer.
  for (size_t i = 0; i < gone_.size(); ++i) {
    handler_.OnPeerGone(*this, gone_[i]);
    metrics_.peers.Add(-1);
    peer_count_.fetch_sub(1, std::memory_order_relaxed);
    peers_.erase(gone_[i]);
  }
  gone_.clear();
}

// --- Arrivals ------------------------------------------------------------------------------------

StreamPeer::Put* StreamPeer::FindPut(uint64_t seq) {
  const auto found =
      std::find_if(puts_.begin(), puts_.end(), [seq](const Put& put) { return put.seq == seq; });
  return found == puts_.end() ? nullptr : &*found;
}

void StreamPeer::ErasePut(uint64_t seq) {
  std::erase_if(puts_, [seq](const Put& put) { return put.seq == seq; });
}

absl::Status StreamPeer::OnChunk(const Chunk& chunk, ChunkStream::Sink* sink) {
  switch (chunk.kind) {
    case ChunkKind::kRequest:
      return OnRequest(chunk, sink);
    case ChunkKind::kData:
      return OnData(chunk, sink);
    default:
      return absl::InvalidArgumentError("chunk: a client sends requests and data");
  }
}

absl::Status StreamPeer::OnRequest(const Chunk& chunk, ChunkStream::Sink* sink) {
  hello_by_ = absl::InfiniteFuture();
  arriving_ = nullptr;
  refusal_ = absl::OkStatus();
  if (unanswered_ >= kUnansweredMax) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", kUnansweredMax, " requests"));
  }
  ++unanswered_;
  if (chunk.payload_bytes == 0) return absl::OkStatus();
  const ServerLimits& limits = lane_.options_.limits;
  if (chunk.payload_bytes > limits.payload_bytes_max) {
    refusal_ = absl::InvalidArgumentError(absl::StrCat(
        "payload of ", chunk.payload_bytes, " bytes; the limit is ", limits.payload_bytes_max));
    return absl::OkStatus();
  }
  if (lane_.held_.size() >= static_cast<size_t>(limits.arrivals_held_max)) {
    refusal_ = absl::ResourceExhaustedError(
        absl::StrCat("the lane holds ", limits.arrivals_held_max, " payloads already"));
    return absl::OkStatus();
  }
  if (FindPut(chunk.seq) != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk: a payload with the seq ", chunk.seq, " is under way"));
  }
  arriving_ = std::make_unique<StreamHeld>(lane_, *this, chunk.seq);
  lane_.Hold(*arriving_);
  if (chunk.data_bytes > 0) {
    arriving_->inline_.resize(chunk.data_bytes);
    sink->target = arriving_->inline_;
  } else {
    puts_.push_back({.seq = chunk.seq, .payload_bytes = chunk.payload_bytes, .transfer = nullptr});
  }
  return absl::OkStatus();
}

absl::Status StreamPeer::OnData(const Chunk& chunk, ChunkStream::Sink* sink) {
  const Put* const put = FindPut(chunk.seq);
  if (put == nullptr || put->transfer == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk: data of ", chunk.seq, ", which was not asked for"));
  }
  StreamTransfer& transfer = *put->transfer;
  if (chunk.data_bytes > put->payload_bytes - transfer.moved) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk: more data than the ", put->payload_bytes, " bytes of ", chunk.seq));
  }
  sink->target = transfer.target.subspan(transfer.moved, chunk.data_bytes);
  sink->crc32c = &transfer.crc32c;
  return absl::OkStatus();
}

absl::Status StreamPeer::OnChunkEnd(const Chunk& chunk) {
  if (chunk.kind == ChunkKind::kRequest) {
    if (!refusal_.ok()) {
      lane_.RefuseRequest(*this, chunk, refusal_);
      return absl::OkStatus();
    }
    lane_.Arrive(*this, chunk, std::move(arriving_));
    return absl::OkStatus();
  }
  const Put* const put = FindPut(chunk.seq);
  CAIRN_CHECK(put != nullptr && put->transfer != nullptr);
  StreamTransfer& transfer = *put->transfer;
  transfer.moved += chunk.data_bytes;
  if (transfer.moved == put->payload_bytes) {
    ErasePut(chunk.seq);
    lane_.metrics_.received_bytes.Add(transfer.target.size());
    lane_.OnMoved(transfer, absl::OkStatus());
  }
  return absl::OkStatus();
}

void StreamLane::Arrive(StreamPeer& peer, const Chunk& chunk, std::unique_ptr<StreamHeld> held) {
  const ReplyTo reply_to{
      .peer = peer.id_,
      .seq = chunk.seq,
      .place = 0,
      .capacity_bytes = std::min(chunk.capacity_bytes, options_.limits.payload_bytes_max)};
  handler_.OnArrival(
      *this, Arrival(reply_to, chunk.frame, chunk.payload_bytes, std::move(held), &peer.identity_));
}

// Sends the one reply to a request that does not reach the handler.
void StreamLane::RefuseRequest(StreamPeer& peer, const Chunk& chunk, const absl::Status& status) {
  metrics_.arrivals_refused.Add();
  proto::Ticket ticket{};
  std::memcpy(ticket.data(), chunk.frame.data.data() + 16, ticket.size());
  StreamTransfer& transfer =
      NewTransfer(StreamTransfer::Kind::kOwnReply, &peer, MonotonicNow() + kOwnReplyWithin);
  transfer.seq = chunk.seq;
  transfer.frame = proto::Serialize(proto::ErrorFrame(chunk.seq, ticket, status));
  StartMoving(transfer);
  peer.replies_.push_back(&transfer);
  MakeReady(peer);
}

// --- Held payloads -------------------------------------------------------------------------------

StreamHeld::~StreamHeld() {
  if (lane_ != nullptr) lane_->Release(*this);
}

void StreamLane::Hold(StreamHeld& held) {
  held.index_ = held_.size();
  held_.push_back(&held);
  metrics_.arrivals_held.Add(1);
}

void StreamLane::LetGo(StreamHeld& held) {
  held_[held.index_] = held_.back();
  held_[held.index_]->index_ = held.index_;
  held_.pop_back();
  metrics_.arrivals_held.Add(-1);
  held.lane_ = nullptr;
}

// A reply without an earlier `go` tells the client that its memory is free.
void StreamLane::Release(StreamHeld& held) {
  held.peer_->ErasePut(held.seq_);
  LetGo(held);
}

// --- Transfers -----------------------------------------------------------------------------------

StreamTransfer& StreamLane::NewTransfer(StreamTransfer::Kind kind, StreamPeer* peer,
                                        absl::Time deadline) {
  if (free_.empty()) {
    transfers_.push_back(std::make_unique<StreamTransfer>());
    free_.push_back(transfers_.back().get());
  }
  StreamTransfer& transfer = *free_.back();
  free_.pop_back();
  transfer.kind = kind;
  transfer.peer = peer;
  transfer.target = {};
  transfer.payload = {};
  transfer.moved = 0;
  transfer.has_begun = false;
  transfer.crc32c = 0;
  transfer.deadline = deadline;
  transfer.status = absl::OkStatus();
  return transfer;
}

void StreamLane::Receive(Arrival arrival, std::span<std::byte> target, absl::Time deadline,
                         ReceiveDone done) {
  CAIRN_CHECK(target.size() == arrival.payload_bytes());
  const std::unique_ptr<Arrival::Held> taken = arrival.TakeHeld();
  auto* const held = static_cast<StreamHeld*>(taken.get());
  StreamTransfer& transfer = NewTransfer(StreamTransfer::Kind::kReceive, nullptr, deadline);
  transfer.target = target;
  transfer.receive_done = std::move(done);
  if (target.empty()) return FinishLater(transfer, absl::OkStatus());
  if (held == nullptr || held->lane_ == nullptr) {
    return FinishLater(transfer, absl::UnavailableError("the peer is gone"));
  }
  StreamPeer& peer = *held->peer_;
  LetGo(*held);
  if (!held->inline_.empty()) {
    transfer.crc32c = codecs::CopyCrc32c(0, target.data(), held->inline_);
    metrics_.received_bytes.Add(target.size());
    return FinishLater(transfer, absl::OkStatus());
  }
  StreamPeer::Put* const put = peer.FindPut(held->seq_);
  CAIRN_CHECK(put != nullptr && put->transfer == nullptr);
  put->transfer = &transfer;
  transfer.peer = &peer;
  transfer.seq = held->seq_;
  StartMoving(transfer);
  peer.goes_.push_back(held->seq_);
  MakeReady(peer);
}

void StreamLane::Reply(const ReplyTo& reply_to, const proto::FrameBytes& frame,
                       std::span<const std::byte> payload, absl::Time deadline, ReplyDone done) {
  StreamPeer* const peer = FindPeer(reply_to.peer);
  StreamTransfer& transfer = NewTransfer(StreamTransfer::Kind::kReply, peer, deadline);
  transfer.payload = payload;
  transfer.reply_done = std::move(done);
  if (peer == nullptr) return FinishLater(transfer, absl::UnavailableError("the peer is gone"));
  if (payload.size() > reply_to.capacity_bytes) {
    return FinishLater(transfer, absl::InvalidArgumentError(absl::StrCat(
                                     "reply payload of ", payload.size(),
                                     " bytes; the client takes ", reply_to.capacity_bytes)));
  }
  transfer.seq = reply_to.seq;
  transfer.frame = frame;
  StartMoving(transfer);
  peer->replies_.push_back(&transfer);
  MakeReady(*peer);
}

// `go` chunks come first, because they are small. Replies then take turns, one chunk each.
bool StreamPeer::NextChunk(Chunk* chunk, std::span<const std::byte>* data) {
  if (!goes_.empty()) {
    chunk->kind = ChunkKind::kGo;
    chunk->seq = goes_.front();
    goes_.pop_front();
    sending_ = nullptr;
    return true;
  }
  if (replies_.empty()) return false;
  sending_ = replies_.front();
  replies_.pop_front();
  chunk->seq = sending_->seq;
  size_t front_bytes = kChunkHeadBytes;
  if (!sending_->has_begun) {
    chunk->kind = ChunkKind::kReply;
    chunk->frame = sending_->frame;
    chunk->payload_bytes = sending_->payload.size();
    front_bytes += chunk->frame.size + kChunkSizesBytes;
  } else {
    chunk->kind = ChunkKind::kData;
  }
  sending_bytes_ = ChunkDataBytes(front_bytes, sending_->payload.size() - sending_->moved);
  chunk->data_bytes = sending_bytes_;
  *data = sending_->payload.subspan(sending_->moved, sending_bytes_);
  return true;
}

void StreamPeer::OnChunkSent() {
  StreamTransfer* const sent = std::exchange(sending_, nullptr);
  if (sent == nullptr) return;
  sent->has_begun = true;
  sent->moved += sending_bytes_;
  if (sent->moved < sent->payload.size()) {
    replies_.push_back(sent);
    return;
  }
  lane_.metrics_.sent_bytes.Add(sent->payload.size());
  lane_.OnMoved(*sent, absl::OkStatus());
}

void StreamLane::StartMoving(StreamTransfer& transfer) {
  transfer.moving_index = moving_.size();
  moving_.push_back(&transfer);
  next_deadline_ = std::min(next_deadline_, transfer.deadline);
}

// After this, the memory is free.
void StreamLane::OnMoved(StreamTransfer& transfer, absl::Status status) {
  moving_[transfer.moving_index] = moving_.back();
  moving_[transfer.moving_index]->moving_index = transfer.moving_index;
  moving_.pop_back();
  if (transfer.kind != StreamTransfer::Kind::kReceive) --transfer.peer->unanswered_;
  FinishLater(transfer, std::move(status));
}

void StreamLane::FinishLater(StreamTransfer& transfer, absl::Status status) {
  transfer.status = std::move(status);
  finished_.push_back(&transfer);
}

void StreamLane::ExpireDeadlines(absl::Time now) {
  if (now < next_deadline_) return;
  next_deadline_ = absl::InfiniteFuture();
  std::vector<StreamPeer*> late;
  for (StreamTransfer* transfer : moving_) {
    if (transfer->deadline > now) {
      next_deadline_ = std::min(next_deadline_, transfer->deadline);
      continue;
    }
    transfer->status = absl::DeadlineExceededError("the transfer's deadline passed");
    metrics_.deadlines_exceeded.Add();
    late.push_back(transfer->peer);
  }
  for (StreamPeer* peer : late) {
    BreakPeer(*peer, absl::UnavailableError("the deadline of a transfer passed"));
  }
  for (const auto& [id, peer] : peers_) {
    if (peer->is_gone_) continue;
    if (peer->hello_by_ > now) {
      next_deadline_ = std::min(next_deadline_, peer->hello_by_);
    } else {
      metrics_.newcomers_late.Add();
      BreakPeer(*peer, absl::UnavailableError("no hello in time"));
    }
  }
}

size_t StreamLane::RunFinished() {
  const size_t count = finished_.size();
  if (count == 0) return 0;
  std::vector<StreamTransfer*> finished;
  finished.swap(finished_);
  for (StreamTransfer* transfer : finished) {
    ReceiveDone receive_done = std::exchange(transfer->receive_done, nullptr);
    ReplyDone reply_done = std::exchange(transfer->reply_done, nullptr);
    const absl::Status status = std::move(transfer->status);
    const uint32_t crc32c = transfer->crc32c;
    free_.push_back(transfer);
    if (receive_done != nullptr) {
      receive_done({status, status.ok() ? crc32c : 0});
    } else if (reply_done != nullptr) {
      reply_done(status);
    }
  }
  finished.clear();
  if (finished_.empty()) finished_.swap(finished);  // keeps the allocated memory
  return count;
}

}  // namespace cairn::transport
