// SPDX-License-Identifier: Apache-2.0
#include "service/front/control_listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "service/limits.h"

namespace cairn {
namespace {

constexpr mode_t kModeOfAll = 0660, kModeOfOurs = 0600;
constexpr int kBackoffMs = 10;
constexpr int kAcceptedPerTurnMax = 64;
constexpr absl::Duration kSweepPause = absl::Milliseconds(100);
constexpr absl::Duration kProbeTime = absl::Milliseconds(500);
constexpr absl::Duration kProbeHolds = absl::Seconds(1);
// What a client of HTTP/2 begins with: the preface and an empty SETTINGS frame.
constexpr std::string_view kPreface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
constexpr size_t kFrameHeadBytes = 9;
constexpr char kSettings = 4;

// Whether `socket` has one of `events` before `deadline`.
bool Await(int socket, short events, absl::Time deadline) {
  pollfd polled{socket, events, 0};
  const int64_t wait_ms = absl::ToInt64Milliseconds(deadline - MonotonicNow());
  return ::poll(&polled, 1, static_cast<int>(std::max<int64_t>(wait_ms, 0))) > 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlListener>> ControlListener::Bind(
    const ControlAddress& control, const std::optional<ControlAddress>& admin) {
  auto listener = std::unique_ptr<ControlListener>(new ControlListener());
  const bool is_one = admin.has_value() && admin->ToString() == control.ToString();
  CAIRN_RETURN_IF_ERROR(
      Annotate(listener->Open(control, /*is_admin=*/is_one, kModeOfAll), "control"));
  if (admin.has_value() && !is_one) {
    CAIRN_RETURN_IF_ERROR(
        Annotate(listener->Open(*admin, /*is_admin=*/true, kModeOfOurs), "admin"));
  }
  listener->wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener->wake_.is_valid()) return absl::UnavailableError("no eventfd");
  return listener;
}

absl::Status ControlListener::Open(const ControlAddress& address, bool is_admin, mode_t mode) {
  Door& door = doors_.emplace_back();
  door.address = address;
  door.is_admin = is_admin;
  if (address.is_unix()) {
    CAIRN_ASSIGN_OR_RETURN(transport::SocketFile file,
                           transport::SocketFile::Listen(address.path, SOCK_STREAM, mode));
    door.file.emplace(std::move(file));
    door.acceptor.emplace(Acceptor::Borrow(door.file->get()));
  } else {
    CAIRN_ASSIGN_OR_RETURN(Acceptor acceptor, Acceptor::Listen(address.tcp));
    door.acceptor.emplace(std::move(acceptor));
    door.address.tcp.port = door.acceptor->port();
  }
  return absl::OkStatus();
}

void ControlListener::AddTo(Doors& doors) {
  for (Door& door : doors_) {
    if (!door.file.has_value()) continue;
    doors.Add(&door == &doors_.front() ? "control" : "admin",
              [this, &door]() -> absl::StatusOr<bool> {
                CAIRN_ASSIGN_OR_RETURN(const bool is_made_again, door.file->Keep());
                if (is_made_again) Wake();  // it polls the old one
                return is_made_again;
              });
  }
}

void ControlListener::Wake() const {
  const uint64_t one = 1;
  CAIRN_CHECK(::write(wake_.get(), &one, sizeof one) == sizeof one);
}

void ControlListener::Start(std::function<void(Fd socket)> take) {
  take_ = std::move(take);
  thread_ = std::thread([this] { Run(); });
}

void ControlListener::Stop() {
  if (!thread_.joinable()) return;
  is_stopping_.store(true);
  Wake();
  thread_.join();
  for (Door& door : doors_) {
    door.acceptor.reset();
    door.file.reset();
  }
}

void ControlListener::Run() {
  ::pthread_setname_np(::pthread_self(), "control");
  bool waits = false;
  while (true) {  // ends: Stop()
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
    for (const Door& door : doors_) {
      if (!waits) polled.push_back({door.acceptor->get(), POLLIN, 0});
    }
    const int ready = ::poll(polled.data(), polled.size(), waits ? kBackoffMs : -1);
    if (ready < 0 && errno != EINTR) {
      LogError("control", "poll failed", {{"errno", errno}});
      return;
    }
    if (is_stopping_.load()) return;
    if (ready > 0 && polled[0].revents != 0) {
      uint64_t count = 0;
      if (::read(wake_.get(), &count, sizeof count) < 0) continue;  // somebody wakes it again
    }
    waits = false;
    for (Door& door : doors_) waits = AcceptAll(door) || waits;
  }
}

bool ControlListener::AcceptAll(Door& door) {
  for (int i = 0; i < kAcceptedPerTurnMax; ++i) {
    Fd socket;
    switch (door.acceptor->Accept(&socket)) {
      case Acceptor::Outcome::kPeer:
        TakeIn(door, std::move(socket));
        break;
      case Acceptor::Outcome::kGone:
        break;
      case Acceptor::Outcome::kTurnedAway:
      case Acceptor::Outcome::kStuck:
        out_of_files_.Add();
        return true;
      case Acceptor::Outcome::kNone:
        return false;
    }
  }
  return false;
}

void ControlListener::TakeIn(const Door& door, Fd socket) {
  struct stat facts {};
  if (::fstat(socket.get(), &facts) != 0) return;
  const Connection connection{
      .inode = facts.st_ino,
      .peer = {.identity = PeerIdentityOf(socket.get()), .is_operator = door.is_admin}};
  // Whoever fills the control address does not keep operators out.
  const size_t reserve = &door != &doors_.front() ? limits::kAdminConnectionsMax : 0;
  if (!door.address.is_unix()) {
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  {
    const MutexLock lock(mutex_);
    connections_.erase(socket.get());  // of an earlier connection
    if (!HasRoom(limits::kControlConnectionsMax + reserve)) {
      refused_.Add();
      return;
    }
    connections_.emplace(socket.get(), connection);
  }
  accepted_.Add();
  take_(std::move(socket));
}

bool ControlListener::HasRoom(size_t connections_max) {
  if (connections_.size() < connections_max) return true;
  const absl::Time now = MonotonicNow();
  if (now < swept_ + kSweepPause) return false;
  swept_ = now;
  absl::erase_if(connections_, [](const auto& entry) {
    struct stat facts {};
    return ::fstat(entry.first, &facts) != 0 || !S_ISSOCK(facts.st_mode) ||
           facts.st_ino != entry.second.inode;
  });
  return connections_.size() < connections_max;
}

ControlListener::Peer ControlListener::PeerOf(std::string_view peer) const {
  constexpr std::string_view kPrefix = "fd:";
  int fd = 0;
  if (!peer.starts_with(kPrefix) || !absl::SimpleAtoi(ToAbsl(peer.substr(kPrefix.size())), &fd)) {
    return {};
  }
  const MutexLock lock(mutex_);
  const auto found = connections_.find(fd);
  return found == connections_.end() ? Peer() : found->second.peer;
}

absl::Status ControlListener::Probe() {
  {
    const MutexLock lock(mutex_);
    if (MonotonicNow() < probed_until_) return probed_;
  }
  absl::Status probed = Connect();
  const MutexLock lock(mutex_);
  probed_ = probed;
  probed_until_ = MonotonicNow() + kProbeHolds;
  return probed;
}

absl::Status ControlListener::Connect() const {
  const absl::Time deadline = MonotonicNow() + kProbeTime;
  const auto failure = [](absl::string_view what) {
    return absl::UnavailableError(absl::StrCat("the control port ", what));
  };
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (::getsockname(doors_.front().acceptor->get(), reinterpret_cast<sockaddr*>(&address),
                    &bytes) != 0) {
    return failure("is closed");
  }
  const Fd socket(::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.is_valid()) return failure("cannot be tried: no descriptor is left");
  // To an address of all interfaces, Linux connects over the loopback.
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 &&
      (errno != EINPROGRESS || !Await(socket.get(), POLLOUT, deadline))) {
    return failure("takes no connection");
  }
  if (::send(socket.get(), kPreface.data(), kPreface.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(kPreface.size())) {
    return failure("takes no connection");
  }
  std::array<char, kFrameHeadBytes> head{};
  for (size_t got = 0; got < head.size();) {  // ends: each turn takes a byte, or fails
    if (!Await(socket.get(), POLLIN, deadline)) return failure("does not answer");
    const ssize_t count = ::recv(socket.get(), head.data() + got, head.size() - got, 0);
    if (count == 0) return failure("turns connections away");
    if (count < 0 && errno != EAGAIN && errno != EINTR) return failure("drops connections");
    got += static_cast<size_t>(std::max<ssize_t>(count, 0));
  }
  return head[3] == kSettings ? absl::OkStatus() : failure("does not speak HTTP/2");
}

void ControlListener::Report(MetricSink& sink) const {
  constexpr std::string_view kName = "cairn_control_connections_total";
  constexpr std::string_view kHelp =
      "Connections to the control port: accepted, refused because there were too many, or turned "
      "away because the process was out of descriptors.";
  const auto add = [&](std::string_view outcome, const Counter& counter) {
    const MetricLabel label{"outcome", outcome};
    sink.AddCounter(kName, kHelp, MetricLabels(&label, 1), counter.Value());
  };
  add("accepted", accepted_);
  add("refused", refused_);
  add("out_of_files", out_of_files_);
}

}  // namespace cairn
