// SPDX-License-Identifier: Apache-2.0
#include "client/cli/scrape.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "base/text.h"
#include "base/units.h"

namespace cairn::cli {
namespace {

constexpr size_t kReplyBytesMax = 16 * kMiB;

absl::Status Failed(const std::string& address, std::string_view why) {
  return absl::UnavailableError(
      absl::StrCat("no metrics from http://", address, "/metrics: ", ToAbsl(why)));
}

absl::StatusOr<Fd> Dial(const std::string& address, absl::Time deadline) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return absl::InvalidArgumentError("expected HOST:PORT");
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = ::getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &list);
      error != 0) {
    return Failed(address, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(list, ::freeaddrinfo);
  Fd socket(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit = absl::ToTimeval(std::max(deadline - MonotonicNow(), absl::Milliseconds(1)));
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  // Also limits connect().
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (::connect(socket.get(), list->ai_addr, list->ai_addrlen) != 0) {
    return Failed(address, std::strerror(errno));
  }
  return socket;
}

}  // namespace

absl::StatusOr<Scrape> Scrape::Fetch(const std::string& address, absl::Time deadline) {
  CAIRN_ASSIGN_OR_RETURN(const Fd socket, Dial(address, deadline));
  const std::string request =
      absl::StrCat("GET /metrics HTTP/1.1\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) {
    return Failed(address, std::strerror(errno));
  }
  std::string reply;
  while (true) {  // ends: each turn adds bytes up to a limit, or returns
    char bytes[65536];
    const ssize_t count = ::recv(socket.get(), bytes, sizeof bytes, 0);
    if (count == 0) break;
    if (count < 0) {
      return errno == EAGAIN ? absl::DeadlineExceededError(
                                   absl::StrCat("http://", address, "/metrics does not respond"))
                             : Failed(address, std::strerror(errno));
    }
    reply.append(bytes, static_cast<size_t>(count));
    if (reply.size() > kReplyBytesMax) return Failed(address, "the answer does not complete");
  }
  const size_t head = reply.find("\r\n\r\n");
  if (!reply.starts_with("HTTP/1.1 200") || head == std::string::npos) {
    return Failed(address, reply.substr(0, std::min(reply.find('\r'), size_t{64})));
  }
  return Parse(std::string_view(reply).substr(head + 4));
}

Scrape Scrape::Parse(std::string_view text) {
  Scrape scrape;
  for (const absl::string_view line : absl::StrSplit(ToAbsl(text), '\n')) {
    const size_t space = line.rfind(' ');
    double value = 0;
    if (line.empty() || line[0] == '#' || space == absl::string_view::npos ||
        !absl::SimpleAtod(line.substr(space + 1), &value)) {
      continue;
    }
    const absl::string_view series = line.substr(0, space);
    const size_t brace = std::min(series.find('{'), series.size());
    scrape.series_.emplace(std::string(series.substr(0, brace)),
                           std::pair(std::string(series.substr(brace)), value));
  }
  return scrape;
}

double Scrape::Sum(std::string_view name, std::initializer_list<std::string_view> labels) const {
  double sum = 0;
  const auto [begin, end] = series_.equal_range(name);
  for (auto it = begin; it != end; ++it) {
    const auto& [held, value] = it->second;
    const bool has_all = std::ranges::all_of(
        labels, [&held](std::string_view label) { return held.find(label) != std::string::npos; });
    sum += has_all ? value : 0;
  }
  return sum;
}

std::string Scrape::LabelOf(std::string_view name, std::string_view key) const {
  const auto found = series_.find(name);
  if (found == series_.end()) return "";
  const std::string& labels = found->second.first;
  const std::string begin = absl::StrCat(ToAbsl(key), "=\"");
  const size_t at = labels.find(begin);
  if (at == std::string::npos) return "";
  return labels.substr(at + begin.size(), labels.find('"', at + begin.size()) - at - begin.size());
}

}  // namespace cairn::cli
