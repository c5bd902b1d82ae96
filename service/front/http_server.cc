// SPDX-License-Identifier: Apache-2.0
#include "service/front/http_server.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace cairn {
namespace {

// Each connection of one turn gets a chance to be read before a newer one replaces it.
constexpr int kAcceptedPerTurnMax = 32;
constexpr int kBackoffMs = 10;

std::string_view ReasonOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    default:
      return "Service Unavailable";
  }
}

struct RequestLine {
  std::string_view method, path;
};

// Parses a line such as "GET /metrics?x HTTP/1.1". Returns an empty method if it is not a request.
RequestLine ParseRequestLine(std::string_view head) {
  const std::string_view line = head.substr(0, head.find("\r\n"));
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return {};
  const std::string_view version = line.substr(last + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return {};
  const std::string_view target = line.substr(first + 1, last - first - 1);
  return {line.substr(0, first), target.substr(0, target.find('?'))};
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Bind(const HostPort& address,
                                                             const Limits& limits) {
  auto acceptor = Acceptor::Listen(address);
  if (!acceptor.ok()) return Annotate(acceptor.status(), "http");
  auto server = std::unique_ptr<HttpServer>(new HttpServer());
  server->acceptor_.emplace(*std::move(acceptor));
  server->wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!server->wake_.is_valid()) return absl::UnavailableError("http: no eventfd");
  server->address_ = {address.host, server->acceptor_->port()};
  server->limits_ = limits;
  return server;
}

void HttpServer::Start(Responder responder) {
  responder_ = std::move(responder);
  thread_ = std::thread([this] { Run(); });
}

void HttpServer::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  CAIRN_CHECK(::write(wake_.get(), &one, sizeof one) == sizeof one);
  thread_.join();
  connections_.clear();
  acceptor_.reset();
}

void HttpServer::Run() {
  ::pthread_setname_np(::pthread_self(), "http");
  std::vector<pollfd> polled;
  while (true) {  // until Stop() wakes it
    const short accepts = MonotonicNow() < accepts_again_ ? 0 : POLLIN;
    polled.assign({{wake_.get(), POLLIN, 0}, {acceptor_->get(), accepts, 0}});
    absl::Time next = MonotonicNow() + absl::Seconds(60);
    if (accepts == 0) next = accepts_again_;
    for (const auto& connection : connections_) {
      const bool has_output = connection->output_sent < connection->output.size();
      polled.push_back(
          {connection->fd.get(), static_cast<short>(has_output ? POLLOUT : POLLIN), 0});
      next = std::min(next, connection->deadline);
    }
    const int64_t wait_ms = absl::ToInt64Milliseconds(next - MonotonicNow()) + 1;
    const int ready =
        ::poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(wait_ms, 0)));
    if (ready < 0 && errno != EINTR) {
      // For example, the kernel has no memory. Probes and scrapes are answered again once it has.
      LogError("http", "poll failed", {{"errno", errno}});
      absl::SleepFor(absl::Milliseconds(kBackoffMs));
      continue;
    }
    if (ready > 0 && (polled[0].revents & POLLIN) != 0) return;
    const absl::Time now = MonotonicNow();
    for (size_t i = 0; i < connections_.size(); ++i) {
      Connection& connection = *connections_[i];
      const short events = ready > 0 ? polled[i + 2].revents : 0;
      bool lives = now < connection.deadline;
      if (lives && (events & POLLOUT) != 0) lives = Write(connection);
      if (lives && (events & (POLLIN | POLLHUP | POLLERR)) != 0) lives = Read(connection);
      if (!lives) connection.fd.Reset();
    }
    std::erase_if(connections_, [](const auto& connection) { return !connection->fd.is_valid(); });
    if (ready > 0 && (polled[1].revents & POLLIN) != 0) Accept();
  }
}

void HttpServer::Accept() {
  for (int i = 0; i < kAcceptedPerTurnMax; ++i) {
    Fd fd;
    switch (acceptor_->Accept(&fd)) {
      case Acceptor::Outcome::kPeer:
        break;
      case Acceptor::Outcome::kGone:
        continue;
      case Acceptor::Outcome::kTurnedAway:
      case Acceptor::Outcome::kStuck:
        dropped_.Add();
        accepts_again_ = MonotonicNow() + absl::Milliseconds(kBackoffMs);
        return;
      case Acceptor::Outcome::kNone:
        return;
    }
    if (connections_.size() >= limits_.connections_max) {
      connections_.erase(connections_.begin());
      dropped_.Add();
    }
    auto connection = std::make_unique<Connection>();
    connection->fd = std::move(fd);
    connection->deadline = MonotonicNow() + limits_.time_max;
    // The request has usually arrived already.
    if (Read(*connection)) connections_.push_back(std::move(connection));
  }
}

bool HttpServer::Read(Connection& connection) {
  std::array<char, 4096> bytes;
  const ssize_t count = ::recv(connection.fd.get(), bytes.data(), bytes.size(), 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  if (connection.is_answered) return true;
  connection.input.append(bytes.data(), static_cast<size_t>(count));
  const size_t end = connection.input.find("\r\n\r\n");
  if (end == std::string::npos && connection.input.size() <= limits_.head_bytes_max) return true;
  Answer(connection);
  return Write(connection);
}

void HttpServer::Answer(Connection& connection) {
  const RequestLine line = ParseRequestLine(connection.input);
  const bool is_head = line.method == "HEAD";
  Response response;
  if (connection.input.size() > limits_.head_bytes_max) {
    response = {431, "text/plain; charset=utf-8", "request head over 8192 bytes\n"};
  } else if (line.method.empty()) {
    response = {400, "text/plain; charset=utf-8", "not an HTTP/1 request\n"};
  } else if (line.method != "GET" && !is_head) {
    response = {405, "text/plain; charset=utf-8", "only GET and HEAD\n"};
  } else {
    response = responder_(line.path);
  }
  (response.status == 400 || response.status == 405 || response.status == 431 ? refused_
                                                                              : requests_)
      .Add();
  connection.output = absl::StrCat(
      "HTTP/1.1 ", response.status, " ", ToAbsl(ReasonOf(response.status)),
      "\r\nContent-Type: ", response.content_type, "\r\nContent-Length: ", response.body.size(),
      response.status == 405 ? "\r\nAllow: GET, HEAD" : "", "\r\nConnection: close\r\n\r\n",
      is_head ? "" : response.body);
  connection.input = std::string();
  connection.is_answered = true;
}

bool HttpServer::Write(Connection& connection) {
  const std::string_view rest = std::string_view(connection.output).substr(connection.output_sent);
  if (rest.empty()) return true;
  const ssize_t count = ::send(connection.fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  connection.output_sent += static_cast<size_t>(count);
  if (connection.output_sent < connection.output.size()) return true;
  // Closing a socket with unread input resets the connection, which may lose the reply. So end the
  // output, and wait a short time for the peer to close.
  connection.output = std::string();
  connection.output_sent = 0;
  connection.deadline = std::min(connection.deadline, MonotonicNow() + absl::Seconds(1));
  return ::shutdown(connection.fd.get(), SHUT_WR) == 0;
}

void HttpServer::Report(MetricSink& sink) const {
  constexpr std::string_view kName = "cairn_http_requests_total";
  constexpr std::string_view kHelp =
      "HTTP requests: answered, refused as malformed, or dropped for newer ones.";
  const auto add = [&](std::string_view outcome, const Counter& counter) {
    const MetricLabel label{"outcome", outcome};
    sink.AddCounter(kName, kHelp, MetricLabels(&label, 1), counter.Value());
  };
  add("answered", requests_);
  add("refused", refused_);
  add("dropped", dropped_);
}

}  // namespace cairn
