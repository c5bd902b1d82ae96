// SPDX-License-Identifier: Apache-2.0
#include "service/front/control_listener.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "service/limits.h"
#include "transport/local/socket.h"

namespace cairn {
namespace {

constexpr mode_t kModeOfAll = 0660, kModeOfOurs = 0600;
constexpr int kBackoffMs = 10;
constexpr int kAcceptedPerTurnMax = 64;
constexpr int kEventsMax = 64;
// Tags of events: the wake-up, then the doors, then connections.
constexpr uint64_t kWakeTag = 0, kFirstDoorTag = 1, kFirstNumber = 128;
static_assert(kFirstDoorTag + limits::kDoorsMax + 2 <= kFirstNumber);
constexpr absl::Duration kSilentTime = absl::Seconds(10);
constexpr absl::Duration kProbeTime = absl::Milliseconds(500);
constexpr absl::Duration kProbeHolds = absl::Seconds(1);
// The first bytes of an HTTP/2 client: the preface and an empty SETTINGS frame.
constexpr std::string_view kPreface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
constexpr size_t kFrameHeadBytes = 9;
constexpr char kSettings = 4;

// Returns true if `socket` has one of `events` before `deadline`.
bool Await(int socket, short events, absl::Time deadline) {
  pollfd polled{socket, events, 0};
  const int64_t wait_ms = absl::ToInt64Milliseconds(deadline - MonotonicNow());
  return ::poll(&polled, 1, static_cast<int>(std::max<int64_t>(wait_ms, 0))) > 0;
}

void Wake(const Fd& event) {
  const uint64_t one = 1;
  CAIRN_CHECK(::write(event.get(), &one, sizeof one) == sizeof one);
}

}  // namespace

ControlListener::ControlListener()
    : connections_({.count_max = limits::kSessionlessConnectionsMax,
                    .operators_max = limits::kAdminConnectionsMax}),
      numbers_(kFirstNumber),
      silent_all_(limits::kSilentConnectionsMax),
      silent_operators_(limits::kAdminConnectionsMax) {}

absl::StatusOr<std::unique_ptr<ControlListener>> ControlListener::Bind(
    const ControlAddress& control, const std::optional<ControlAddress>& admin, TlsDoor* tls,
    const std::vector<std::string>& folders) {
  auto listener = std::unique_ptr<ControlListener>(new ControlListener());
  const bool is_one = admin.has_value() && admin->ToString() == control.ToString();
  absl::Status opened =
      Annotate(listener->Open(control, /*is_admin=*/is_one, kModeOfAll, tls), "control");
  for (const std::string& folder : folders) {
    if (opened.ok()) opened = Annotate(listener->OpenFolder(folder), "door");
  }
  if (opened.ok() && admin.has_value() && !is_one) {
    opened = Annotate(listener->Open(*admin, /*is_admin=*/true, kModeOfOurs, tls), "admin");
  }
  if (!opened.ok()) {
    if (tls != nullptr) tls->Close();  // it would pass connections to a destroyed listener
    return opened;
  }
  listener->wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  listener->epoll_.Reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!listener->wake_.is_valid() || !listener->epoll_.is_valid()) {
    return absl::UnavailableError("control: no descriptor is left");
  }
  return listener;
}

absl::Status ControlListener::Open(const ControlAddress& address, bool is_admin, mode_t mode,
                                   TlsDoor* tls) {
  const size_t index = doors_.size();
  Door& door = doors_.emplace_back();
  door.address = address;
  door.is_admin = is_admin;
  if (address.is_unix()) {
    CAIRN_ASSIGN_OR_RETURN(transport::SocketFile file,
                           transport::SocketFile::Listen(address.path, SOCK_STREAM, mode));
    if (!transport::RefuseDescriptors(file.get())) {
      LogWarn("control",
              "this kernel cannot refuse descriptors from clients (Linux 6.16 can): a client of "
              "the socket can block the control plane with them",
              {{"socket", address.path}});
    }
    door.file.emplace(std::move(file));
    door.acceptor.emplace(Acceptor::Borrow(door.file->get()));
  } else {
    CAIRN_ASSIGN_OR_RETURN(Acceptor acceptor, Acceptor::Listen(address.tcp));
    door.address.tcp.port = acceptor.port();
    if (tls == nullptr) {
      door.acceptor.emplace(std::move(acceptor));
      return absl::OkStatus();
    }
    tls->Listen(acceptor.TakeSocket(), index > 0,
                [this, index](Fd plain, PeerIdentity identity, uint64_t party) {
                  {
                    const MutexLock lock(mutex_);
                    if (is_stopping_) return;
                    proved_.push_back({std::move(plain), std::move(identity), party, index});
                  }
                  Wake(wake_);
                });
  }
  return absl::OkStatus();
}

absl::Status ControlListener::OpenFolder(const std::string& folder) {
  Door& door = doors_.emplace_back();
  door.address.path = DoorControlPath(folder);
  CAIRN_ASSIGN_OR_RETURN(transport::DoorFile file,
                         transport::DoorFile::Listen(folder, door.address.path, SOCK_STREAM));
  transport::RefuseDescriptors(file.get());  // Open() warns
  door.folder.emplace(std::move(file));
  door.acceptor.emplace(Acceptor::Borrow(door.folder->get()));
  return absl::OkStatus();
}

uint64_t ControlListener::Party(const Door& door, int socket) const {
  return door.folder.has_value() ? PartyOfDoor(static_cast<size_t>(&door - &doors_.front() - 1))
                                 : PartyOf(socket);
}

void ControlListener::AddTo(Doors& doors) {
  const bool has_folders =
      std::ranges::any_of(doors_, [](const Door& door) { return door.folder.has_value(); });
  if (has_folders) {
    doors.Add("door", [this]() -> absl::StatusOr<bool> {
      bool is_made_again = false;
      for (Door& door : doors_) {
        if (door.folder.has_value()) is_made_again = door.folder->Keep() || is_made_again;
      }
      if (is_made_again) WatchAgain();
      return is_made_again;
    });
  }
  for (Door& door : doors_) {
    if (!door.file.has_value()) continue;
    doors.Add(&door == &doors_.front() ? "control" : "admin",
              [this, &door]() -> absl::StatusOr<bool> {
                CAIRN_ASSIGN_OR_RETURN(const bool is_made_again, door.file->Keep());
                if (is_made_again) WatchAgain();
                return is_made_again;
              });
  }
}

void ControlListener::WatchAgain() {
  {
    const MutexLock lock(mutex_);
    is_unwatched_ = true;
  }
  Wake(wake_);  // the thread waits for the old socket
}

void ControlListener::Start(std::function<void(Fd socket)> take) {
  take_ = std::move(take);
  thread_ = std::thread([this] { Run(); });
}

void ControlListener::Stop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  Wake(wake_);
  thread_.join();
  silent_.clear();
  for (Door& door : doors_) {
    door.acceptor.reset();
    door.file.reset();
    door.folder.reset();
  }
}

void ControlListener::WatchDoors(bool accepts) {
  for (size_t i = 0; i < doors_.size(); ++i) {
    if (!doors_[i].acceptor.has_value()) continue;
    WatchSocket(epoll_.get(), doors_[i].acceptor->get(), kFirstDoorTag + i,
                accepts ? uint32_t{EPOLLIN} : 0);
  }
  accepts_again_ =
      accepts ? absl::InfiniteFuture() : MonotonicNow() + absl::Milliseconds(kBackoffMs);
}

int ControlListener::WaitMs() const {
  absl::Time until = accepts_again_;
  if (!silent_.empty()) until = std::min(until, silent_.begin()->second.deadline);
  const absl::Duration wait = std::min(until - MonotonicNow(), absl::Seconds(60));
  return static_cast<int>(std::max<int64_t>(absl::ToInt64Milliseconds(wait) + 1, 0));
}

void ControlListener::Run() {
  ::pthread_setname_np(::pthread_self(), "control");
  WatchSocket(epoll_.get(), wake_.get(), kWakeTag, EPOLLIN);
  WatchDoors(true);
  while (true) {  // until Stop() wakes it
    std::array<epoll_event, kEventsMax> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsMax, WaitMs());
    CAIRN_CHECK(count >= 0 || errno == EINTR);
    std::array<bool, kFirstNumber> is_called{};
    // Handle connections that have sent something first. They then do not count as silent when a
    // new connection needs a place.
    for (int i = 0; i < count; ++i) {
      const uint64_t tag = events[static_cast<size_t>(i)].data.u64;
      if (tag < kFirstNumber) {
        is_called[tag] = true;
      } else if (silent_.contains(tag)) {
        Pass(tag);
      } else if ((events[static_cast<size_t>(i)].events & EPOLLHUP) != 0) {
        connections_.Remove(tag);
      }
    }
    if (is_called[kWakeTag] && !TakeNews()) return;
    ExpireSilent();
    if (MonotonicNow() >= accepts_again_) WatchDoors(true);
    bool goes_on = true;
    for (size_t i = 0; i < doors_.size(); ++i) {
      if (is_called[kFirstDoorTag + i]) goes_on = AcceptAll(doors_[i]) && goes_on;
    }
    if (!goes_on) WatchDoors(false);
  }
}

bool ControlListener::TakeNews() {
  uint64_t calls = 0;
  [[maybe_unused]] const ssize_t bytes = ::read(wake_.get(), &calls, sizeof calls);
  std::vector<Fd> probes;
  std::vector<Proved> proved;
  bool is_unwatched = false;
  {
    const MutexLock lock(mutex_);
    if (is_stopping_) return false;
    probes.swap(probes_);
    proved.swap(proved_);
    is_unwatched = std::exchange(is_unwatched_, false);
  }
  if (is_unwatched) WatchDoors(true);
  for (Fd& probe : probes) take_(std::move(probe));
  for (Proved& one : proved) {
    accepted_.Add();
    Give(numbers_++, std::move(one.plain), std::move(one.identity), one.party, doors_[one.door]);
  }
  return true;
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
        return false;
      case Acceptor::Outcome::kNone:
        return true;
    }
  }
  return true;
}

void ControlListener::TakeIn(const Door& door, Fd socket) {
  if (!door.address.is_unix()) {
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  accepted_.Add();
  const uint64_t number = numbers_++;
  const std::optional<uint64_t> goes = SilentOf(door).Add(number, Party(door, socket.get()));
  // Once: what it has sent already, or sends.
  WatchSocket(epoll_.get(), socket.get(), number, EPOLLIN | EPOLLONESHOT);
  silent_.emplace(
      number,
      Silent{.socket = std::move(socket), .door = &door, .deadline = MonotonicNow() + kSilentTime});
  if (!goes.has_value()) return;
  if (Await(silent_.at(*goes).socket.get(), POLLIN, absl::InfinitePast())) {
    Pass(*goes);  // it has sent something since the last check
  } else {
    gave_way_.Add();
    silent_.erase(*goes);
  }
}

void ControlListener::Pass(uint64_t number) {
  auto node = silent_.extract(number);
  Fd socket = std::move(node.mapped().socket);
  const Door& door = *node.mapped().door;
  SilentOf(door).Remove(number);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
  const uint64_t party = Party(door, socket.get());
  PeerIdentity identity = PeerIdentityOf(socket.get());
  if (auto* user = std::get_if<UnixPeer>(&identity.peer);
      door.folder.has_value() && user != nullptr) {
    user->door = door.folder->folder();
  }
  Give(number, std::move(socket), std::move(identity), party, door);
}

void ControlListener::Give(uint64_t number, Fd socket, PeerIdentity identity, uint64_t party,
                           const Door& door) {
  Fd ours(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
  if (!ours.is_valid()) return out_of_files_.Add();
  WatchSocket(epoll_.get(), ours.get(), number, EPOLLET);  // reports the end
  connections_.Add(socket.get(), std::move(ours),
                   {.identity = std::move(identity),
                    .is_operator = door.is_admin,
                    .is_trusted = IsApart(door) && door.address.is_unix(),
                    .number = number},
                   IsApart(door), party);
  take_(std::move(socket));
}

void ControlListener::ExpireSilent() {
  const absl::Time now = MonotonicNow();
  while (!silent_.empty() && silent_.begin()->second.deadline <= now) {  // removes one
    late_.Add();
    SilentOf(*silent_.begin()->second.door).Remove(silent_.begin()->first);
    silent_.erase(silent_.begin());
  }
}

absl::Status ControlListener::Probe() {
  {
    const MutexLock lock(mutex_);
    if (MonotonicNow() < probed_until_) return probed_;
  }
  absl::Status probed = Ask();
  const MutexLock lock(mutex_);
  probed_ = probed;
  probed_until_ = MonotonicNow() + kProbeHolds;
  return probed;
}

absl::Status ControlListener::Ask() {
  const absl::Time deadline = MonotonicNow() + kProbeTime;
  const auto failure = [](absl::string_view what) {
    return absl::UnavailableError(absl::StrCat("the control port ", what));
  };
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    return failure("cannot be tried: no descriptor is left");
  }
  const Fd socket(ends[0]);
  {
    const MutexLock lock(mutex_);
    probes_.emplace_back(ends[1]);
  }
  Wake(wake_);
  if (::send(socket.get(), kPreface.data(), kPreface.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(kPreface.size())) {
    return failure("takes no connection");
  }
  std::array<char, kFrameHeadBytes> head{};
  for (size_t got = 0; got < head.size();) {  // each iteration reads a byte, or fails
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
      "Connections to the control port: accepted; of those, ended in favour of newer ones, or for "
      "want of a first byte; turned away because the process was out of descriptors.";
  const auto add = [&](std::string_view outcome, const Counter& counter) {
    const MetricLabel label{"outcome", outcome};
    sink.AddCounter(kName, kHelp, MetricLabels(&label, 1), counter.Value());
  };
  add("accepted", accepted_);
  add("gave_way_silent", gave_way_);
  add("silent", late_);
  add("out_of_files", out_of_files_);
  const MetricLabel without_session{"outcome", "gave_way_without_session"};
  sink.AddCounter(kName, kHelp, MetricLabels(&without_session, 1), connections_.ended_count());
}

}  // namespace cairn
