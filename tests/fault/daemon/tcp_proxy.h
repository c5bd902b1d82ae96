// SPDX-License-Identifier: Apache-2.0
#pragma once
// A TCP proxy on loopback that can stop forwarding: whoever is behind it hears nothing any more and
// is not heard, while both connections stay open, as behind a firewall that drops packets.
// Thread-safety: Thread-safe.

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/file.h"
#include "tests/e2e/daemon/daemon_process.h"

namespace cairn {

class TcpProxy {
 public:
  explicit TcpProxy(uint16_t target_port)
      : target_port_(target_port), listener_(ListenTcp(&port_)), thread_([this] { Run(); }) {}
  ~TcpProxy() {
    is_over_ = true;
    thread_.join();
  }

  uint16_t port() const { return port_; }
  // From here on nothing passes, either way.
  void Stall() { is_stalled_ = true; }

 private:
  struct Pair {
    Fd ends[2];
    bool is_open = true;
  };

  void Run() {
    while (!is_over_) {
      std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs_) {
        const short events = pair.is_open && !is_stalled_ ? POLLIN : short{0};
        for (const Fd& end : pair.ends) polled.push_back({events != 0 ? end.get() : -1, events, 0});
      }
      if (::poll(polled.data(), polled.size(), 20) <= 0) continue;
      for (size_t i = 1; i < polled.size(); ++i) {
        if (polled[i].revents != 0 && !is_stalled_) Forward(pairs_[(i - 1) / 2], (i - 1) % 2);
      }
      if (polled[0].revents != 0) {
        Pair& pair = pairs_.emplace_back();
        pair.ends[0] = Fd(::accept(listener_.get(), nullptr, nullptr));
        pair.ends[1] = ConnectTcp(target_port_);
      }
    }
  }

  static void Forward(Pair& pair, size_t from) {
    char bytes[16384];
    const ssize_t count = ::recv(pair.ends[from].get(), bytes, sizeof bytes, 0);
    const Fd& target = pair.ends[1 - from];
    if (count <= 0 || ::send(target.get(), bytes, static_cast<size_t>(count), MSG_NOSIGNAL) < 0) {
      pair.is_open = false;
      for (const Fd& end : pair.ends) ::shutdown(end.get(), SHUT_RDWR);
    }
  }

  const uint16_t target_port_;
  uint16_t port_ = 0;
  Fd listener_;
  std::atomic<bool> is_stalled_{false}, is_over_{false};
  std::vector<Pair> pairs_;  // of the thread
  std::thread thread_;
};

}  // namespace cairn
