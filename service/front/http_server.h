// SPDX-License-Identifier: Apache-2.0
#pragma once
// A minimal HTTP/1.1 server for metrics and probes. It answers GET and HEAD of fixed paths, takes
// one request per connection, and accepts no request bodies. It has one thread. Everything that a
// peer can send or hold is limited.
//
// Thread-safety: Thread-safe. The thread is named "http".

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/metric.h"
#include "service/config_value.h"
#include "service/front/acceptor.h"

namespace cairn {

class HttpServer {
 public:
  struct Response {
    int status = 200;
    std::string content_type = "text/plain; charset=utf-8";
    std::string body;
  };
  // Returns the response for a path. The path has no query. Runs on the http thread.
  using Responder = std::function<Response(std::string_view path)>;

  struct Limits {
    size_t connections_max = 64;  // if there are more, the oldest one is closed
    size_t head_bytes_max = 8192;
    absl::Duration time_max = absl::Seconds(5);  // limit for one connection, from accept to close
  };

  // Binds to exactly that address. Errors: Unavailable (cannot bind), InvalidArgument (`address` is
  // not an address).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Bind(const HostPort& address,
                                                          const Limits& limits);
  static absl::StatusOr<std::unique_ptr<HttpServer>> Bind(const HostPort& address) {
    return Bind(address, Limits());
  }
  ~HttpServer() { Stop(); }

  HostPort address() const { return address_; }  // with the port that is bound
  // Starts answering. Also answers peers that have connected since Bind(). Call it once.
  void Start(Responder responder);
  void Stop();  // idempotent
  void Report(MetricSink& sink) const;

 private:
  struct Connection {
    Fd fd;
    absl::Time deadline;
    std::string input;
    std::string output;
    size_t output_sent = 0;
    bool is_answered = false;  // further input is discarded
  };

  HttpServer() = default;
  void Run();
  // Accepts new connections. If there are too many, closes the oldest ones.
  void Accept();
  // Both return false when the connection is finished.
  bool Read(Connection& connection);
  bool Write(Connection& connection);
  void Answer(Connection& connection);

  HostPort address_;
  Responder responder_;
  Limits limits_;
  std::optional<Acceptor> acceptor_;
  absl::Time accepts_again_ = absl::InfinitePast();  // descriptors ran out: no accept before this
  Fd wake_;
  std::vector<std::unique_ptr<Connection>> connections_;  // used by the thread only; oldest first
  Counter requests_, refused_, dropped_;
  std::thread thread_;
};

}  // namespace cairn
