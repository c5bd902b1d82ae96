// SPDX-License-Identifier: Apache-2.0
#pragma once
// A minimal HTTP/1.1 server for scraping and probes: GET and HEAD of fixed paths, one request per
// connection, no request bodies. It has one thread, and limits on everything that a peer can send
// or hold.
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
  // Answers a path (without its query). Runs on the http thread.
  using Responder = std::function<Response(std::string_view path)>;

  struct Limits {
    size_t connections_max = 64;  // above it the oldest one is closed
    size_t head_bytes_max = 8192;
    absl::Duration time_max = absl::Seconds(5);  // for one connection, from accept to close
  };

  // Binds to exactly that address. Errors: Unavailable (it cannot), InvalidArgument (not an
  // address).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Bind(const HostPort& address,
                                                          const Limits& limits);
  static absl::StatusOr<std::unique_ptr<HttpServer>> Bind(const HostPort& address) {
    return Bind(address, Limits());
  }
  ~HttpServer() { Stop(); }

  HostPort address() const { return address_; }  // with the port that is bound
  // Starts answering; earlier peers have waited. Call it once.
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
  // Accepts new peers; the oldest are closed if there are too many.
  void Accept();
  // Both return false when the connection is complete.
  bool Read(Connection& connection);
  bool Write(Connection& connection);
  void Answer(Connection& connection);

  HostPort address_;
  Responder responder_;
  Limits limits_;
  std::optional<Acceptor> acceptor_;
  absl::Time accepts_again_ = absl::InfinitePast();  // out of descriptors until then
  Fd wake_;
  std::vector<std::unique_ptr<Connection>> connections_;  // used by the thread only; oldest first
  Counter requests_, refused_, dropped_;
  std::thread thread_;
};

}  // namespace cairn
