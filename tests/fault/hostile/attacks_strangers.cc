// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "tests/fault/hostile/attacks.h"
#include "tests/support/lingering_socket.h"
#include "transport/local/socket.h"

namespace cairn {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr std::string_view kPreface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);

bool IsOver(const Attack& attack) { return MonotonicNow() >= attack.until; }

// Not valid where the backlog is full.
Fd ConnectUnix(std::string_view address, int type) {
  if (address.starts_with(kUnix)) address.remove_prefix(kUnix.size());
  Fd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  address.copy(name.sun_path, sizeof name.sun_path - 1);
  const bool is_in = ::connect(socket.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) == 0;
  return is_in ? std::move(socket) : Fd();
}

Fd ConnectToControl(const Attack& attack) {
  const std::string& control = attack.daemon.endpoint("control");
  return control.starts_with(kUnix) ? ConnectUnix(control, SOCK_STREAM)
                                    : ConnectTcp(attack.daemon.port("control"));
}

// Keeps so many connections open, and makes a new one for each that the daemon ends.
void Crowd(Attack& attack, size_t count, const std::function<Fd()>& connect) {
  std::vector<Fd> crowd;
  while (!IsOver(attack)) {
    if (crowd.size() < count) crowd.emplace_back();
    for (Fd& socket : crowd) {
      pollfd polled{socket.get(), POLLRDHUP, 0};
      if (socket.is_valid() && ::poll(&polled, 1, 0) == 0) continue;
      socket = connect();
      if (socket.is_valid()) ++attack.blows;
      if (IsOver(attack)) return;
    }
  }
}

}  // namespace

void SendSlowDescriptors(Attack& attack) {
  std::vector<LingeringSocket> sent;
  while (!IsOver(attack) && sent.size() < 1000) {
    // It stands still meanwhile, so that it is the last that has them.
    attack.daemon.process().Signal(SIGSTOP);
    for (const char* name : {"socket", "control", "admin"}) {
      const bool is_data = name == std::string_view("socket");
      const Fd socket =
          ConnectUnix(attack.daemon.endpoint(name), is_data ? SOCK_SEQPACKET : SOCK_STREAM);
      if (!socket.is_valid()) continue;
      for (int i = 0; i < 4; ++i) {
        LingeringSocket& lingering = sent.emplace_back(MakeLingeringSocket(60));
        const auto bytes = std::as_bytes(std::span(kPreface));
        const absl::Status status =
            transport::SendPacket(socket.get(), bytes, lingering.socket.get());
        lingering.LetGo(status.ok());
      }
      ++attack.blows;
    }
    attack.daemon.process().Signal(SIGCONT);
    absl::SleepFor(absl::Milliseconds(20));
  }
}

void CrowdDataSocket(Attack& attack) {
  Crowd(attack, 640, [&] { return ConnectUnix(attack.daemon.endpoint("socket"), SOCK_SEQPACKET); });
}

void CrowdControl(Attack& attack) {
  Crowd(attack, 1400, [&] { return ConnectToControl(attack); });
}

void CrowdControlInHttp2(Attack& attack) {
  Crowd(attack, 1400, [&] {
    Fd socket = ConnectToControl(attack);
    (void)!::send(socket.get(), kPreface.data(), kPreface.size(), MSG_NOSIGNAL);
    return socket;
  });
}

}  // namespace cairn
