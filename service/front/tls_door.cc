// SPDX-License-Identifier: Apache-2.0
#include "service/front/tls_door.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/newcomers.h"
#include "base/random_bytes.h"
#include "transport/local/socket.h"

namespace cairn {
namespace {

using transport::TlsStep;

constexpr size_t kStepBytes = size_t{64} << 10;
constexpr int kStepsPerTurn = 4;  // per direction: 256 KiB
constexpr absl::Duration kSweepTime = absl::Seconds(1);
constexpr absl::Duration kFlushTime = absl::Seconds(5);  // to send gRPC's last bytes
// Connection N, from 1, has the tags 2 N and 2 N + 1 for its two sockets.
constexpr uint64_t kDoorWakeTag = 0;
// The minimum age at which connections end. The end is spread up to a day, so that they do not all
// reconnect at once.
constexpr absl::Duration kAgeMin = absl::Minutes(24 * 60 * 9 / 10);
constexpr int64_t kAgeSpreadMinutes = 24 * 60 / 5;

absl::Time AgeLimit() {
  const auto random = RandomBytes<1>();
  const int64_t part = static_cast<int64_t>(random[0]) * kAgeSpreadMinutes / 256;
  return MonotonicNow() + kAgeMin + absl::Minutes(part);
}

void Consume(std::vector<std::byte>& queue, size_t bytes) {
  queue.erase(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(bytes));
  if (queue.empty()) queue.shrink_to_fit();
}

}  // namespace

void TlsDoor::Listen(Fd socket, bool is_admin, Take take) {
  doors_.push_back(handshakes_.Listen(
      std::move(socket), {.name = is_admin ? "admin" : "control",
                          .alpn = std::string(kControlAlpn),
                          .done = [this, take = std::move(take)](transport::TlsArrival arrival) {
                            Add(std::move(arrival), take);
                          }}));
}

void TlsDoor::Start() {
  epoll_.Reset(::epoll_create1(EPOLL_CLOEXEC));
  wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  CAIRN_CHECK(epoll_.is_valid() && wake_.is_valid());
  scratch_.resize(kStepBytes);
  thread_ = std::thread([this] { Run(); });
}

void TlsDoor::Close() {
  for (const int door : std::exchange(doors_, {})) handshakes_.Close(door);
}

void TlsDoor::Stop() {
  Close();
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  Wake();
  thread_.join();
}

void TlsDoor::EndRevoked() {
  {
    const MutexLock lock(mutex_);
    ends_revoked_ = true;
  }
  Wake();
}

void TlsDoor::Wake() {
  const uint64_t one = 1;
  CAIRN_CHECK(::write(wake_.get(), &one, sizeof one) == sizeof one);
}

// Runs on the thread of the handshakes.
void TlsDoor::Add(transport::TlsArrival arrival, const Take& take) {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    return out_of_files_.Add();
  }
  Fd plain(ends[1]);
  PeerIdentity identity(arrival.session->peer());
  const uint64_t party = PartyOf(arrival.socket.get());
  LogDebug("control", "TLS connection",
           {{"peer", identity.ToString()}, {"certificate", arrival.session->peer_certificate()}});
  Connection connection;
  connection.arrival = std::move(arrival);
  connection.plain.Reset(ends[0]);
  connection.until = AgeLimit();
  {
    const MutexLock lock(mutex_);
    arrived_.emplace(++last_id_, std::move(connection));
  }
  opened_.Add();
  Wake();
  take(std::move(plain), std::move(identity), party);
}

bool TlsDoor::TakeNews(std::vector<uint64_t>* due) {
  uint64_t calls = 0;
  [[maybe_unused]] const ssize_t bytes = ::read(wake_.get(), &calls, sizeof calls);
  std::map<uint64_t, Connection> arrived;
  bool ends_revoked = false;
  {
    const MutexLock lock(mutex_);
    if (is_stopping_) return false;
    arrived.swap(arrived_);
    ends_revoked = std::exchange(ends_revoked_, false);
  }
  for (auto& [id, connection] : arrived) {
    WatchSocket(epoll_.get(), connection.arrival.socket.get(), 2 * id, 0);
    WatchSocket(epoll_.get(), connection.plain.get(), 2 * id + 1, 0);
    connections_.emplace(id, std::move(connection));
    due->push_back(id);
  }
  if (!ends_revoked) return true;
  const transport::TlsContext context = handshakes_.files().context();
  std::erase_if(connections_, [&](const auto& entry) {
    const transport::TlsSession& session = *entry.second.arrival.session;
    if (!session.IsPeerRevoked(context)) return false;
    revoked_.Add();
    LogWarn("control", "TLS connection ended: the certificate was revoked",
            {{"peer", PeerIdentity(session.peer()).ToString()}});
    return true;
  });
  return true;
}

void TlsDoor::Run() {
  ::pthread_setname_np(::pthread_self(), "control-tls");
  WatchSocket(epoll_.get(), wake_.get(), kDoorWakeTag, EPOLLIN);
  std::vector<uint64_t> due;
  absl::Time next_sweep = MonotonicNow() + kSweepTime;
  while (true) {  // until Stop() wakes it
    std::array<epoll_event, 64> events;
    const int wait_ms = due.empty() ? static_cast<int>(absl::ToInt64Milliseconds(kSweepTime)) : 0;
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms);
    CAIRN_CHECK(count >= 0 || errno == EINTR);
    for (int i = 0; i < count; ++i) {
      const uint64_t tag = events[static_cast<size_t>(i)].data.u64;
      if (tag != kDoorWakeTag) due.push_back(tag / 2);
    }
    if (!TakeNews(&due)) break;
    if (const absl::Time now = MonotonicNow(); now >= next_sweep) {  // some may be too old
      for (const auto& [id, connection] : connections_) due.push_back(id);
      next_sweep = now + kSweepTime;
    }
    std::ranges::sort(due);
    due.erase(std::unique(due.begin(), due.end()), due.end());
    std::vector<uint64_t> again;
    for (const uint64_t id : due) {
      const auto found = connections_.find(id);
      if (found == connections_.end()) continue;
      bool is_busy = false;
      if (!Pump(found->second, &is_busy)) {
        connections_.erase(found);
        continue;
      }
      if (is_busy) again.push_back(id);
      Watch(id, found->second);
    }
    due.swap(again);
    open_.store(static_cast<int64_t>(connections_.size()), std::memory_order_relaxed);
  }
  connections_.clear();
  const MutexLock lock(mutex_);
  arrived_.clear();
}

void TlsDoor::MoveToPlain(Connection& connection, bool* has_moved) {
  if (connection.to_plain.empty() && !connection.is_peer_gone) {
    const transport::TlsSession::Moved moved = connection.arrival.session->Read(scratch_);
    connection.reading_wants_write = moved.step == TlsStep::kWantsWrite;
    if (moved.step == TlsStep::kDone) {
      connection.to_plain.assign(scratch_.begin(),
                                 scratch_.begin() + static_cast<ptrdiff_t>(moved.bytes));
      *has_moved = true;
    } else if (moved.step == TlsStep::kClosed || moved.step == TlsStep::kFailed) {
      connection.is_peer_gone = true;
    }
  }
  if (connection.to_plain.empty()) return;
  const ssize_t sent = ::send(connection.plain.get(), connection.to_plain.data(),
                              connection.to_plain.size(), MSG_NOSIGNAL);
  if (sent > 0) {
    Consume(connection.to_plain, static_cast<size_t>(sent));
    *has_moved = true;
  } else if (errno != EAGAIN && errno != EINTR) {
    connection.is_grpc_gone = true;
  }
}

void TlsDoor::MoveToPeer(Connection& connection, bool* has_moved) {
  if (connection.to_peer.empty() && !connection.is_grpc_gone) {
    const ssize_t got = ::recv(connection.plain.get(), scratch_.data(), scratch_.size(), 0);
    if (got > 0) {
      connection.to_peer.assign(scratch_.begin(), scratch_.begin() + static_cast<ptrdiff_t>(got));
      *has_moved = true;
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      connection.is_grpc_gone = true;
      connection.until = std::min(connection.until, MonotonicNow() + kFlushTime);
    }
  }
  if (connection.to_peer.empty()) return;
  const transport::TlsSession::Moved moved = connection.arrival.session->Write(connection.to_peer);
  if (moved.step == TlsStep::kDone) {
    Consume(connection.to_peer, moved.bytes);
    *has_moved = true;
  } else if (moved.step == TlsStep::kClosed || moved.step == TlsStep::kFailed) {
    connection.is_peer_gone = true;
  }
}

bool TlsDoor::Pump(Connection& connection, bool* is_busy) {
  if (MonotonicNow() >= connection.until) {
    aged_.Add();
    connection.arrival.session->Close();
    return false;
  }
  bool has_moved = true;
  for (int step = 0; step < kStepsPerTurn && has_moved; ++step) {
    has_moved = false;
    MoveToPlain(connection, &has_moved);
    MoveToPeer(connection, &has_moved);
  }
  *is_busy = has_moved;
  if (connection.is_peer_gone && connection.to_plain.empty()) return false;
  if (!connection.is_grpc_gone) return true;
  if (!connection.to_peer.empty() && !connection.is_peer_gone) return true;
  connection.arrival.session->Close();
  return false;
}

void TlsDoor::Watch(uint64_t id, const Connection& connection) {
  uint32_t net = 0, plain = 0;
  if (connection.to_plain.empty() && !connection.is_peer_gone) net |= EPOLLIN;
  if (!connection.to_peer.empty() || connection.reading_wants_write) net |= EPOLLOUT;
  if (connection.to_peer.empty() && !connection.is_grpc_gone) plain |= EPOLLIN;
  if (!connection.to_plain.empty()) plain |= EPOLLOUT;
  const auto watch = [this](int socket, uint64_t tag, uint32_t events, bool is_gone) {
    // epoll reports the end of a socket forever, so remove the socket once its end is known.
    if (is_gone) {
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr);
    } else {
      WatchSocket(epoll_.get(), socket, tag, events);
    }
  };
  watch(connection.arrival.socket.get(), 2 * id, net, connection.is_peer_gone);
  watch(connection.plain.get(), 2 * id + 1, plain, connection.is_grpc_gone);
}

void TlsDoor::Report(MetricSink& sink) const {
  sink.AddGauge("cairn_tls_control_connections", "Open TLS connections of the control plane.", {},
                static_cast<double>(open_.load(std::memory_order_relaxed)));
  constexpr std::string_view kName = "cairn_tls_control_ended_total";
  constexpr std::string_view kHelp =
      "TLS connections of the control plane that the daemon ended: their certificate was revoked; "
      "a day after their handshake; out of descriptors.";
  const auto add = [&](std::string_view reason, const Counter& counter) {
    const MetricLabel label{"reason", reason};
    sink.AddCounter(kName, kHelp, MetricLabels(&label, 1), counter.Value());
  };
  add("revoked", revoked_);
  add("aged", aged_);
  add("out_of_files", out_of_files_);
  sink.AddCounter("cairn_tls_control_opened_total", "TLS connections of the control plane.", {},
                  opened_.Value());
}

}  // namespace cairn
