// SPDX-License-Identifier: Apache-2.0
// The loop of a lane, its transfers and its peers' ends. What arrives is in lane_arrivals.cc.
#include "transport/local/lane.h"

#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "codecs/checksum/checksum.h"
#include "transport/local/lane_internal.h"

namespace cairn::transport {

LocalLane::LocalLane(int index, LaneShare& share)
    : index_(index), share_(share), queue_(kTasksMax), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  CAIRN_CHECK(index >= 0 && index < kLanesMax);
  CAIRN_CHECK(epoll_.is_valid(), "no file descriptor left for a lane");
  WatchSocket(epoll_.get(), queue_.event_fd(), kSubmitTag, EPOLLIN);
}

LocalLane::~LocalLane() {
  CAIRN_CHECK(!thread_.joinable(), "a lane is destroyed while its thread runs");
  CAIRN_CHECK(arrivals_held_.load() == 0, "an arrival outlives its server");
}

void LocalLane::Start() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), absl::StrCat("cairn-lane-", index_).c_str());
    Run();
  });
}

void LocalLane::Stop() {
  queue_.Close();
  is_stopping_.store(true);
  queue_.Wake();
}

void LocalLane::Join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void LocalLane::Listen(int listener, absl::AnyInvocable<Accepted()> accept) {
  CAIRN_CHECK(listener_ < 0 && !thread_.joinable());
  listener_ = listener;
  accept_ = std::move(accept);
  is_listening_ = true;
  WatchSocket(epoll_.get(), listener_, kListenerTag, EPOLLIN);
}

absl::Status LocalLane::Submit(absl::AnyInvocable<void(Lane&)> task) {
  return queue_.Push(std::move(task));
}

void LocalLane::Run() {
  absl::Time idle_since = MonotonicNow();
  while (!is_stopping_.load(std::memory_order_relaxed)) {
    if (Turn(0) > 0) {
      idle_since = MonotonicNow();
    } else if (MonotonicNow() - idle_since >= kSpin && queue_.PrepareSleep()) {
      Turn(SleepMs());
      queue_.Awake();
      idle_since = MonotonicNow();
    }
  }
  EndAll();
}

int LocalLane::Turn(int wait_ms) {
  int events = ServeSockets(wait_ms);
  events += queue_.RunAll(*this);
  events += MovePiece();
  const absl::Time now = MonotonicNow();
  events += ExpireDeadlines(now);
  if (listen_again_ <= now) {
    listen_again_ = absl::InfiniteFuture();
    is_listening_ = true;
    WatchSocket(epoll_.get(), listener_, kListenerTag, EPOLLIN);
  }
  events += CloseBroken();
  events += RunCallbacks();
  return events;
}

int LocalLane::SleepMs() const {
  // Nothing moves while the lane sleeps, so transfers have no say in this.
  absl::Time until = listen_again_;
  if (!greeting_.empty()) {
    until = std::min(until, greeting_.front().first);
  }
  const absl::Duration wait = std::min(until - MonotonicNow(), absl::Seconds(1));
  return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(wait) + 1));
}

int LocalLane::ServeSockets(int wait_ms) {
  epoll_event events[kEventsMax];
  const int count = epoll_wait(epoll_.get(), events, kEventsMax, wait_ms);
  if (count < 0) {
    CAIRN_CHECK(errno == EINTR);
    return 0;
  }
  int served = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = events[i].data.u64;
    if (tag == kSubmitTag) {
      continue;  // Awake() drains it
    }
    ++served;
    if (tag == kListenerTag) {
      ServeListener();
    } else if (Peer* peer = Find(tag); peer != nullptr && !peer->is_breaking) {
      ReadPeer(*peer);
    }
  }
  return served;
}

// --- transfers ---------------------------------------------------------------------------------

void LocalLane::Reply(const ReplyTo& reply_to, const proto::FrameBytes& frame,
                      std::span<const std::byte> payload, absl::Time deadline, ReplyDone done) {
  CAIRN_CHECK(payload.size() <= reply_to.capacity_bytes, "a reply is larger than its room");
  Peer* peer = Find(reply_to.peer);
  if (peer == nullptr || peer->is_breaking) {
    over_.push_back({absl::UnavailableError("the peer is gone"), 0, nullptr, std::move(done)});
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
  moving.reply_done = std::move(done);
  moving_.push_back(std::move(moving));
}

void LocalLane::Break(PeerId id) {
  if (Peer* peer = Find(id); peer != nullptr && !peer->is_breaking) {
    share_.metrics.peers_broken.Add();
    BreakPeer(*peer, absl::UnavailableError("the session is over"));
  }
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
  absl::Status status = SendPacket(peer.socket.get(), Serialize(envelope, moving.frame).bytes());
  if (status.ok()) {
    share_.metrics.sent_bytes.Add(moving.bytes);
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
  over_.push_back({std::move(status), moving.crc32c, std::move(moving.receive_done),
                   std::move(moving.reply_done)});
  if (index + 1 != moving_.size()) {
    moving = std::move(moving_.back());
  }
  moving_.pop_back();
}

int LocalLane::ExpireDeadlines(absl::Time now) {
  int expired = 0;
  for (Moving& moving : moving_) {
    Peer* peer = Find(moving.peer);
    if (moving.deadline <= now && !peer->is_breaking) {
      share_.metrics.deadlines_exceeded.Add();
      share_.metrics.peers_broken.Add();
      BreakPeer(*peer, absl::UnavailableError("another transfer of the peer was not over in time"));
      ++expired;
    }
  }
  while (!greeting_.empty() && greeting_.front().first <= now) {
    Peer* peer = Find(greeting_.front().second);
    greeting_.pop_front();
    if (peer != nullptr && !peer->is_open && !peer->is_breaking) {
      share_.metrics.peers_refused.Add();
      BreakPeer(*peer, absl::UnavailableError("no hello came"));
      ++expired;
    }
  }
  return expired;
}

// --- ends --------------------------------------------------------------------------------------

void LocalLane::BreakPeer(Peer& peer, absl::Status end) {
  if (!peer.is_breaking) {
    peer.is_breaking = true;
    peer.end = std::move(end);
    broken_.push_back(peer.id);
  }
}

int LocalLane::CloseBroken() {
  const std::vector<PeerId> broken = std::exchange(broken_, {});
  const absl::Time now = MonotonicNow();
  for (const PeerId id : broken) {
    const auto found = peers_.find(id);
    CAIRN_CHECK(found != peers_.end());
    const bool was_open = found->second->is_open;
    for (size_t i = moving_.size();
         i-- > 0;) {  // downwards: FinishMoving() fills the gap from the end
      if (moving_[i].peer == id) {
        FinishMoving(i, moving_[i].deadline <= now
                            ? absl::DeadlineExceededError("the transfer was not over in time")
                            : found->second->end);
      }
    }
    peers_.erase(found);  // closes the socket, unmaps the region
    share_.peers.fetch_sub(1);
    share_.metrics.peers.Add(-1);
    share_.metrics.regions_bytes.Set(static_cast<int64_t>(share_.regions.used_bytes()));
    if (was_open) {
      share_.handler.OnPeerGone(*this, id);
    }
  }
  return static_cast<int>(broken.size());
}

int LocalLane::RunCallbacks() {
  std::vector<Over> over = std::exchange(over_, {});
  for (Over& transfer : over) {
    if (transfer.receive_done) {
      transfer.receive_done({std::move(transfer.status), transfer.crc32c});
    } else {
      transfer.reply_done(std::move(transfer.status));
    }
  }
  return static_cast<int>(over.size());
}

void LocalLane::EndAll() {
  // Ends: the queue is closed and no peer is left to bring anything new; callbacks may still reply,
  // which completes at once with Unavailable.
  do {
    queue_.RunAll(*this);
    for (const auto& [id, peer] : peers_) {
      BreakPeer(*peer, absl::UnavailableError("the daemon is stopping"));
    }
    CloseBroken();
  } while (RunCallbacks() > 0 || !peers_.empty() || !queue_.IsEmpty());
}

LocalLane::Peer* LocalLane::Find(PeerId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

}  // namespace cairn::transport
