// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "tests/e2e/daemon/raw_client.h"
#include "tests/fault/daemon/raw_socket.h"
#include "tests/fault/hostile/attacks.h"

namespace cairn {
namespace {

bool IsOver(const Attack& attack) { return MonotonicNow() >= attack.until; }

std::string Packet(const transport::Envelope& envelope, const proto::Frame& frame) {
  return Text(transport::Serialize(envelope, proto::Serialize(frame)));
}

// A socket that was greeted, with `memory` as the client's region; not valid if it was refused.
Fd Greet(const Attack& attack, const proto::Ticket& ticket, const Fd& memory, uint64_t bytes) {
  Fd socket = ConnectSocket(attack.daemon.endpoint("socket"));
  proto::Frame frame;
  frame.seq = 1;
  frame.ticket = ticket;
  frame.body = proto::Hello{.window = 32, .region_bytes = bytes};
  transport::Envelope envelope;
  envelope.direction = transport::Direction::kRequest;
  SendWithFd(socket.get(), Packet(envelope, frame), memory.get());
  return ReadAnswer(socket.get()).ok() ? std::move(socket) : Fd();
}

}  // namespace

void GreetWithBadTickets(Attack& attack) {
  const Fd memory = Written(MakeMemory(1 << 20, true), 1 << 20);
  while (!IsOver(attack)) {
    proto::Ticket ticket{};
    for (auto& byte : ticket) byte = static_cast<std::byte>(attack.random());
    (void)Greet(attack, ticket, memory, 1 << 20);
    ++attack.blows;
  }
}

void HoldLoans(Attack& attack) {
  const ToyShape shape;
  const auto client = RawClient::Open(attack.daemon.endpoint("control"), "attacker");
  if (!client.ok()) return;
  const auto space = (*client)->OpenSpace(ToySpec("attacker", shape));
  if (!space.ok()) return;
  const std::vector<std::byte> source = ToySource(0, shape.whole(), shape);
  std::vector<std::byte> target(2 * source.size());
  while (!IsOver(attack)) {
    const auto connection = (*client)->Dial(uint64_t{1} << 20);
    if (!connection.ok() || !(*connection)->is_mapped()) continue;
    const proto::BlockKey key = ToyKey(attack.random() % 64);
    // Refused or not: others may have had it evicted.
    (void)AskOk(**connection, (*client)->PutFrame(*space, key, shape.whole(), source, shape),
                source);
    std::deque<transport::Call> held;
    for (int i = 0; i < 600 && !IsOver(attack) && !(*connection)->broken(); ++i) {
      transport::Call& get = held.emplace_back();
      proto::Frame frame = (*client)->GetFrame(*space, key, shape.whole(), target.size());
      if (i % 2 == 1) {  // a head of each layer: a loan of several places
        auto& slice = std::get<proto::Get>(frame.body);
        slice.form = proto::Form::kImage;
        slice.slice.head_first = shape.heads - 1;
        slice.slice.head_count = 1;
      }
      get.request = proto::Serialize(frame);
      get.target = target;
      get.takes_loan = true;
      get.deadline = MonotonicNow() + absl::Seconds(5);
      if (!(*connection)->Start(&get).ok()) break;
      while (!get.over()) (*connection)->Poll(get.deadline);
      if (get.loan != nullptr) ++attack.blows;
      // Some are given back at once, most are held, and some go with the connection.
      if (attack.random() % 8 == 0) held.pop_back();
    }
    if (attack.random() % 2 == 0) held.clear();
  }
}

void PutFromHoles(Attack& attack) {
  constexpr uint64_t kRegionBytes = uint64_t{64} << 20;
  const ToyShape shape = BigToy();
  const auto client = RawClient::Open(attack.daemon.endpoint("control"), "attacker");
  if (!client.ok()) return;
  const auto space = (*client)->OpenSpace(ToySpec("attacker", shape));
  if (!space.ok()) return;
  const uint64_t payload_bytes = uint64_t{4} << 20;
  const std::vector<std::byte> zeros(payload_bytes);
  std::vector<Fd> memories, sockets;
  while (memories.size() < 16 && !IsOver(attack)) {
    Fd& memory = memories.emplace_back(MakeMemory(kRegionBytes, true));
    memory = Written(std::move(memory), kRegionBytes);
    Fd socket = Greet(attack, (*client)->ticket(), memory, kRegionBytes);
    if (socket.get() < 0) continue;
    // The daemon has looked at it: now its pages go.
    (void)::fallocate(memory.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kRegionBytes);
    for (uint64_t place = 0; place + payload_bytes <= kRegionBytes; place += payload_bytes) {
      transport::Envelope envelope;
      envelope.direction = transport::Direction::kRequest;
      envelope.payload_place = place;
      envelope.payload_bytes = payload_bytes;
      const proto::Frame frame =
          (*client)->PutFrame(*space, ToyKey(attack.random()), shape.whole(), zeros, shape);
      SendWithFd(socket.get(), Packet(envelope, frame), -1);
      (void)ReadAnswer(socket.get());
      ++attack.blows;
    }
    sockets.push_back(std::move(socket));
  }
  while (!IsOver(attack)) absl::SleepFor(absl::Milliseconds(20));
}

void MutateFrames(Attack& attack) {
  const auto client = RawClient::Open(attack.daemon.endpoint("control"), "attacker");
  if (!client.ok()) return;
  const auto space = (*client)->OpenSpace(ToySpec("attacker"));
  if (!space.ok()) return;
  const auto content = ToySource(1, WholeToy());
  while (!IsOver(attack)) {
    const Fd memory = Written(MakeMemory(1 << 20, true), 1 << 20);
    std::ignore = ::pwrite(memory.get(), content.data(), content.size(), 0);
    const Fd socket = Greet(attack, (*client)->ticket(), memory, 1 << 20);
    if (socket.get() < 0) continue;
    for (int i = 0; i < 8; ++i) {
      transport::Envelope envelope;
      envelope.direction = transport::Direction::kRequest;
      const bool is_put = attack.random() % 2 == 0;
      (is_put ? envelope.payload_bytes : envelope.reply_capacity_bytes) = content.size();
      const proto::Frame frame =
          is_put ? (*client)->PutFrame(*space, ToyKey(1), WholeToy(), content)
                 : (*client)->GetFrame(*space, ToyKey(1), WholeToy(), content.size());
      std::string packet = Packet(envelope, frame);
      for (uint64_t flips = attack.random() % 4; flips > 0; --flips) {
        packet[attack.random() % packet.size()] = static_cast<char>(attack.random());
      }
      if (attack.random() % 8 == 0) packet.resize(attack.random() % packet.size());
      SendWithFd(socket.get(), packet, -1);
      ++attack.blows;
    }
  }
}

void HoldDescriptors(Attack& attack) {
  std::vector<Fd> held;
  while (!IsOver(attack)) {
    for (const char* name : {"control", "http"}) {
      if (held.size() < 1500) held.push_back(ConnectTcp(attack.daemon.port(name)));
    }
    attack.blows = held.size();
    if (held.size() < 1500) held.push_back(ConnectSocket(attack.daemon.endpoint("socket")));
    if (held.size() >= 1500) absl::SleepFor(absl::Milliseconds(20));
  }
}

void StormHttp(Attack& attack) {
  for (; !IsOver(attack); ++attack.blows) {
    std::vector<Fd> some;
    for (int i = 0; i < 100; ++i) {
      const Fd& fd = some.emplace_back(ConnectTcp(attack.daemon.port("http")));
      if (i % 2 == 0) (void)::send(fd.get(), "GET /metr", 9, MSG_NOSIGNAL);
    }
  }
}

}  // namespace cairn
