// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client that speaks just enough HTTP/2 to do with gRPC what gRPC's own client does not: stop in
// the middle of a message, never open its window, hold connections that say nothing.
// Thread-compatible.

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "base/file.h"
#include "tests/e2e/daemon/daemon_process.h"

namespace cairn {

class RawHttp2 {
 public:
  enum Type : uint8_t { kData, kHeaders, kRst = 3, kSettings, kPing = 6, kWindowUpdate = 8 };

  // `window` is how much of a reply it takes, of one stream.
  explicit RawHttp2(uint16_t port, uint32_t window = 65'535) : RawHttp2(ConnectTcp(port), window) {}
  explicit RawHttp2(Fd socket, uint32_t window) : socket_(std::move(socket)) {
    output_ = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    Frame(kSettings, 0, 0, std::string("\0\4", 2) + Number(window, 4));
    Pump();
  }

  // Begins `count` calls, each of a message of 2,999,000 bytes of which only `bytes` will be sent.
  void StallUploads(const std::string& method, int count, size_t bytes) {
    for (int i = 0; i < count; ++i) {
      Stream& stream = Open(method);
      stream.unsent = bytes;
      stream.head = std::string(1, '\0') + Number(2'999'000, 4);
    }
    Pump();
  }
  // Begins `count` calls with one whole message.
  void Call(const std::string& method, int count, const std::string& message) {
    for (int i = 0; i < count; ++i) {
      Open(method).is_over = true;
      Frame(kData, 1, next_id_ - 2, std::string(1, '\0') + Number(message.size(), 4) + message);
    }
    Pump();
  }

  // Takes what has come, sends what may go. Does not wait.
  void Pump() {
    char bytes[65536];
    for (ssize_t count = 0;
         (count = ::recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT)) > 0;) {
      input_.append(bytes, static_cast<size_t>(count));
    }
    size_t at = 0;
    while (input_.size() - at >= 9) {
      const size_t length = Parse(at, 3);
      if (input_.size() - at < 9 + length) break;
      Take(static_cast<uint8_t>(input_[at + 3]), static_cast<uint8_t>(input_[at + 4]),
           Parse(at + 5, 4), at + 9, length);
      at += 9 + length;
    }
    input_.erase(0, at);
    SendData();
    const ssize_t sent =
        ::send(socket_.get(), output_.data(), output_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) output_.erase(0, static_cast<size_t>(sent));
  }
  int ended_streams() const { return ended_streams_; }

 private:
  struct Stream {
    std::string head;
    size_t unsent = 0;
    int64_t window = 0;
    bool is_over = false;
  };

  static std::string Number(uint64_t value, int bytes) {
    std::string text;
    for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
    return text;
  }
  uint32_t Parse(size_t at, int bytes) const {
    uint32_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(input_[at + i]);
    return value;
  }
  void Frame(Type type, uint8_t flags, uint32_t stream, const std::string& payload) {
    output_ += Number(payload.size(), 3) + Number(type, 1) + Number(flags, 1) + Number(stream, 4);
    output_ += payload;
  }
  Stream& Open(const std::string& method) {
    std::string headers;
    const auto add = [&](const std::string& name, const std::string& value) {
      headers += std::string(1, '\0') + static_cast<char>(name.size()) + name +
                 static_cast<char>(value.size()) + value;
    };
    add(":method", "POST");
    add(":scheme", "http");
    add(":path", method);
    add(":authority", "x");
    add("te", "trailers");
    add("content-type", "application/grpc");
    const uint32_t id = next_id_;
    next_id_ += 2;
    Frame(kHeaders, 4, id, headers);
    Stream& stream = streams_[id];
    stream.window = initial_window_;
    return stream;
  }
  void Take(uint8_t type, uint8_t flags, uint32_t stream, size_t at, size_t length) {
    if (type == kSettings && (flags & 1) == 0) {
      for (size_t i = 0; i + 6 <= length; i += 6) {
        if (Parse(at + i, 2) != 4) continue;
        const int64_t change = int64_t{Parse(at + i + 2, 4)} - initial_window_;
        initial_window_ += change;
        for (auto& [id, one] : streams_) one.window += change;
      }
      Frame(kSettings, 1, 0, "");
    } else if (type == kPing && (flags & 1) == 0) {
      Frame(kPing, 1, 0, input_.substr(at, length));
    } else if (type == kWindowUpdate) {
      (stream == 0 ? window_ : streams_[stream].window) += Parse(at, 4);
    } else if (type == kRst || (type == kHeaders && (flags & 1) != 0)) {
      ended_streams_ += 1;
      streams_[stream].is_over = true;
    }
  }
  void SendData() {
    for (auto& [id, stream] : streams_) {
      while (!stream.is_over && stream.unsent > 0 && output_.size() < (1 << 20)) {
        const int64_t most = std::min(
            {int64_t{16'384}, window_, stream.window, static_cast<int64_t>(stream.unsent)});
        if (most < 5) break;
        std::string data = stream.head;
        stream.head.clear();
        data.resize(static_cast<size_t>(most), '\0');
        Frame(kData, 0, id, data);
        window_ -= most;
        stream.window -= most;
        stream.unsent -= static_cast<size_t>(most);
      }
    }
  }

  Fd socket_;
  std::string input_, output_;
  std::map<uint32_t, Stream> streams_;
  uint32_t next_id_ = 1;
  int64_t window_ = 65'535, initial_window_ = 65'535;
  int ended_streams_ = 0;
};

}  // namespace cairn
