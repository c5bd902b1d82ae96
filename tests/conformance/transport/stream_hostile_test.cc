// SPDX-License-Identifier: Apache-2.0
// Peers of transport/stream that mean harm, before and after they have proved who they are. A good
// client is served all along.
//
// CAIRN_HOSTILE_ROUNDS: mutated bytes of handshakes, and mutated chunks; `make soak` sets many.
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <random>

#include "tests/conformance/transport/stream_under_test.h"
#include "tests/conformance/transport/test_daemon.h"
#include "tests/support/from_environment.h"
#include "tests/support/metric_capture.h"
#include "tests/support/random.h"
#include "tests/support/raw_tls.h"
#include "tests/support/wait.h"
#include "transport/address.h"
#include "transport/stream/chunk.h"
#include "transport/stream/socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::transport {
namespace {

int Rounds(int few) { return FromEnvironment("CAIRN_HOSTILE_ROUNDS", few); }

// Waits a little for the daemon to end the connection.
void AwaitEnd(int socket) {
  const absl::Time until = MonotonicNow() + absl::Milliseconds(50);
  std::array<char, 4096> dropped;
  while (MonotonicNow() < until) {
    pollfd ready{.fd = socket, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, 50) == 1 &&
        ::recv(socket, dropped.data(), dropped.size(), MSG_DONTWAIT) <= 0) {
      break;
    }
  }
  CloseAtOnce(socket);
}

std::string HelloWire() {
  proto::Frame hello = HelloFrame();
  hello.seq = 1;
  return RequestWire(hello);
}

class StreamHostileTest : public testing::Test {
 protected:
  StreamHostileTest() {
    pki_ = std::make_unique<TestPki>(folder_.path().string());
    files_ = Open("server", TlsRole::kServer);
    client_files_ = Open("client", TlsRole::kClient);
  }
  std::unique_ptr<TlsFiles> Open(const std::string& name, TlsRole role) {
    auto files = TlsFiles::Open({.certificate = pki_->File(name + ".pem"),
                                 .key = pki_->File(name + ".key"),
                                 .ca = {{.domain = "", .path = pki_->File("ca.pem")}},
                                 .crl = ""},
                                role);
    CAIRN_CHECK(files.ok(), files.status().ToString());
    return *std::move(files);
  }
  void Start(HandshakeLimits handshake_limits = {.per_second_max = 100'000}) {
    handshakes_ = std::make_unique<Handshakes>(*files_, handshake_limits);
    handshakes_->Start();
    auto server =
        StartStreamServer({.host = "127.0.0.1", .limits = {.lanes = 1}}, *handshakes_, daemon_);
    CAIRN_CHECK(server.ok(), server.status().ToString());
    server_ = *std::move(server);
    good_ = Connect();
  }
  std::unique_ptr<Connection> Connect() {
    const auto target = ParseTarget(server_->address());
    auto connection = StreamConnection::Connect(target->host, target->port, HelloFrame(),
                                                {.files = client_files_.get()},
                                                MonotonicNow() + absl::Seconds(20), nullptr);
    CAIRN_CHECK(connection.ok(), connection.status().ToString());
    return *std::move(connection);
  }
  std::unique_ptr<RawTls> Raw() {
    return std::make_unique<RawTls>(ConnectFrom(0, ParseTarget(server_->address())->port),
                                    *client_files_, kStreamAlpn);
  }
  std::unique_ptr<RawTls> Proved(const std::string& first = HelloWire()) {
    auto raw = Raw();
    CAIRN_CHECK(raw->Shake());
    CAIRN_CHECK(raw->Send(std::as_bytes(std::span(first))));
    return raw;
  }
  // The good client puts and gets.
  void ExpectServed() {
    const uint64_t number = ++served_;
    const proto::BlockKey key = KeyOf(number % 16);  // a soak must not fill the memory
    const std::vector<std::byte> bytes = Pattern(150'000, number);
    Call put;
    put.payload = bytes;
    ASSERT_EQ(Exchange(*good_, put, PutFrame(2 * number, key, bytes)), absl::OkStatus());
    std::vector<std::byte> target(bytes.size());
    Call get;
    get.target = target;
    ASSERT_EQ(Exchange(*good_, get, GetFrame(2 * number + 1, key, target.size())),
              absl::OkStatus());
    EXPECT_TRUE(target == bytes);
  }
  double Metric(const std::string& name) {
    MetricCapture capture;
    server_->Report(capture);
    handshakes_->Report(capture);
    double sum = 0;
    for (const auto& [series, value] : capture.values()) {
      sum += series.substr(0, series.find('{')) == name ? value : 0;
    }
    return sum;
  }
  std::string Flights() { return ClientFlights(*files_, *client_files_, kStreamAlpn); }
  void TearDown() override {
    if (server_ == nullptr) return;
    ExpectServed();
    EXPECT_FALSE(good_->broken());
    EXPECT_EQ(daemon_.mismatches.load(), 0);
    good_.reset();
    server_->Stop();
    EXPECT_EQ(daemon_.transfers_begun.load(), daemon_.transfers_over.load());
  }

  TempDir folder_;
  std::unique_ptr<TestPki> pki_;
  std::unique_ptr<TlsFiles> files_, client_files_;
  TestDaemon daemon_;
  std::unique_ptr<Handshakes> handshakes_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Connection> good_;
  uint64_t served_ = 0;
};

// --- Before the proof ----------------------------------------------------------------------------

TEST_F(StreamHostileTest, HandshakesCutAtEveryByte) {
  Start();
  const std::string sent = Flights();
  const size_t step = std::max<size_t>(1, sent.size() / static_cast<size_t>(Rounds(60)));
  const auto target = ParseTarget(server_->address());
  const auto addresses = ResolveAddresses(target->host, target->port);
  for (size_t cut = 0; cut < sent.size(); cut += step) {
    auto socket = ConnectTcp(addresses->front(), MonotonicNow() + absl::Seconds(5));
    ASSERT_TRUE(socket.ok()) << socket.status();
    ::send(socket->get(), sent.data(), cut, MSG_NOSIGNAL);
  }
  ExpectServed();
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_tls_handshakes_running") == 0; }));
  EXPECT_EQ(Metric("cairn_transport_peers"), 1);
}

TEST_F(StreamHostileTest, MutatedHandshakes) {
  Start();
  std::mt19937_64 random = SeededRandom();
  const std::string sent = Flights();
  const auto target = ParseTarget(server_->address());
  const auto addresses = ResolveAddresses(target->host, target->port);
  const int wanted = Rounds(150);
  int changed_bytes = 0, handshakes = 0;
  while (changed_bytes < wanted) {
    std::string mutated = sent;
    for (uint64_t n = 1 + random() % 4; n > 0; --n) {
      mutated[random() % mutated.size()] = static_cast<char>(random());
      ++changed_bytes;
    }
    auto socket = ConnectTcp(addresses->front(), MonotonicNow() + absl::Seconds(5));
    ASSERT_TRUE(socket.ok()) << socket.status();
    ::send(socket->get(), mutated.data(), mutated.size(), MSG_NOSIGNAL);
    AwaitEnd(socket->get());
    if (handshakes++ % 50 == 0) ExpectServed();
  }
  std::printf("%d mutated bytes in %d handshakes\n", changed_bytes, handshakes);
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_tls_handshakes_running") == 0; }));
  EXPECT_EQ(Metric("cairn_transport_peers"), 1) << "none of them is a peer";
}

TEST_F(StreamHostileTest, HalfOpenHandshakesTakeLittleMemory) {
  Start({.running_max = 64,
         .running_per_party_max = 64,
         .per_second_max = 100'000,
         .time_max = absl::Seconds(30)});
  const size_t hello_bytes = Flights().size() / 4;
  const std::string hello = Flights().substr(0, hello_bytes);
  const size_t before = mallinfo2().uordblks;
  std::vector<Fd> flood;
  const auto target = ParseTarget(server_->address());
  const auto addresses = ResolveAddresses(target->host, target->port);
  for (int i = 0; i < 400; ++i) {
    auto socket = ConnectTcp(addresses->front(), MonotonicNow() + absl::Seconds(5));
    ASSERT_TRUE(socket.ok()) << socket.status();
    ::send(socket->get(), hello.data(), hello.size(), MSG_NOSIGNAL);
    flood.push_back(*std::move(socket));
  }
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_tls_handshakes_running") == 64; }));
  EXPECT_LE(mallinfo2().uordblks, before + (size_t{32} << 20));
  ExpectServed();
}

TEST_F(StreamHostileTest, ADribblingHandshakeEndsInTime) {
  Start({.time_max = absl::Milliseconds(300)});
  const std::string sent = Flights();
  const auto raw = Raw();
  bool is_closed = false;
  for (size_t i = 0; i < 200 && !is_closed; ++i) {
    ::send(raw->socket(), &sent[i], 1, MSG_NOSIGNAL);
    pollfd ready{.fd = raw->socket(), .events = POLLIN, .revents = 0};
    char byte = 0;
    is_closed = ::poll(&ready, 1, 20) == 1 && ::recv(raw->socket(), &byte, 1, MSG_DONTWAIT) <= 0;
  }
  EXPECT_TRUE(is_closed);
}

// --- After it ------------------------------------------------------------------------------------

TEST_F(StreamHostileTest, ChunksOutsideTheProtocolEndTheConnection) {
  Start();
  const std::vector<std::byte> bytes = Pattern(200'000, 1);
  const std::span<const std::byte> some = std::span(bytes).first(100);
  const auto data = [&](uint64_t seq, size_t count) {
    Chunk chunk;
    chunk.kind = ChunkKind::kData;
    chunk.seq = seq;
    chunk.data_bytes = static_cast<uint32_t>(count);
    return Wire(chunk, std::span(bytes).first(count));
  };
  Chunk go;
  go.kind = ChunkKind::kGo;
  go.seq = 2;
  Chunk reply;
  reply.kind = ChunkKind::kReply;
  reply.seq = 1;
  proto::Frame pong;
  pong.seq = 1;
  pong.body = proto::Pong{};
  reply.frame = proto::Serialize(pong);
  std::string bad_magic = HelloWire();
  bad_magic[0] ^= 1;
  std::string bad_kind = HelloWire();
  bad_kind[4] = 9;
  std::string reserved = HelloWire();
  reserved[20] = 1;
  std::string other_seq = HelloWire();
  other_seq[8] ^= 1;
  std::string no_frame = HelloWire();
  no_frame[6] = no_frame[7] = 0;
  std::string much_inline = HelloWire();
  much_inline[18] = 2;  // 128 KiB
  const std::string put = RequestWire(PutFrame(2, KeyOf(7), bytes), bytes);
  const std::pair<const char*, std::string> cases[] = {
      {"magic", bad_magic},
      {"kind", bad_kind},
      {"reserved", reserved},
      {"seq", other_seq},
      {"frame", no_frame},
      {"inline", much_inline},
      {"data that nobody asked for", data(5, 100)},
      {"go from a client", Wire(go)},
      {"reply from a client", Wire(reply)},
      {"the same put twice", put + put},
      {"more than the put has", put + data(2, 200'000) + data(2, 1)},
      {"text", "GET / HTTP/1.1\r\n\r\n........"},
  };
  for (const auto& [name, wire] : cases) {
    SCOPED_TRACE(name);
    const double broken = Metric("cairn_transport_peers_broken_total");
    const auto raw = Proved();
    raw->Send(std::as_bytes(std::span(wire)));
    EXPECT_TRUE(raw->IsClosed());
    EXPECT_EQ(Metric("cairn_transport_peers_broken_total"), broken + 1);
    ExpectServed();
  }
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_arrivals") == 0; }));
}

// A put, a get or a ping with bytes changed.
std::string MutatedOneOf(std::mt19937_64& random, uint64_t seq) {
  static const std::vector<std::byte> bytes = Pattern(kInlinePayloadBytesMax + 1, 1);
  const proto::BlockKey key = KeyOf(1000 + random() % 8);
  const std::span<const std::byte> small = std::span(bytes).first(random() % 64);
  proto::Frame ping;
  ping.seq = seq;
  ping.body = proto::Ping{};
  const uint64_t kind = random() % 64;
  const std::string whole = kind == 0 ? RequestWire(PutFrame(seq, key, bytes), bytes)  // needs `go`
                            : kind < 24 ? RequestWire(PutFrame(seq, key, small), small)
                            : kind < 44 ? RequestWire(GetFrame(seq, key, 64), {}, 64)
                                        : RequestWire(ping);
  const size_t front_bytes = whole.size() - (kind > 0 && kind < 24 ? small.size() : 0);
  return MutatedRequest(random, whole, front_bytes);
}

// A connection takes mutated requests until it ends, which is after a few. Those count that the
// daemon has answered, and those that ended a connection; not those that came too late.
TEST_F(StreamHostileTest, MutatedChunks) {
  daemon_.transfer_wait = absl::Seconds(2);
  Start();
  std::mt19937_64 random = SeededRandom();
  const int wanted = Rounds(2'000);
  int connections = 0, closed_here = 0;
  const auto judged = [&] {
    // Without the hellos, and what the good client has asked.
    const int honest = 1 + connections + closed_here + 2 * static_cast<int>(served_);
    return daemon_.arrivals.load() + daemon_.peers_gone.load() - honest;
  };
  while (judged() < wanted) {
    const auto raw = Proved();
    ++connections;
    uint64_t seq = 1;
    bool is_open = true;
    while (is_open && seq < 2'000) {
      std::string burst;
      for (int n = 0; n < 8; ++n) burst += MutatedOneOf(random, ++seq);
      is_open = raw->Send(std::as_bytes(std::span(burst))) && !raw->IsClosed(absl::ZeroDuration());
    }
    if (is_open) ++closed_here;
    CloseAtOnce(raw->socket());
    if (connections % 1'000 == 1) ExpectServed();
  }
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_peers") == 1; }));
  std::printf("%d mutated chunks on %d connections\n", judged(), connections);
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_arrivals") == 0; }));
  EXPECT_TRUE(
      WaitFor([&] { return daemon_.transfers_begun.load() == daemon_.transfers_over.load(); }));
  // What was damaged in a payload is what the daemon noticed by its CRC.
  EXPECT_GT(daemon_.mismatches.exchange(0), 0);
}

TEST_F(StreamHostileTest, WhoSaysNothingAfterTheProofIsEnded) {
  Start();
  const auto raw = Raw();
  ASSERT_TRUE(raw->Shake());
  EXPECT_TRUE(raw->IsClosed());
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_newcomers_dropped_total") == 1; }));
}

TEST_F(StreamHostileTest, WhoDoesNotReadIsBrokenAtTheDeadline) {
  daemon_.transfer_wait = absl::Milliseconds(500);
  Start();
  daemon_.Store(KeyOf(5), Pattern(8 << 20, 5));
  const auto raw = Proved();
  for (uint64_t seq = 2; seq < 10; ++seq) {
    const std::string get = RequestWire(GetFrame(seq, KeyOf(5), 8 << 20), {}, 8 << 20);
    ASSERT_TRUE(raw->Send(std::as_bytes(std::span(get))));
  }
  ExpectServed();
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_deadlines_exceeded_total") >= 1; }));
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_peers") == 1; }));
}

TEST_F(StreamHostileTest, RequestsWithoutEndAreLimited) {
  daemon_.intercept = [&](Lane&, Arrival&, const proto::Frame& frame) {
    return frame.kind() == proto::FrameKind::kPing;  // never answered
  };
  Start();
  const auto raw = Proved();
  proto::Frame ping;
  ping.body = proto::Ping{};
  bool is_taken = true;
  for (uint64_t seq = 2; seq < 2000 && is_taken; ++seq) {
    ping.seq = seq;
    const std::string wire = RequestWire(ping);
    is_taken = raw->Send(std::as_bytes(std::span(wire)));
  }
  EXPECT_TRUE(!is_taken || raw->IsClosed());
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_peers_broken_total") == 1; }));
}

TEST_F(StreamHostileTest, WhoRenewsItsKeysWithoutEndIsEnded) {
  Start();
  const auto raw = Proved();
  raw->session().SetKeyLimits({.records_per_key = 1, .updates_per_minute = 1e9});
  proto::Frame ping;
  ping.body = proto::Ping{};
  bool is_taken = true;
  for (uint64_t seq = 2; seq < 200 && is_taken; ++seq) {
    ping.seq = seq;
    const std::string wire = RequestWire(ping);
    is_taken = raw->Send(std::as_bytes(std::span(wire)));
  }
  EXPECT_TRUE(!is_taken || raw->IsClosed());
}

TEST_F(StreamHostileTest, WhoVanishesInTheMiddleLeavesNothing) {
  Start();
  const std::vector<std::byte> bytes = Pattern(300'000, 1);
  const std::string put = RequestWire(PutFrame(2, KeyOf(7), bytes), bytes);
  for (int i = 0; i < 10; ++i) {
    const auto raw = Proved(HelloWire() + put);
    // The hello's reply and `go` have come: half of the data, and it is gone.
    ASSERT_FALSE(raw->Read(kChunkHeadBytes).empty());
    Chunk half;
    half.kind = ChunkKind::kData;
    half.seq = 2;
    half.data_bytes = 150'000;
    const std::string data = Wire(half, std::span(bytes).first(100'000));
    raw->Send(std::as_bytes(std::span(data)));
  }
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_peers") == 1; }));
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_arrivals") == 0; }));
}

TEST_F(StreamHostileTest, ARevokedPeerIsEnded) {
  TlsPaths paths = files_->paths();
  WriteTestFile(pki_->File("crl.pem"), pki_->ca().Revoke({9999}));
  paths.crl = pki_->File("crl.pem");
  files_ = *TlsFiles::Open(paths, TlsRole::kServer);
  const TestCertificate other =
      pki_->Write("other", {.uris = {"spiffe://test.example/ns/team-b/sa/engine"}});
  Start();
  const auto files = Open("other", TlsRole::kClient);
  const auto target = ParseTarget(server_->address());
  auto connection =
      StreamConnection::Connect(target->host, target->port, HelloFrame(), {.files = files.get()},
                                MonotonicNow() + absl::Seconds(20), nullptr);
  ASSERT_TRUE(connection.ok()) << connection.status();
  WriteTestFile(pki_->File("crl.pem"), pki_->ca().Revoke({9999, other.serial}));
  EXPECT_TRUE(WaitFor([&] {
    (*connection)->Poll(MonotonicNow() + absl::Milliseconds(20));
    return (*connection)->broken();
  }));
  connection =
      StreamConnection::Connect(target->host, target->port, HelloFrame(), {.files = files.get()},
                                MonotonicNow() + absl::Seconds(20), nullptr);
  ASSERT_FALSE(connection.ok());
  EXPECT_THAT(std::string(connection.status().message()),
              testing::HasSubstr("it does not accept our certificate"));
}

}  // namespace
}  // namespace cairn::transport
