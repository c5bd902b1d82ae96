// SPDX-License-Identifier: Apache-2.0
#include "transport/local/greeter.h"

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/local/socket.h"

namespace cairn::transport {
namespace {

constexpr int kAcceptsPerTurn = 64;
// Limit for connections that cannot be closed yet. Above it, no more connections are accepted.
constexpr size_t kClosingMax = 256;
constexpr absl::Duration kPause = absl::Milliseconds(50);
// Tags of events. The ids of newcomers are larger.
constexpr uint64_t kWakeTag = 0;
constexpr uint64_t kFirstId = kListenerTag + Greeter::kListenersMax;

// Checks a hello and maps the memory that came with it. The lane answers the frame.
absl::StatusOr<Region> TakeHello(const proto::FrameBytes& bytes, std::vector<Fd>& fds,
                                 LaneShare& share) {
  CAIRN_ASSIGN_OR_RETURN(const proto::Frame frame, proto::ParseFrame(bytes.bytes()));
  const auto* hello = std::get_if<proto::Hello>(&frame.body);
  if (hello == nullptr) {
    return absl::InvalidArgumentError("the first frame of a connection is not a hello");
  }
  if (fds.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello: it came with ", fds.size(), " descriptors, expected 1"));
  }
  CAIRN_ASSIGN_OR_RETURN(Region region,
                         Region::Map(fds[0], share.limits.region_bytes_max, share.regions));
  if (region.bytes() != hello->region_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello.region_bytes is ", hello->region_bytes, ", expected ", region.bytes()));
  }
  return region;
}

PeerIdentity IdentityOf(int socket, const std::string& door) {
  PeerIdentity identity = PeerIdentityOf(socket);
  if (auto* user = std::get_if<UnixPeer>(&identity.peer)) user->door = door;
  return identity;
}

absl::StatusOr<Region> TakeHelloInProcess(const proto::FrameBytes& bytes,
                                          const std::vector<Fd>& fds, Region region) {
  CAIRN_ASSIGN_OR_RETURN(const proto::Frame frame, proto::ParseFrame(bytes.bytes()));
  if (!std::holds_alternative<proto::Hello>(frame.body)) {
    return absl::InvalidArgumentError("the first frame of a connection is not a hello");
  }
  if (!fds.empty()) {
    return absl::InvalidArgumentError("hello: unexpected descriptors");
  }
  return region;
}

}  // namespace

Greeter::Greeter(std::shared_ptr<LaneShare> share)
    : share_(std::move(share)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      ids_(kFirstId),
      newcomers_(kNewcomersMax) {
  CAIRN_CHECK(epoll_.is_valid() && wake_.is_valid(), "no file descriptor left for a greeter");
  WatchSocket(epoll_.get(), wake_.get(), kWakeTag, EPOLLIN);
}

void Greeter::Listen(int listener, std::string door) {
  CAIRN_CHECK(listeners_.size() < kListenersMax && !thread_.joinable());
  listeners_.push_back({listener, std::move(door)});
  is_listening_ = true;
  WatchListeners();
}

void Greeter::WatchListeners() {
  for (size_t i = 0; i < listeners_.size(); ++i) {
    WatchSocket(epoll_.get(), listeners_[i].socket, kListenerTag + i,
                is_listening_ ? uint32_t{EPOLLIN} : 0);
  }
}

void Greeter::Start() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "cairn-greet");
    Run();
  });
}

void Greeter::Stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  if (thread_.joinable()) {
    const uint64_t one = 1;
    CAIRN_CHECK(write(wake_.get(), &one, sizeof one) == sizeof one);
    thread_.join();
  }
}

void Greeter::ListenAgain() {
  const MutexLock lock(mutex_);
  is_unwatched_ = true;
  const uint64_t one = 1;
  CAIRN_CHECK(write(wake_.get(), &one, sizeof one) == sizeof one);
}

bool Greeter::Add(Fd socket, std::optional<Region> region) {
  const MutexLock lock(mutex_);
  if (is_stopping_) {
    return false;
  }
  Newcomer& added = added_.emplace_back();
  added.socket = std::move(socket);
  added.region = std::move(region);
  const uint64_t one = 1;
  CAIRN_CHECK(write(wake_.get(), &one, sizeof one) == sizeof one);
  return true;
}

void Greeter::Run() {
  while (true) {  // ends: Stop() wakes it
    epoll_event events[kEventsMax];
    const int count = epoll_wait(epoll_.get(), events, kEventsMax, WaitMs());
    CAIRN_CHECK(count >= 0 || errno == EINTR);
    // Read the counter before checking for calls. A call that comes later then wakes the next wait.
    uint64_t calls = 0;
    // The counter may be 0.
    [[maybe_unused]] const ssize_t bytes = read(wake_.get(), &calls, sizeof calls);
    {
      const MutexLock lock(mutex_);
      if (is_stopping_) {
        break;
      }
    }
    // Newcomers that have sent data go first, so that a newer one does not displace them.
    std::array<bool, kListenersMax> is_called{};
    for (int i = 0; i < count; ++i) {
      const uint64_t tag = events[i].data.u64;
      if (tag >= kFirstId) {
        Serve(tag);
      } else if (tag >= kListenerTag) {
        is_called[tag - kListenerTag] = true;
      }
    }
    TakeAdded();
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (is_called[i] && is_listening_) {
        AcceptAll(i);
      }
    }
    if (MonotonicNow() >= again_) {
      TryAgain();
    }
    ExpireLate();
  }
  TakeAdded();
  while (!waiting_.empty()) {  // ends: each turn takes one out
    auto node = waiting_.extract(waiting_.begin());
    Close(std::move(node.mapped()));
  }
  share_->metrics.newcomers.Set(0);
  for (Newcomer& newcomer : closing_) {
    share_->jobs.Run(newcomer.party, [socket = std::move(newcomer.socket)]() mutable {
      CloseSlowly(std::move(socket), {});
    });
  }
  closing_.clear();
}

int Greeter::WaitMs() const {
  absl::Time until = again_;
  if (!waiting_.empty()) {
    until = std::min(until, waiting_.begin()->second.deadline);
  }
  const absl::Duration wait = std::min(until - MonotonicNow(), absl::Seconds(60));
  return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(wait) + 1));
}

void Greeter::PauseListening() {
  is_listening_ = false;
  WatchListeners();
  again_ = std::min(again_, MonotonicNow() + kPause);
}

void Greeter::AcceptAll(size_t listener) {
  const Listener& from = listeners_[listener];
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    if (closing_.size() >= kClosingMax) {
      return PauseListening();
    }
    Newcomer newcomer;
    newcomer.socket.Reset(accept4(from.socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (newcomer.socket.is_valid()) {
      newcomer.door = from.door;
      // The first listener is our own socket.
      newcomer.party =
          from.door.empty() ? PartyOf(newcomer.socket.get()) : PartyOfDoor(listener - 1);
      Take(std::move(newcomer));
      continue;
    }
    switch (errno) {
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        // The connection stays in the backlog. Accepting again at once would only use CPU time.
        return PauseListening();
      case ECONNABORTED:
      case EINTR:
        break;  // this connection is gone; others may be waiting
      default:
        return;
    }
  }
}

void Greeter::TakeAdded() {
  std::vector<Newcomer> added;
  bool is_unwatched = false;
  {
    const MutexLock lock(mutex_);
    added.swap(added_);
    is_unwatched = std::exchange(is_unwatched_, false);
  }
  if (is_unwatched) {
    WatchListeners();
  }
  for (Newcomer& newcomer : added) {
    newcomer.party = PartyOf(newcomer.socket.get());
    Take(std::move(newcomer));
  }
}

void Greeter::Take(Newcomer newcomer) {
  const uint64_t id = ids_++;
  newcomer.deadline = MonotonicNow() + kHelloWait;
  share_->metrics.peers_opened.Add();
  const std::optional<uint64_t> goes = newcomers_.Add(id, newcomer.party);
  // One event: for a hello that has already arrived, or for the next data.
  WatchSocket(epoll_.get(), newcomer.socket.get(), id, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT);
  waiting_.emplace(id, std::move(newcomer));
  if (goes.has_value()) {
    // It may have sent data since the last check.
    pollfd polled{waiting_.at(*goes).socket.get(), POLLIN, 0};
    const bool has_spoken = poll(&polled, 1, 0) > 0;
    if (has_spoken && !HasJobsMax(waiting_.at(*goes).party)) {
      Serve(*goes);
    } else {
      PutOut(*goes, share_->metrics.newcomers_gave_way);
    }
  }
  share_->metrics.newcomers.Set(static_cast<int64_t>(waiting_.size()));
}

bool Greeter::HasJobsMax(uint64_t party) const {
  return share_->jobs.count(party) >= kJobsPerPartyMax;
}

void Greeter::Serve(uint64_t id) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) {
    return;
  }
  if (HasJobsMax(found->second.party)) {
    ready_.push_back(id);
    again_ = std::min(again_, MonotonicNow() + kPause);
    return;
  }
  newcomers_.Remove(id);
  auto node = waiting_.extract(found);
  share_->metrics.newcomers.Set(static_cast<int64_t>(waiting_.size()));
  Newcomer& newcomer = node.mapped();
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, newcomer.socket.get(), nullptr);
  const uint64_t party = newcomer.party;
  share_->jobs.Run(party, [share = share_, newcomer = std::move(newcomer)]() mutable {
    Greet(share, std::move(newcomer));
  });
}

void Greeter::ExpireLate() {
  const absl::Time now = MonotonicNow();
  while (!waiting_.empty() && waiting_.begin()->second.deadline <= now) {  // ends: takes one out
    PutOut(waiting_.begin()->first, share_->metrics.newcomers_late);
  }
}

void Greeter::TryAgain() {
  again_ = absl::InfiniteFuture();
  for (Newcomer& newcomer : std::exchange(closing_, {})) {
    Close(std::move(newcomer));
  }
  for (const uint64_t id : std::exchange(ready_, {})) {
    Serve(id);
  }
  if (!listeners_.empty() && !is_listening_) {
    is_listening_ = true;
    WatchListeners();
  }
}

void Greeter::PutOut(uint64_t id, Counter& reason) {
  newcomers_.Remove(id);
  auto node = waiting_.extract(id);
  share_->metrics.newcomers.Set(static_cast<int64_t>(waiting_.size()));
  share_->metrics.peers_refused.Add();
  reason.Add();
  Close(std::move(node.mapped()));
}

void Greeter::Close(Newcomer newcomer) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, newcomer.socket.get(), nullptr);
  if (EndConnection(newcomer.socket.get())) {
    return;  // closing it cannot block
  }
  if (HasJobsMax(newcomer.party)) {
    closing_.push_back(std::move(newcomer));
    again_ = std::min(again_, MonotonicNow() + kPause);
    return;
  }
  share_->jobs.Run(newcomer.party, [socket = std::move(newcomer.socket)]() mutable {
    CloseSlowly(std::move(socket), {});
  });
}

// Runs on a thread of BlockingJobs.
void Greeter::Greet(const std::shared_ptr<LaneShare>& share, Newcomer newcomer) {
  const int socket = newcomer.socket.get();
  Packet packet = ReceivePacket(socket);
  std::vector<Fd> fds = std::move(packet.fds);
  const auto refuse = [&](const absl::Status& why, Counter& reason) {
    LogDebug("transport", "connection is refused", {{"why", why}});
    share->metrics.peers_refused.Add();
    reason.Add();
    CloseSlowly(std::move(newcomer.socket), std::move(fds));
  };
  Counter& bad_hello = share->metrics.newcomers_bad_hello;
  if (packet.outcome != Packet::Outcome::kPacket) {
    return CloseSlowly(std::move(newcomer.socket), std::move(fds));  // the peer is gone
  }
  if (packet.is_cut) {
    return refuse(absl::InvalidArgumentError("message: too long"), bad_hello);
  }
  const absl::StatusOr<Message> message = ParseMessage(packet.bytes(), Direction::kRequest);
  if (!message.ok()) {
    return refuse(message.status(), bad_hello);
  }
  // The lane may have to close the socket, so no more descriptors may arrive: closing them could
  // block.
  RefuseDescriptors(socket);
  std::byte next;
  const ssize_t next_bytes = recv(socket, &next, sizeof next, MSG_PEEK | MSG_DONTWAIT);
  if (next_bytes == 0) {
    return CloseSlowly(std::move(newcomer.socket), std::move(fds));  // the peer is gone
  }
  if (next_bytes > 0) {
    return refuse(absl::InvalidArgumentError("message: more than a hello before the answer"),
                  bad_hello);
  }
  const bool is_memfd = !newcomer.region.has_value();
  absl::StatusOr<Region> region =
      newcomer.region.has_value()
          ? TakeHelloInProcess(message->frame, fds, *std::move(newcomer.region))
          : TakeHello(message->frame, fds, *share);
  absl::Status status = region.status();
  Counter* reason = &bad_hello;
  if (status.ok()) {
    fds.clear();  // the memfd is mapped, so closing it does not block
    Greeted greeted{.socket = std::move(newcomer.socket),
                    .identity = IdentityOf(socket, newcomer.door),
                    .party = newcomer.party,
                    .region = *std::move(region),
                    .is_memfd = is_memfd,
                    .hello = *message};
    status = share->Welcome(greeted);
    newcomer.socket = std::move(greeted.socket);
    reason = &share->metrics.newcomers_too_many;
  }
  if (status.ok()) {
    return;
  }
  // The error is sent before the socket closes, so that an honest client learns the reason.
  const proto::Frame error = proto::ErrorFrame(message->seq, {}, status);
  SendPacket(socket, Serialize({.direction = Direction::kReply}, proto::Serialize(error)).bytes())
      .IgnoreError();  // the socket is closed in any case
  refuse(status, *reason);
}

}  // namespace cairn::transport
