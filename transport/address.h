// SPDX-License-Identifier: Apache-2.0
#pragma once
// Addresses for listening and connecting, and the network interfaces that have them.
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

// Parses a numeric address. Errors: InvalidArgument for a name, and for the wildcard address, which
// would open the data plane on every interface.
absl::StatusOr<SocketAddress> ParseLocalAddress(std::string_view host, uint16_t port);

// Returns the addresses of a name in the order in which to try them, at least one. For a numeric
// address, returns that address. The system resolves names, with its own timeouts. Errors:
// Unavailable if the name does not resolve.
absl::StatusOr<std::vector<SocketAddress>> ResolveAddresses(std::string_view host, uint16_t port);

// Returns the interface that has `address`. Errors: InvalidArgument if there is none.
absl::StatusOr<std::string> InterfaceOf(const SocketAddress& address);

// Returns the first address of `family` (AF_INET or AF_INET6) on `interface`, or nullopt. UCX opens
// its own ports at that address.
std::optional<SocketAddress> FirstAddressOf(const std::string& interface, int family);

// Returns whether the hosts are equal. Ignores the ports.
bool IsSameHost(const SocketAddress& a, const SocketAddress& b);

// Returns the network interface that the route to `address` uses. Errors: Unavailable if there is
// no route.
absl::StatusOr<std::string> InterfaceTowards(const SocketAddress& address);

// Returns a text such as "127.0.0.1" or "::1".
std::string HostText(const SocketAddress& address);
// Returns a text such as "127.0.0.1:4000" or "[::1]:4000".
std::string AddressText(const SocketAddress& address);

}  // namespace cairn::transport
