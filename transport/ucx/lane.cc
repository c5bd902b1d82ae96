// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/lane.h"

#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace cairn::transport {
namespace {

constexpr size_t kTasksMax = 4096;
constexpr size_t kConnectionsMax = 256;
constexpr absl::Duration kSleepMax = absl::Seconds(1);
constexpr absl::Duration kFinishWithin = absl::Seconds(2);
constexpr absl::Duration kDrainWithin = absl::Milliseconds(500);  // of what moves when a lane ends

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
  // Ends when Finish() says so. acquire: pairs with the store there.
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

// One turn of everything that can be due; how much of it there was.
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
    // Rounded up, so that a deadline is not spun for.
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
  // What moves may end first: a payload that is cut off can end its sender, by an assertion of UCX
  // 1.13 (docs/internals/transport-ucx.md).
  is_draining_ = true;
  const absl::Time deadline = MonotonicNow() + kFinishWithin;
  const absl::Time drained_by = MonotonicNow() + kDrainWithin;
  while (!moving_.empty() && MonotonicNow() < drained_by) {
    Turn(MonotonicNow());
  }
  for (const auto& [id, peer] : peers_) {
    Condemn(*peer, absl::UnavailableError("the daemon is stopping"));
  }
  // Ends at the deadline at the latest: AbandonWorker() completes what is left.
  while (!peers_.empty() && MonotonicNow() < deadline) {
    Turn(MonotonicNow());
  }
  AbandonWorker();
  while (static_cast<size_t>(submitted_.RunAll(*this)) + RunFinished() > 0) {
  }
}

}  // namespace cairn::transport
