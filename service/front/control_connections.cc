// SPDX-License-Identifier: Apache-2.0
#include "service/front/control_connections.h"

#include <sys/socket.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "base/text.h"

namespace cairn {

void ControlConnections::Add(int fd, Fd ours, const Peer& peer, bool is_apart, uint64_t party) {
  const MutexLock lock(mutex_);
  Connection& connection = connections_[peer.number];
  connection.fd = fd;
  connection.ours = std::move(ours);
  connection.peer = peer;
  connection.party = party;
  connection.is_apart = is_apart;
  numbers_[fd] = peer.number;
  Enter(connection);
}

void ControlConnections::Enter(Connection& connection) {
  connection.turn = ++turns_;
  by_turn_.emplace(connection.turn, connection.peer.number);
  const std::optional<uint64_t> goes = Of(connection).Add(connection.turn, connection.party);
  if (!goes.has_value()) return;
  Connection& old = connections_.at(by_turn_.at(*goes));
  by_turn_.erase(*goes);
  old.turn = 0;
  ended_.Add();
  // Does not wait. gRPC sees the end of the connection and closes it. The connection is then
  // removed.
  ::shutdown(old.ours.get(), SHUT_RDWR);
}

void ControlConnections::Leave(Connection& connection) {
  if (connection.turn == 0) return;
  Of(connection).Remove(connection.turn);
  by_turn_.erase(connection.turn);
  connection.turn = 0;
}

void ControlConnections::Remove(uint64_t number) {
  Fd ours;  // closed after the lock is released
  const MutexLock lock(mutex_);
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  Leave(found->second);
  const auto named = numbers_.find(found->second.fd);
  if (named != numbers_.end() && named->second == number) numbers_.erase(named);
  ours = std::move(found->second.ours);
  connections_.erase(found);
}

ControlConnections::Peer ControlConnections::PeerOf(std::string_view peer) const {
  constexpr std::string_view kPrefix = "fd:";
  int fd = 0;
  if (!peer.starts_with(kPrefix) || !absl::SimpleAtoi(ToAbsl(peer.substr(kPrefix.size())), &fd)) {
    return {};
  }
  const MutexLock lock(mutex_);
  const auto found = numbers_.find(fd);
  return found == numbers_.end() ? Peer() : connections_.at(found->second).peer;
}

void ControlConnections::BeginSession(uint64_t number) {
  const MutexLock lock(mutex_);
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  ++found->second.sessions;
  Leave(found->second);
}

void ControlConnections::EndSession(uint64_t number) {
  const MutexLock lock(mutex_);
  const auto found = connections_.find(number);
  if (found == connections_.end() || --found->second.sessions > 0) return;
  Enter(found->second);
}

size_t ControlConnections::count() const {
  const MutexLock lock(mutex_);
  return connections_.size();
}

}  // namespace cairn
