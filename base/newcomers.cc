// SPDX-License-Identifier: Apache-2.0
#include "base/newcomers.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/peer_identity.h"

namespace cairn {
namespace {

// The upper bits distinguish users, IPv4 hosts and IPv6 networks.
constexpr uint64_t kIpv4 = uint64_t{1} << 32;
constexpr uint64_t kIpv6 = uint64_t{1} << 63;
constexpr uint64_t kUnknown = uint64_t{1} << 33;
constexpr uint64_t kDoor = uint64_t{1} << 34;

uint64_t Ipv4Party(const void* address) {
  uint32_t host = 0;
  std::memcpy(&host, address, sizeof host);
  return kIpv4 | host;
}

}  // namespace

uint64_t PartyOf(int socket) {
  const PeerIdentity identity = PeerIdentityOf(socket);
  if (const UnixPeer* user = identity.unix_peer()) return user->uid;
  sockaddr_storage storage{};
  socklen_t bytes = sizeof storage;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0) return kUnknown;
  if (storage.ss_family == AF_INET) {
    return Ipv4Party(&reinterpret_cast<const sockaddr_in&>(storage).sin_addr);
  }
  if (storage.ss_family != AF_INET6) return kUnknown;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&address)) return Ipv4Party(address.s6_addr + 12);
  uint64_t network = 0;  // a host can use every address of its /64 network
  std::memcpy(&network, &address, sizeof network);
  return kIpv6 | network;
}

uint64_t PartyOfDoor(size_t index) { return kDoor | index; }

std::optional<uint64_t> Newcomers::Add(uint64_t id, uint64_t party) {
  CAIRN_CHECK(party_of_.empty() || id > party_of_.rbegin()->first);
  party_of_.emplace(id, party);
  ids_of_[party].insert(id);
  if (party_of_.size() <= count_max_) return std::nullopt;
  const uint64_t oldest = *ids_of_.at(LargestParty()).begin();
  Remove(oldest);
  return oldest;
}

bool Newcomers::Remove(uint64_t id) {
  const auto found = party_of_.find(id);
  if (found == party_of_.end()) return false;
  const auto party = ids_of_.find(found->second);
  party->second.erase(id);
  if (party->second.empty()) ids_of_.erase(party);
  party_of_.erase(found);
  return true;
}

uint64_t Newcomers::LargestParty() const {
  return std::max_element(ids_of_.begin(), ids_of_.end(),
                          [](const auto& a, const auto& b) {
                            return a.second.size() != b.second.size()
                                       ? a.second.size() < b.second.size()
                                       : *a.second.begin() > *b.second.begin();
                          })
      ->first;
}

}  // namespace cairn
