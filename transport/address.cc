// SPDX-License-Identifier: Apache-2.0
#include "transport/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/text.h"

namespace cairn::transport {
namespace {

absl::StatusOr<std::vector<SocketAddress>> Lookup(std::string_view host, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(std::string(host).c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("host '", ToAbsl(host), "': ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.bytes = entry->ai_addrlen;
  }
  return addresses;
}

bool SameHost(const sockaddr* a, const sockaddr* b) {
  if (a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  if (a->sa_family == AF_INET6) {
    return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                       &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
  }
  return false;
}

bool IsWildcard(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr == INADDR_ANY;
  }
  return IN6_IS_ADDR_UNSPECIFIED(
             &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr) != 0;
}

}  // namespace

absl::StatusOr<SocketAddress> ParseLocalAddress(std::string_view host, uint16_t port) {
  const auto found = Lookup(host, port, AI_NUMERICHOST | AI_PASSIVE);
  if (host.empty() || !found.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data address '", ToAbsl(host), "' is not a numeric address"));
  }
  const SocketAddress& address = found->front();
  if (IsWildcard(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data address '", ToAbsl(host),
                     "' is the wildcard; name the address of one interface, because whoever "
                     "reaches a UCX port can crash or rewrite the process"));
  }
  return address;
}

absl::StatusOr<std::vector<SocketAddress>> ResolveAddresses(std::string_view host, uint16_t port) {
  if (host.empty()) return absl::InvalidArgumentError("the host is empty");
  return Lookup(host, port, 0);
}

absl::StatusOr<std::string> InterfaceOf(const SocketAddress& address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return absl::InternalError(absl::StrCat("getifaddrs: ", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr != nullptr && SameHost(entry->ifa_addr, address.get())) {
      return std::string(entry->ifa_name);
    }
  }
  // The loopback interface has all addresses of 127.0.0.0/8, but lists only one.
  if (address.storage.ss_family == AF_INET &&
      (ntohl(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr) >> 24) ==
          IN_LOOPBACKNET) {
    return std::string("lo");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no local interface has the address ", AddressText(address)));
}

std::optional<SocketAddress> FirstAddressOf(const std::string& interface, int family) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family ||
        interface != entry->ifa_name) {
      continue;
    }
    SocketAddress address;
    address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, entry->ifa_addr, address.bytes);
    return address;
  }
  return std::nullopt;
}

bool IsSameHost(const SocketAddress& a, const SocketAddress& b) {
  return SameHost(a.get(), b.get());
}

std::string HostText(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.family() == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  } else {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
  }
  return text;
}

absl::StatusOr<std::string> InterfaceTowards(const SocketAddress& address) {
  const Fd probe(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Connecting a datagram socket sends nothing. The kernel only looks up the route.
  if (!probe.is_valid() || ::connect(probe.get(), address.get(), address.bytes) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no route to ", AddressText(address), ": ", std::strerror(errno)));
  }
  SocketAddress local;
  local.bytes = sizeof(local.storage);
  if (::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&local.storage), &local.bytes) != 0) {
    return absl::InternalError(absl::StrCat("getsockname: ", std::strerror(errno)));
  }
  return InterfaceOf(local);
}

std::string AddressText(const SocketAddress& address) {
  // Sockaddr_in and sockaddr_in6 have the port at the same offset.
  const uint16_t port = ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
  const std::string host = HostText(address);
  return address.family() == AF_INET6 ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

}  // namespace cairn::transport
