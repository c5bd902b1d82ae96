// SPDX-License-Identifier: Apache-2.0
#include "transport/tls/handshakes.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "transport/address.h"

namespace cairn::transport {
namespace {

constexpr uint64_t kWakeTag = 0;
constexpr uint64_t kListenerBit = uint64_t{1} << 63;
constexpr int kAcceptsPerTurn = 64;
constexpr double kBurst = 64;
constexpr absl::Duration kNoDescriptorWait = absl::Milliseconds(100);

std::string PeerText(int socket) {
  SocketAddress address;
  address.bytes = sizeof address.storage;
  const bool is_known =
      ::getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) == 0 &&
      (address.family() == AF_INET || address.family() == AF_INET6);
  return is_known ? AddressText(address) : std::string("unknown");
}

}  // namespace

Handshakes::Handshakes(TlsFiles& files, const HandshakeLimits& limits)
    : files_(files),
      limits_(limits),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      newcomers_(static_cast<size_t>(limits.waiting_max)) {
  CAIRN_CHECK(epoll_.is_valid() && wake_.is_valid(), "no file descriptor left for the handshakes");
  WatchSocket(epoll_.get(), wake_.get(), kWakeTag, EPOLLIN);
}

Handshakes::~Handshakes() { Stop(); }

void Handshakes::Start() {
  {
    const MutexLock lock(mutex_);
    is_running_ = true;
  }
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "cairn-tls");
}

void Handshakes::Stop() {
  if (!thread_.joinable()) return;
  is_stopping_.store(true, std::memory_order_relaxed);
  Wake();
  thread_.join();
}

void Handshakes::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

void Handshakes::Push(Order order) {
  {
    const MutexLock lock(mutex_);
    orders_.push_back(std::move(order));
  }
  Wake();
}

void Handshakes::RunOrders() {
  std::vector<Order> orders;
  {
    const MutexLock lock(mutex_);
    orders.swap(orders_);
  }
  for (Order& order : orders) order();
}

int Handshakes::Listen(Fd socket, Door door) {
  int number = 0;
  DoorMetrics* metrics = nullptr;
  {
    const MutexLock lock(mutex_);
    number = ++doors_made_;
    metrics_.push_back(std::make_unique<DoorMetrics>());
    metrics = metrics_.back().get();
    metrics->name = door.name;
  }
  Push([this, number, metrics, socket = std::move(socket), door = std::move(door)]() mutable {
    if (socket.is_valid()) {
      WatchSocket(epoll_.get(), socket.get(), kListenerBit | static_cast<uint64_t>(number),
                  EPOLLIN);
    }
    listeners_.emplace(
        number, Listener{.socket = std::move(socket), .door = std::move(door), .metrics = metrics});
  });
  return number;
}

void Handshakes::Take(int door, Fd socket) {
  Push([this, door, socket = std::move(socket)]() mutable {
    if (listeners_.contains(door)) Add(door, std::move(socket));
  });
}

void Handshakes::Close(int door) {
  bool is_closed = false;  // guarded by mutex_
  Push([this, door, &is_closed] {
    std::vector<uint64_t> ids;
    for (const auto& [id, peer] : peers_) {
      if (peer.door == door) ids.push_back(id);
    }
    for (const uint64_t id : ids) Forget(id);
    listeners_.erase(door);
    const MutexLock lock(mutex_);
    is_closed = true;
    closed_.NotifyAll();
  });
  const MutexLock lock(mutex_);
  // Ends: the thread runs all orders before it ends.
  while (is_running_ && !is_closed) {
    closed_.WaitUntil(mutex_, MonotonicNow() + absl::Seconds(1));
  }
  if (!is_closed) orders_.clear();  // there is no thread, and `is_closed` goes out of scope
}

void Handshakes::Run() {
  std::array<epoll_event, 64> events;
  while (!is_stopping_.load(std::memory_order_relaxed)) {  // ends: Stop() says so
    const absl::Duration sleep = SleepFor(MonotonicNow());
    const int count =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                   static_cast<int>(absl::ToInt64Milliseconds(sleep + absl::Microseconds(999))));
    files_.Look();
    for (int i = 0; i < count; ++i) {
      const uint64_t tag = events[static_cast<size_t>(i)].data.u64;
      if (tag == kWakeTag) {
        uint64_t ignored = 0;
        [[maybe_unused]] const ssize_t bytes = read(wake_.get(), &ignored, sizeof ignored);
      } else if ((tag & kListenerBit) != 0) {
        Accept(static_cast<int>(tag & ~kListenerBit));
      } else {
        GoOn(tag);
      }
    }
    RunOrders();
    const absl::Time now = MonotonicNow();
    ExpireAll(now);
    BeginWaiting(now);
  }
  while (!peers_.empty()) Forget(peers_.begin()->first);
  listeners_.clear();
  RunOrders();
  {
    const MutexLock lock(mutex_);
    is_running_ = false;
  }
  closed_.NotifyAll();
}

absl::Duration Handshakes::SleepFor(absl::Time now) {
  absl::Duration sleep = kTlsLookInterval;
  bool is_waiting = false;
  for (const auto& [id, peer] : peers_) {
    const absl::Time end =
        peer.stage == Stage::kLingering ? peer.until : peer.accepted + limits_.time_max;
    sleep = std::min(sleep, end - now);
    is_waiting = is_waiting || peer.stage == Stage::kWaiting;
  }
  if (is_waiting) sleep = std::min(sleep, absl::Milliseconds(20));
  if (accepts_again_ > now) sleep = std::min(sleep, accepts_again_ - now);
  return std::max(sleep, absl::ZeroDuration());
}

void Handshakes::Accept(int door) {
  const auto found = listeners_.find(door);
  if (found == listeners_.end()) return;
  Listener& listener = found->second;
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Fd socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_valid()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        LogWarn("tls", "a connection could not be accepted",
                {{"door", listener.door.name}, {"errno", errno}});
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener.socket.get(), nullptr);
        listener.is_paused = true;
        accepts_again_ = MonotonicNow() + kNoDescriptorWait;
      }
      return;
    }
    Add(door, std::move(socket));
  }
}

void Handshakes::Add(int door, Fd socket) {
  const int on = 1;
  // Fails for sockets other than TCP.
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  Peer peer;
  peer.id = ++peers_made_;
  peer.door = door;
  peer.party = PartyOf(socket.get());
  peer.accepted = MonotonicNow();
  peer.arrival.socket = std::move(socket);
  const uint64_t id = peer.id, party = peer.party;
  peers_.emplace(id, std::move(peer));
  if (const std::optional<uint64_t> oldest = newcomers_.Add(id, party)) {
    Peer& closed = peers_.at(*oldest);
    Refuse(closed, TlsRefusal::kOverBudget, absl::ResourceExhaustedError("too many connections"));
    Forget(*oldest);
  }
}

int Handshakes::RunningOf(uint64_t party) const {
  const auto found = running_of_.find(party);
  return found == running_of_.end() ? 0 : found->second;
}

// Begins waiting connections, within the limits in total and per party. Those of parties with few
// handshakes go first, so that many slow ones do not keep a newcomer waiting; then the oldest.
void Handshakes::BeginWaiting(absl::Time now) {
  if (counted_ == absl::InfinitePast()) may_begin_ = kBurst;
  if (counted_ < now) {
    const double passed =
        counted_ == absl::InfinitePast() ? 0 : absl::ToDoubleSeconds(now - counted_);
    may_begin_ = std::min(kBurst, may_begin_ + passed * limits_.per_second_max);
    counted_ = now;
  }
  std::vector<uint64_t> waiting;
  for (const auto& [id, peer] : peers_) {
    if (peer.stage == Stage::kWaiting) waiting.push_back(id);
  }
  std::ranges::stable_sort(waiting, {},
                           [&](uint64_t id) { return RunningOf(peers_.at(id).party); });
  for (const uint64_t id : waiting) {
    if (may_begin_ < 1) return;
    const auto found = peers_.find(id);
    if (found == peers_.end()) continue;
    const uint64_t party = found->second.party;
    if (RunningOf(party) >= limits_.running_per_party_max && !MakeRoom(party, true, now)) continue;
    if (running_ >= limits_.running_max && !MakeRoom(party, false, now)) continue;
    may_begin_ -= 1;
    Begin(found->second);
  }
}

// Ends the oldest running peer that is silent or lingers; if there is none, the oldest slow one.
// `of_party`: considers only peers of the party.
bool Handshakes::MakeRoom(uint64_t party, bool of_party, absl::Time now) {
  Peer* slow = nullptr;
  for (auto& [id, peer] : peers_) {
    if (peer.stage == Stage::kWaiting || (of_party && peer.party != party)) continue;
    const bool is_running = peer.stage == Stage::kRunning;
    const bool is_silent = is_running && peer.arrival.session->channel_bytes_read() == 0 &&
                           now - peer.accepted >= limits_.silence_max;
    const bool is_slow = is_running && now - peer.begun >= limits_.slow_max;
    if (is_slow && (slow == nullptr || peer.begun < slow->begun)) slow = &peer;
    if (!is_silent && peer.stage != Stage::kLingering) continue;
    if (is_silent) {
      Refuse(peer, TlsRefusal::kOverBudget,
             absl::ResourceExhaustedError("it was silent, and others waited"));
    }
    Forget(id);
    return true;
  }
  if (slow == nullptr) return false;
  Refuse(*slow, TlsRefusal::kOverBudget,
         absl::ResourceExhaustedError("it was slow, and others waited"));
  Forget(slow->id);
  return true;
}

void Handshakes::Begin(Peer& peer) {
  newcomers_.Remove(peer.id);
  peer.stage = Stage::kRunning;
  peer.begun = MonotonicNow();
  running_count_.Set(++running_);
  ++running_of_[peer.party];
  peer.arrival.channel = std::make_unique<SocketChannel>(peer.arrival.socket.get());
  peer.arrival.session = std::make_unique<TlsSession>(
      files_.context(), TlsRole::kServer,
      TlsSessionOptions{.alpn = listeners_.at(peer.door).door.alpn}, *peer.arrival.channel);
  WatchSocket(epoll_.get(), peer.arrival.socket.get(), peer.id, EPOLLIN);
  GoOn(peer.id);
}

void Handshakes::GoOn(uint64_t id) {
  const auto found = peers_.find(id);
  if (found == peers_.end() || found->second.stage == Stage::kWaiting) return;
  Peer& peer = found->second;
  if (peer.stage == Stage::kLingering) {
    std::array<char, 4096> ignored;
    const ssize_t bytes =
        ::recv(peer.arrival.socket.get(), ignored.data(), ignored.size(), MSG_DONTWAIT);
    if (bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR)) Forget(id);
    return;
  }
  const TlsStep step = peer.arrival.session->Handshake();
  if (step == TlsStep::kDone) {
    Listener& listener = listeners_.at(peer.door);
    listener.metrics->completed.Add();
    TlsArrival arrival = std::move(peer.arrival);
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, arrival.socket.get(), nullptr);
    Forget(id);
    listener.door.done(std::move(arrival));
    return;
  }
  if (step == TlsStep::kFailed || step == TlsStep::kClosed) {
    const bool has_spoken = peer.arrival.session->channel_bytes_read() > 0;
    const absl::Status why = step == TlsStep::kClosed
                                 ? absl::UnavailableError("the peer closed it during the handshake")
                                 : peer.arrival.session->failure();
    Refuse(peer, step == TlsStep::kClosed ? TlsRefusal::kClosed : peer.arrival.session->refusal(),
           why);
    if (!has_spoken || peer.arrival.session->refusal() == TlsRefusal::kClosed) return Forget(id);
    // Closing a socket with unread bytes would send a reset, and the peer would lose the alert.
    ::shutdown(peer.arrival.socket.get(), SHUT_WR);
    peer.stage = Stage::kLingering;
    peer.until = MonotonicNow() + limits_.linger_max;
    WatchSocket(epoll_.get(), peer.arrival.socket.get(), id, EPOLLIN);
    return;
  }
  if (peer.arrival.session->channel_bytes_read() > limits_.read_bytes_max) {
    Refuse(peer, TlsRefusal::kOverBudget,
           absl::ResourceExhaustedError(
               absl::StrCat("a handshake of more than ", limits_.read_bytes_max, " bytes")));
    return Forget(id);
  }
  WatchSocket(epoll_.get(), peer.arrival.socket.get(), id,
              step == TlsStep::kWantsWrite ? EPOLLOUT : EPOLLIN);
}

void Handshakes::Refuse(Peer& peer, TlsRefusal refusal, const absl::Status& why) {
  const Listener& listener = listeners_.at(peer.door);
  listener.metrics->refused[static_cast<size_t>(refusal)].Add();
  // Scans and probes close the connection without sending anything. They are counted, not logged.
  if (refusal == TlsRefusal::kClosed) return;
  const Refused refused{.door = listener.door.name,
                        .address = PeerText(peer.arrival.socket.get()),
                        .certificate = peer.arrival.session == nullptr
                                           ? std::string()
                                           : peer.arrival.session->peer_certificate(),
                        .why = std::string(why.message()),
                        .reason = Name(refusal)};
  LogWarn(listener.door.name, "handshake refused",
          {{"reason", refused.reason},
           {"peer", refused.address},
           {"certificate", refused.certificate},
           {"why", refused.why}});
  if (note_refused_ != nullptr) note_refused_(refused);
}

void Handshakes::Forget(uint64_t id) {
  const auto found = peers_.find(id);
  if (found->second.stage == Stage::kWaiting) {
    newcomers_.Remove(id);
  } else {
    running_count_.Set(--running_);
    const auto party = running_of_.find(found->second.party);
    if (--party->second == 0) running_of_.erase(party);
  }
  peers_.erase(found);
}

void Handshakes::ExpireAll(absl::Time now) {
  std::vector<uint64_t> ids;
  for (auto& [id, peer] : peers_) {
    if (peer.stage == Stage::kLingering) {
      if (peer.until <= now) ids.push_back(id);
    } else if (peer.accepted + limits_.time_max <= now) {
      Refuse(peer, TlsRefusal::kLate,
             absl::DeadlineExceededError(
                 absl::StrCat("no handshake within ", absl::FormatDuration(limits_.time_max))));
      ids.push_back(id);
    }
  }
  for (const uint64_t id : ids) Forget(id);
  if (accepts_again_ > now) return;
  for (auto& [number, listener] : listeners_) {
    if (!std::exchange(listener.is_paused, false)) continue;
    WatchSocket(epoll_.get(), listener.socket.get(), kListenerBit | static_cast<uint64_t>(number),
                EPOLLIN);
  }
}

void Handshakes::Report(MetricSink& sink) const {
  {
    const MutexLock lock(mutex_);
    for (const auto& metrics : metrics_) {
      const auto report = [&](std::string_view outcome, const Counter& count) {
        const MetricLabel labels[] = {{"door", metrics->name}, {"outcome", outcome}};
        sink.AddCounter("cairn_tls_handshakes_total", "TLS handshakes that ended, by outcome.",
                        labels, count.Value());
      };
      report("completed", metrics->completed);
      for (size_t i = 1; i < kTlsRefusalCount; ++i) {
        report(Name(static_cast<TlsRefusal>(i)), metrics->refused[i]);
      }
    }
    sink.AddGauge("cairn_tls_handshakes_running", "TLS handshakes under way.", {},
                  static_cast<double>(running_count_.Value()));
  }
}

}  // namespace cairn::transport
