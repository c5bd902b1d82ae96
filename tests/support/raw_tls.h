// SPDX-License-Identifier: Apache-2.0
#pragma once
// A TLS client of loopback that sends what a test says, and the texts that it sends.
//
// Thread-safety: Thread-compatible.

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "transport/stream/chunk.h"
#include "transport/tls/tls_files.h"
#include "transport/tls/tls_session.h"

namespace cairn::transport {

// The connection will be closed without TIME_WAIT, of which a soak would have too many.
inline void CloseAtOnce(int socket) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

// Connects to a port of 127.0.0.1 from 127.0.0.1 + `neighbour`, as if from another host. Not valid
// if that failed.
inline Fd ConnectFrom(uint32_t neighbour, uint16_t port) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  // Without it, 28,000 connections would use up the ports of an address.
  ::setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  sockaddr_in from{}, to{};
  from.sin_family = to.sin_family = AF_INET;
  from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + neighbour);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(port);
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&from), sizeof from) != 0 ||
      ::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
    return {};
  }
  ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  return socket;
}

// One end of a TLS connection. The name of the server is 127.0.0.1.
class RawTls {
 public:
  RawTls(Fd socket, const TlsFiles& files, std::string alpn)
      : socket_(std::move(socket)),
        channel_(socket_.get()),
        session_(files.context(), TlsRole::kClient,
                 TlsSessionOptions{.alpn = std::move(alpn), .server_name = "127.0.0.1"}, channel_) {
  }
  bool Shake() {
    const absl::Time until = MonotonicNow() + absl::Seconds(10);
    while (MonotonicNow() < until) {
      const TlsStep step = session_.Handshake();
      if (step == TlsStep::kDone) return true;
      if (step == TlsStep::kFailed || step == TlsStep::kClosed) return false;
      Wait(POLLIN, absl::Milliseconds(100));
    }
    return false;
  }
  // Returns false if the connection is over, or does not take it in time.
  bool Send(std::span<const std::byte> bytes, absl::Duration within = absl::Seconds(5)) {
    const absl::Time until = MonotonicNow() + within;
    while (!bytes.empty()) {
      const TlsSession::Moved moved = session_.Write(bytes);
      if (moved.step == TlsStep::kDone) {
        bytes = bytes.subspan(moved.bytes);
      } else if (moved.step != TlsStep::kWantsWrite || MonotonicNow() >= until) {
        return false;
      } else {
        Wait(POLLOUT, absl::Milliseconds(20));
      }
    }
    return true;
  }
  bool Send(const std::string& text, absl::Duration within = absl::Seconds(5)) {
    return Send(std::as_bytes(std::span(text)), within);
  }
  // Reads, and drops, until the other end has closed the connection; without time, what is there.
  bool IsClosed(absl::Duration within = absl::Seconds(10)) {
    const absl::Time until = MonotonicNow() + within;
    std::array<std::byte, 16384> dropped;
    while (true) {
      const TlsStep step = session_.Read(dropped).step;
      if (step == TlsStep::kFailed || step == TlsStep::kClosed) return true;
      if (step != TlsStep::kWantsRead) continue;
      if (MonotonicNow() >= until) return false;
      Wait(POLLIN, absl::Milliseconds(20));
    }
  }
  // Reads that many bytes; empty: the connection ended.
  std::vector<std::byte> Read(size_t bytes) {
    std::vector<std::byte> read(bytes);
    size_t have = 0;
    const absl::Time until = MonotonicNow() + absl::Seconds(10);
    while (have < bytes && MonotonicNow() < until) {
      const auto moved = session_.Read(std::span(read).subspan(have));
      have += moved.bytes;
      if (moved.step == TlsStep::kWantsRead) Wait(POLLIN, absl::Milliseconds(20));
      if (moved.step == TlsStep::kFailed || moved.step == TlsStep::kClosed) return {};
    }
    read.resize(have);
    return read;
  }
  TlsSession& session() { return session_; }
  int socket() const { return socket_.get(); }

 private:
  void Wait(short events, absl::Duration within) {
    pollfd ready{.fd = socket_.get(), .events = events, .revents = 0};
    ::poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(within)));
  }
  Fd socket_;
  SocketChannel channel_;
  TlsSession session_;
};

// What a client sends in its handshake.
inline std::string ClientFlights(const TlsFiles& server_files, const TlsFiles& client_files,
                                 const std::string& alpn) {
  std::string to_server, to_client, all;
  QueueChannel server_end(&to_server, &to_client), client_end(&to_client, &to_server);
  TlsSession server(server_files.context(), TlsRole::kServer, {.alpn = alpn}, server_end);
  TlsSession client(client_files.context(), TlsRole::kClient,
                    {.alpn = alpn, .server_name = "127.0.0.1"}, client_end);
  for (int i = 0; i < 4; ++i) {
    client.Handshake();
    all += to_server;
    server.Handshake();
  }
  CAIRN_CHECK(server.is_open());
  return all;
}

// A chunk of transport/stream, as it is sent.
inline std::string Wire(const Chunk& chunk, std::span<const std::byte> data = {}) {
  std::array<std::byte, kChunkFrontBytesMax> front;
  const size_t bytes = WriteChunk(chunk, front);
  std::string text(reinterpret_cast<const char*>(front.data()), bytes);
  text.append(reinterpret_cast<const char*>(data.data()), data.size());
  return text;
}
inline std::string RequestWire(const proto::Frame& frame, std::span<const std::byte> payload = {},
                               uint64_t capacity = 0) {
  Chunk chunk;
  chunk.kind = ChunkKind::kRequest;
  chunk.seq = frame.seq;
  chunk.frame = proto::Serialize(frame);
  chunk.capacity_bytes = capacity;
  chunk.payload_bytes = payload.size();
  const bool is_inline = payload.size() <= kInlinePayloadBytesMax;
  chunk.data_bytes = is_inline ? static_cast<uint32_t>(payload.size()) : 0;
  return Wire(chunk, is_inline ? payload : std::span<const std::byte>());
}

inline bool IsChunk(const std::string& wire) {
  const auto bytes = std::as_bytes(std::span(wire));
  const auto front_bytes = ParseChunkHead(bytes.first(kChunkHeadBytes));
  return front_bytes.ok() && *front_bytes <= bytes.size() &&
         ParseChunk(bytes.first(*front_bytes)).ok();
}

// The request with bytes changed, sometimes cut. Half of the changes are in its first
// `front_bytes`. Most of those that the parser refuses, and which thus end the connection, are
// drawn again.
inline std::string MutatedRequest(std::mt19937_64& random, const std::string& whole,
                                  size_t front_bytes) {
  std::string wire;
  do {
    wire = whole;
    for (uint64_t n = random() % 4 == 0 ? 1 + random() % 4 : 1; n > 0; --n) {
      char& changed = wire[random() % (random() % 2 == 0 ? front_bytes : wire.size())];
      changed = static_cast<char>(changed ^ static_cast<char>(1 + random() % 255));
    }
  } while (!IsChunk(wire) && random() % 16 != 0);
  if (random() % 256 == 0) wire.resize(random() % wire.size());
  return wire;
}

}  // namespace cairn::transport
