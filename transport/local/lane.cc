// SPDX-License-Identifier: Apache-2.0
// The loop of a lane and the ends of its peers.
//
// - What arrives, peers and requests, is in lane_arrivals.cc.
// - What moves, Receive() and Reply(), is in lane_transfers.cc.
// - What is lent is in lane_loans.cc.
#include "transport/local/lane.h"

#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/epoll.h"
#include "base/log.h"
#include "transport/local/lane_internal.h"
#include "transport/local/packet.h"

namespace cairn::transport {
namespace {

constexpr int kSleepMs = 1000;  // nothing moves meanwhile, so transfers have no say in this
constexpr int kLendingSleepMs = 20;

}  // namespace

LocalLane::LocalLane(int index, LaneShare& share)
    : index_(index), share_(share), queue_(kTasksMax), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  CAIRN_CHECK(index >= 0 && index < kLanesMax);
  CAIRN_CHECK(epoll_.is_valid(), "no file descriptor left for a lane");
  WatchSocket(epoll_.get(), queue_.event_fd(), kSubmitTag, EPOLLIN);
  FillWords();
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

absl::Status LocalLane::Submit(absl::AnyInvocable<void(Lane&)> task) {
  return queue_.Push(std::move(task));
}

void LocalLane::Run() {
  absl::Time idle_since = MonotonicNow();
  while (!is_stopping_.load(std::memory_order_relaxed)) {
    if (Turn(0) > 0) {
      idle_since = MonotonicNow();
    } else if (MonotonicNow() - idle_since >= kSpin && queue_.PrepareSleep()) {
      Turn(lent_count_ == 0 ? kSleepMs : kLendingSleepMs);
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
  events += LookAfterAllLoans(now);
  events += CloseBroken();
  events += RunCallbacks();
  return events;
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
    if (Peer* peer = Find(tag); peer != nullptr && !peer->is_breaking) {
      ReadPeer(*peer);
    }
  }
  return served;
}

// --- ends --------------------------------------------------------------------------------------

void LocalLane::Break(PeerId id) {
  if (Peer* peer = Find(id); peer != nullptr && !peer->is_breaking) {
    share_.metrics.peers_broken.Add();
    BreakPeer(*peer, absl::UnavailableError("the session is over"));
  }
}

void LocalLane::BreakPeer(Peer& peer, absl::Status end) {
  if (!peer.is_breaking) {
    peer.is_breaking = true;
    peer.end = std::move(end);
    broken_.push_back(peer.id);
  }
}

int LocalLane::ExpireDeadlines(absl::Time now) {
  int expired = 0;
  for (Moving& moving : moving_) {
    Peer* peer = Find(moving.peer);
    if (moving.deadline <= now && !peer->is_breaking) {
      share_.metrics.deadlines_exceeded.Add();
      share_.metrics.peers_broken.Add();
      BreakPeer(*peer,
                absl::UnavailableError("another transfer of the peer was not complete in time"));
      ++expired;
    }
  }
  return expired;
}

int LocalLane::CloseBroken() {
  const std::vector<PeerId> broken = std::exchange(broken_, {});
  const absl::Time now = MonotonicNow();
  for (const PeerId id : broken) {
    const auto found = peers_.find(id);
    CAIRN_CHECK(found != peers_.end());
    Peer& peer = *found->second;
    for (size_t i = moving_.size();
         i-- > 0;) {  // downwards: FinishMoving() fills the gap from the end
      if (moving_[i].peer == id) {
        FinishMoving(i, moving_[i].deadline <= now
                            ? absl::DeadlineExceededError("the transfer was not complete in time")
                            : peer.end);
      }
    }
    while (!peer.lent.empty()) {  // ends: takes one out
      EndLoan(peer, peer.lent.size() - 1, LoanEnd::kGone);
    }
    // A kernel that cannot refuse descriptors may have let some come since the hello.
    if (!peer.brought.empty() || !EndConnection(peer.socket.get())) {
      share_.jobs.Run(peer.party, [socket = std::move(peer.socket),
                                   brought = std::move(peer.brought)]() mutable {
        CloseSlowly(std::move(socket), std::move(brought));
      });
    }
    const std::optional<std::string> owner = std::move(peer.region_owner);
    const uint64_t region_bytes = peer.region.bytes();
    peers_.erase(found);  // closes the socket, unmaps the region
    if (owner.has_value()) {
      share_.handler.OnRegionGone(*owner, region_bytes);
    }
    share_.peers.fetch_sub(1);
    share_.metrics.peers.Add(-1);
    share_.handler.OnPeerGone(*this, id);
  }
  return static_cast<int>(broken.size());
}

int LocalLane::RunCallbacks() {
  std::vector<CompletedTransfer> completed = std::exchange(completed_, {});
  for (CompletedTransfer& transfer : completed) {
    if (transfer.receive_done) {
      transfer.receive_done({std::move(transfer.status), transfer.crc32c});
    } else if (transfer.reply_done) {
      transfer.reply_done(std::move(transfer.status));
    } else {
      transfer.loan_done(transfer.loan_end);
    }
  }
  return static_cast<int>(completed.size());
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
