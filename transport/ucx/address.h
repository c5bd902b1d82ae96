// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a server listens and a client connects, and the one network interface that may carry it.
// Thread-safety: all functions are Thread-safe.

#include <netinet/in.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace cairn::transport {

// An IPv4 or IPv6 address with its port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

// A numeric address. InvalidArgument for a name, and for the wildcard, which would open the data
// plane on every interface.
absl::StatusOr<SocketAddress> ParseLocalAddress(std::string_view host, uint16_t port);

// All addresses of a name, in the order to try them in, at least one; or a numeric address.
// Unavailable when the name does not resolve. A name is asked of the system's resolver, whose own
// time limits hold.
absl::StatusOr<std::vector<SocketAddress>> ResolveAddresses(std::string_view host, uint16_t port);

// The interface that holds `address`. InvalidArgument when none does.
absl::StatusOr<std::string> InterfaceOf(const SocketAddress& address);

// The first address of AF_INET or AF_INET6 that `interface` lists: the one that UCX opens its own
// ports at. None where it has none.
std::optional<SocketAddress> FirstAddressOf(const std::string& interface, int family);

// Whether both have the same host, whatever their ports.
bool IsSameHost(const SocketAddress& a, const SocketAddress& b);

// The interface through which this host would reach `address`. Unavailable when there is no route.
absl::StatusOr<std::string> InterfaceTowards(const SocketAddress& address);

// "127.0.0.1" or "::1".
std::string HostText(const SocketAddress& address);
// "127.0.0.1:4000" or "[::1]:4000".
std::string AddressText(const SocketAddress& address);

}  // namespace cairn::transport
