// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/hostile/attacks_tls.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/file.h"
#include "tests/e2e/daemon/raw_client.h"
#include "tests/support/raw_tls.h"
#include "transport/stream/connection.h"

namespace cairn {
namespace {

using transport::RawTls;

// Addresses are 127.0.1.0 and those after it: nobody else is there.
constexpr uint32_t kFirstNeighbour = 255;
constexpr uint32_t kNeighbours = 64;
constexpr absl::Duration kAnswerMax = absl::Milliseconds(600);  // a refused peer is kept for less

uint32_t Neighbour(TlsAttack& attack) {
  return kFirstNeighbour + static_cast<uint32_t>(attack.connections++ % kNeighbours);
}

// A connection that has said all that it says, and waits for its end.
struct Said {
  Fd socket;
  uint64_t weight = 0;  // blows, if the daemon ends it
  absl::Time until;
};

// Keeps `count` connections that each say what `say` returns, and counts those that were judged.
void Volley(TlsAttack& attack, size_t count,
            const std::function<std::pair<std::string, uint64_t>()>& say, bool ends_writing) {
  std::vector<Said> volley(count);
  std::vector<pollfd> polled(count);
  while (!attack.ends) {
    for (size_t i = 0; i < count; ++i) {
      Said& said = volley[i];
      char dropped[256];
      const bool is_over = said.socket.is_valid() &&
                           (polled[i].revents & (POLLIN | POLLHUP)) != 0 &&
                           ::recv(said.socket.get(), dropped, sizeof dropped, 0) <= 0;
      if (is_over) attack.blows += said.weight;
      if (said.socket.is_valid() && !is_over && MonotonicNow() < said.until) continue;
      auto [text, weight] = say();
      said.socket = transport::ConnectFrom(Neighbour(attack), attack.port);
      if (!said.socket.is_valid()) continue;
      transport::CloseAtOnce(said.socket.get());
      (void)::send(said.socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
      if (ends_writing) ::shutdown(said.socket.get(), SHUT_WR);
      said.weight = weight;
      said.until = MonotonicNow() + kAnswerMax;
    }
    for (size_t i = 0; i < count; ++i) polled[i] = {volley[i].socket.get(), POLLIN, 0};
    ::poll(polled.data(), count, 10);
  }
}

std::unique_ptr<RawTls> Proved(TlsAttack& attack) {
  while (!attack.ends) {
    Fd socket = transport::ConnectFrom(Neighbour(attack), attack.port);
    if (!socket.is_valid()) continue;
    transport::CloseAtOnce(socket.get());
    auto peer = std::make_unique<RawTls>(std::move(socket), attack.client_files, attack.alpn);
    if (peer->Shake()) return peer;
  }
  return nullptr;
}

// A session of the attacker, over gRPC's TLS.
std::unique_ptr<RawClient> OpenSession(TlsAttack& attack) {
  const transport::TlsFiles::Pems pems = attack.client_files.pems();
  auto client = RawClient::Open(attack.control, "attacker",
                                grpc::SslCredentials({.pem_root_certs = pems.ca,
                                                      .pem_private_key = pems.key,
                                                      .pem_cert_chain = pems.certificate}));
  return client.ok() ? *std::move(client) : nullptr;
}

// Puts block 1 over TLS.
bool PutBlock(TlsAttack& attack, RawClient& client, uint64_t space, const ToyShape& shape) {
  const auto connection = transport::StreamConnection::Connect(
      "127.0.0.1", attack.port, client.HelloFrame(client.ticket()), {.files = &attack.client_files},
      MonotonicNow() + absl::Seconds(10), nullptr);
  if (!connection.ok()) return false;
  const std::vector<std::byte> source = ToySource(1, shape.whole(), shape);
  const auto frame = client.PutFrame(space, ToyKey(1), shape.whole(), source, shape);
  return AskOk(**connection, frame, source).ok();
}

// --- HTTP/2 --------------------------------------------------------------------------------------

std::string Http2(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame.push_back(static_cast<char>(payload.size() >> shift));
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  for (const int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(stream >> shift));
  return absl::StrCat(frame, payload);
}

// Everything that a client of gRPC says before its first call, and windows that never close.
std::string Http2Preface() {
  const std::string wide("\x7f\xff\0\0", 4);
  const std::string wide_streams("\0\4\x7f\xff\xff\xff", 6);
  return absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Http2(4, 0, 0, wide_streams),
                      Http2(8, 0, 0, wide));
}

std::string Header(const std::string& name, const std::string& value) {
  return absl::StrCat(std::string(1, '\0'), std::string(1, static_cast<char>(name.size())), name,
                      std::string(1, static_cast<char>(value.size())), value);
}

// Sets *message_at to where the message begins.
std::string CallText(uint32_t stream, const std::string& method, const std::string& message,
                     size_t* message_at) {
  const std::string headers =
      absl::StrCat("\x83\x86", Header(":path", absl::StrCat("/cairn.v1.", method)),
                   Header(":authority", "daemon"), Header("te", "trailers"),
                   Header("content-type", "application/grpc"));
  std::string data(1, '\0');
  for (const int shift : {24, 16, 8, 0}) data.push_back(static_cast<char>(message.size() >> shift));
  const std::string begin = Http2(1, 4, stream, headers);
  *message_at = begin.size() + 9 + data.size();
  return begin + Http2(0, 1, stream, absl::StrCat(data, message));
}

// (method, message)
std::vector<std::pair<std::string, std::string>> CallsOf(RawClient& client) {
  v1::OpenSpaceRequest space;
  space.set_ticket(client.ticket_bytes());
  *space.mutable_spec() = ToySpec("attacker");
  const std::vector<proto::BlockKey> keys = {ToyKey(1), ToyKey(2)};
  const auto id = client.OpenSpace(space.spec());
  const std::string match = client.MatchOf(id.value_or(1), keys).SerializeAsString();
  v1::StatsRequest stats;
  stats.set_ticket(client.ticket_bytes());
  return {{"Store/OpenSpace", space.SerializeAsString()},
          {"Store/Match", match},
          {"Store/Contains", match},
          {"Store/Prefetch", match},
          {"Store/Delete", match},
          {"Store/Stats", stats.SerializeAsString()},
          {"Store/PutSideObject", match},
          {"Store/ListSideObjects", match.substr(0, 30)},
          {"Store/NoSuchMethod", "x"},
          {"Admin/ListSpaces", ""},
          {"Admin/ListBlocks", match.substr(18)}};
}

void Change(std::mt19937_64& random, std::string& text, size_t from) {
  for (uint64_t n = 1 + random() % 4; n > 0 && from < text.size(); --n) {
    text[from + random() % (text.size() - from)] = static_cast<char>(random());
  }
}

// What of a burst was judged: all of it, or at least the one that ended the connection.
constexpr int kBurst = 8;
void CountBurst(TlsAttack& attack, bool is_open) { attack.blows += is_open ? kBurst : 1; }

}  // namespace

// --- Before the proof ----------------------------------------------------------------------------

void MutateHandshakes(TlsAttack& attack) {
  const std::string sent =
      transport::ClientFlights(attack.server_files, attack.client_files, attack.alpn);
  const auto mutated = [&] {
    std::string text = sent;
    const uint64_t count = 1 + attack.random() % 8;
    for (uint64_t n = count; n > 0; --n) {
      // Most in the hello: what comes after it is sealed, so any change there is found alike.
      const size_t bytes = attack.random() % 4 == 0 ? text.size() : text.size() / 4;
      char& changed = text[attack.random() % bytes];
      changed = static_cast<char>(changed ^ static_cast<char>(1 + attack.random() % 255));
    }
    return std::pair(text, count);
  };
  Volley(attack, 32, mutated, /*ends_writing=*/true);
}

void CutHandshakes(TlsAttack& attack) {
  const std::string sent =
      transport::ClientFlights(attack.server_files, attack.client_files, attack.alpn);
  size_t cut = 0;
  const auto next = [&] { return std::pair(sent.substr(0, cut++ % sent.size()), uint64_t{1}); };
  Volley(attack, 32, next, /*ends_writing=*/true);
}

void CrowdSilently(TlsAttack& attack) {
  Volley(
      attack, 400, [] { return std::pair(std::string(), uint64_t{1}); }, /*ends_writing=*/false);
}

void DribbleHandshakes(TlsAttack& attack) {
  const std::string sent =
      transport::ClientFlights(attack.server_files, attack.client_files, attack.alpn);
  std::vector<std::pair<Fd, size_t>> peers(128);
  while (!attack.ends) {
    for (auto& [socket, at] : peers) {
      const bool is_taken = socket.is_valid() && at < sent.size() / 2 &&
                            ::send(socket.get(), &sent[at], 1, MSG_NOSIGNAL) == 1;
      ++at;
      if (is_taken) continue;
      socket = transport::ConnectFrom(Neighbour(attack), attack.port);
      if (socket.is_valid()) transport::CloseAtOnce(socket.get());
      at = 0;
      ++attack.blows;
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
}

// --- After the proof -----------------------------------------------------------------------------

void MutateCalls(TlsAttack& attack) {
  const auto client = OpenSession(attack);
  if (client == nullptr) return;
  const auto calls = CallsOf(*client);
  while (!attack.ends) {
    const auto peer = Proved(attack);
    bool is_open = peer != nullptr && peer->Send(Http2Preface());
    uint32_t stream = 1;
    while (is_open && !attack.ends && stream < 4'000) {
      std::string burst;
      for (int n = 0; n < kBurst; ++n, stream += 2) {
        const auto& [method, message] = calls[attack.random() % calls.size()];
        size_t message_at = 0;
        std::string text = CallText(stream, method, message, &message_at);
        // Most damage the message: other changes mostly end the connection.
        Change(attack.random, text, attack.random() % 32 == 0 ? 0 : message_at);
        burst += text;
      }
      is_open = peer->Send(burst) && !peer->IsClosed(absl::ZeroDuration());
      CountBurst(attack, is_open);
    }
  }
}

void MutateChunks(TlsAttack& attack) {
  const auto client = OpenSession(attack);
  if (client == nullptr) return;
  const ToyShape shape{.layers = 1, .heads = 1};
  const auto space = client->OpenSpace(ToySpec("attacker", shape));
  if (!space.ok()) return;
  const std::vector<std::byte> source = ToySource(0, shape.whole(), shape);
  const auto mutated = [&] {
    const proto::BlockKey key = ToyKey(attack.random() % 64);
    const bool is_put = attack.random() % 2 == 0;
    const proto::Frame frame =
        is_put ? client->PutFrame(*space, key, shape.whole(), source, shape)
               : client->GetFrame(*space, key, shape.whole(), source.size() * 2);
    const std::string whole = is_put ? transport::RequestWire(frame, source)
                                     : transport::RequestWire(frame, {}, source.size() * 2);
    const size_t front_bytes = whole.size() - (is_put ? source.size() : 0);
    return transport::MutatedRequest(attack.random, whole, front_bytes);
  };
  while (!attack.ends) {
    const auto peer = Proved(attack);
    bool is_open =
        peer != nullptr && peer->Send(transport::RequestWire(client->HelloFrame(client->ticket())));
    while (is_open && !attack.ends) {
      std::string burst;
      for (int n = 0; n < kBurst; ++n) burst += mutated();
      is_open = peer->Send(burst) && !peer->IsClosed(absl::ZeroDuration());
      CountBurst(attack, is_open);
    }
  }
}

void RenewKeys(TlsAttack& attack) {
  proto::Frame hello;
  hello.seq = 1;
  hello.body = proto::Hello{.window = 32};
  const std::string text = attack.is_control ? Http2Preface() : transport::RequestWire(hello);
  while (!attack.ends) {
    const auto peer = Proved(attack);
    if (peer == nullptr) return;
    peer->session().SetKeyLimits({.records_per_key = 1, .updates_per_minute = 1e9});
    for (size_t i = 0; i < text.size() && !attack.ends; ++i) {
      if (!peer->Send(text.substr(i, 1)) || peer->IsClosed(absl::ZeroDuration())) break;
      ++attack.blows;
    }
  }
}

void NeverRead(TlsAttack& attack) {
  const auto client = OpenSession(attack);
  if (client == nullptr) return;
  const ToyShape shape = BigToy();
  const auto space = client->OpenSpace(ToySpec("attacker", shape));
  if (!space.ok() || (!attack.is_control && !PutBlock(attack, *client, *space, shape))) return;
  const auto calls = CallsOf(*client);
  std::vector<std::unique_ptr<RawTls>> peers;
  while (!attack.ends) {
    if (peers.size() == 16) peers.erase(peers.begin());
    peers.push_back(Proved(attack));
    if (peers.back() == nullptr) return;
    std::string asked = attack.is_control
                            ? Http2Preface()
                            : transport::RequestWire(client->HelloFrame(client->ticket()));
    for (uint32_t i = 0; i < 16; ++i) {
      size_t ignored = 0;
      const uint64_t bytes = uint64_t{8} << 20;
      asked += attack.is_control
                   ? CallText(1 + 2 * i, calls[i % 6].first, calls[i % 6].second, &ignored)
                   : transport::RequestWire(
                         client->GetFrame(*space, ToyKey(1), shape.whole(), bytes), {}, bytes);
    }
    attack.blows += peers.back()->Send(asked, absl::Milliseconds(100)) ? 1 : 0;
  }
}

}  // namespace cairn
