// SPDX-License-Identifier: Apache-2.0
// Put and get of image sizes over UCX on loopback, as a ratio to ucx_perftest, and over the local
// transport, as a ratio to memcpy. Four calls in flight everywhere; memory goes round in rings
// larger than the last-level cache. One process: a lane thread and the client's.
//
//   put           the payload lands in the daemon's memory; "+crc": the lane takes its CRC32C too
//   get           it lands in the client's; "verified": the client checks the CRC in the reply
//
// The local transport always takes the CRC of a put: it is fused with its one copy.
//
// The stream transport is measured by the CPU time of each side: two threads that work at once
// share what the machine has left. Its yardsticks are memcpy, and a bare loop over TLS.
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "codecs/checksum/checksum.h"
#include "proto/frame.h"
#include "tests/bench/bench.h"
#include "tests/bench/transport_perftest.h"
#include "tests/support/tls_certificates.h"
#include "transport/connect.h"
#include "transport/local/server.h"
#include "transport/stream/server.h"
#include "transport/stream/socket.h"
#include "transport/transport.h"
#ifdef CAIRN_HAS_UCX
#include "transport/ucx/connection.h"
#include "transport/ucx/server.h"
#endif

namespace cairn::bench {
namespace {

using transport::Arrival;
using transport::Call;
using transport::Connection;
using transport::Lane;
using transport::PeerId;

constexpr int kDepth = 4;
constexpr size_t kRingBytes = size_t{128} << 20;

// Slots of one size, taken in turn.
class Ring {
 public:
  explicit Ring(std::span<std::byte> memory) : memory_(memory) {}
  std::span<std::byte> Next(size_t bytes) {
    if (at_ + bytes > memory_.size()) at_ = 0;
    return memory_.subspan(std::exchange(at_, at_ + bytes), bytes);
  }

 private:
  std::span<std::byte> memory_;
  size_t at_ = 0;
};

std::vector<std::byte> Filled(size_t bytes) {
  std::vector<std::byte> memory(bytes);
  for (size_t i = 0; i < bytes; ++i) memory[i] = static_cast<std::byte>(i * 7 + (i >> 11));
  return memory;
}

// A daemon that holds everything: puts land in a ring, gets are answered from one.
class RingStore final : public transport::LaneHandler {
 public:
  explicit RingStore(size_t get_bytes) {
    // The CRC of an image is known when it is stored; here, for each slot of the size measured.
    for (size_t at = 0; at + get_bytes <= source_.size(); at += get_bytes) {
      crcs_[at] = codecs::Crc32c(std::span(source_).subspan(at, get_bytes));
    }
  }

  void OnArrival(Lane& lane, Arrival arrival) override {
    const transport::ReplyTo reply_to = arrival.reply_to();
    const absl::StatusOr<proto::Frame> request = proto::ParseFrame(arrival.frame().bytes());
    CAIRN_CHECK(request.ok(), request.status().ToString());
    proto::Frame reply;
    reply.seq = request->seq;
    const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
    switch (request->kind()) {
      case proto::FrameKind::kHello:
        reply.body = proto::HelloReply{.version = 1, .window = 16, .payload_bytes_max = 64 << 20};
        return lane.Reply(reply_to, proto::Serialize(reply), {}, deadline,
                          [](const absl::Status&) {});
      case proto::FrameKind::kGet: {
        const auto payload = sources_.Next(std::get<proto::Get>(request->body).target_bytes);
        reply.body = proto::GetReply{};
        reply.payload_bytes = payload.size();
        reply.payload_crc32c = crcs_.at(static_cast<size_t>(payload.data() - source_.data()));
        return lane.Reply(reply_to, proto::Serialize(reply), payload, deadline,
                          [](const absl::Status&) {});
      }
      default:
        break;
    }
    reply.body = proto::PutReply{};
    const std::span<std::byte> target = targets_.Next(arrival.payload_bytes());
    lane.Receive(std::move(arrival), target, deadline,
                 [&lane, reply_to, reply, deadline](const transport::Received& received) {
                   CAIRN_CHECK(received.status.ok(), received.status.ToString());
                   lane.Reply(reply_to, proto::Serialize(reply), {}, deadline,
                              [](const absl::Status&) {});
                 });
  }
  void OnPeerGone(Lane&, PeerId) override {}

 private:
  std::vector<std::byte> source_ = Filled(kRingBytes);
  std::vector<std::byte> target_ = Filled(kRingBytes);
  Ring sources_{source_};
  Ring targets_{target_};
  std::map<size_t, uint32_t> crcs_;
};

proto::Frame HelloFrame() {
  proto::Frame frame;
  frame.seq = 1;
  frame.deadline_ms = 1000;
  frame.body = proto::Hello{.version_max = 1, .window = 16};
  return frame;
}

proto::FrameBytes Request(uint64_t seq, bool is_put, size_t bytes) {
  proto::Frame frame;
  frame.seq = seq;
  frame.deadline_ms = 60'000;
  if (is_put) {
    proto::Put put;
    put.space_id = 1;
    put.key.fill(std::byte{1});
    put.slice = {.layer_first = 0, .layer_count = 1, .head_first = 0, .head_count = 1};
    put.tokens = 128;
    frame.payload_bytes = bytes;
    frame.body = put;
  } else {
    proto::Get get;
    get.space_id = 1;
    get.key.fill(std::byte{1});
    get.slice = {.layer_first = 0, .layer_count = 1, .head_first = 0, .head_count = 1};
    get.target_bytes = bytes;
    frame.body = get;
  }
  return proto::Serialize(frame);
}

enum class Work { kPut, kGet, kGetVerified };

void CheckReply(const Call& call, Work work) {
  CAIRN_CHECK(call.status.ok(), call.status.ToString());
  if (work != Work::kGetVerified) return;
  const absl::StatusOr<proto::Frame> reply = proto::ParseFrame(call.reply.bytes());
  CAIRN_CHECK(reply.ok() && reply->payload_crc32c == codecs::Crc32c(call.target));
}

// `count` calls of `bytes`, kDepth in flight.
void Move(Connection& connection, Ring& ring, Work work, size_t bytes, size_t count) {
  static uint64_t seq = 1;
  std::vector<Call> calls(kDepth);
  std::vector<bool> is_used(kDepth, false);
  size_t started = 0;
  size_t over = 0;
  while (over < count) {
    for (size_t i = 0; i < calls.size(); ++i) {
      Call& call = calls[i];
      if (is_used[i] && call.over()) {
        CheckReply(call, work);
        is_used[i] = false;
        ++over;
      }
      if (is_used[i] || started == count) continue;
      call = Call{};
      call.deadline = MonotonicNow() + absl::Seconds(60);
      call.request = Request(++seq, work == Work::kPut, bytes);
      const std::span<std::byte> memory = ring.Next(bytes);
      if (work == Work::kPut) {
        call.payload = memory;
      } else {
        call.target = memory;
      }
      CAIRN_CHECK(connection.Start(&call).ok());
      is_used[i] = true;
      ++started;
    }
    if (over < count) connection.Poll(MonotonicNow() + absl::Seconds(1));
  }
}

// A server with its client, and the memory that the client works on.
struct Pair {
  std::unique_ptr<RingStore> store;
  std::unique_ptr<transport::Server> server;
  std::unique_ptr<Connection> connection;
  std::unique_ptr<transport::Buffer> buffer;
  std::unique_ptr<Ring> ring;

  void Ready() {
    auto allocated = connection->Allocate(kRingBytes);
    CAIRN_CHECK(allocated.ok(), allocated.status().ToString());
    buffer = *std::move(allocated);
    std::memset(buffer->bytes().data(), 1, kRingBytes);
    ring = std::make_unique<Ring>(buffer->bytes());
  }
};

Pair LocalPair(const std::string& folder, size_t bytes) {
  Pair pair;
  pair.store = std::make_unique<RingStore>(bytes);
  auto server = transport::StartLocalServer({absl::StrCat(folder, "/socket"), {}}, *pair.store);
  CAIRN_CHECK(server.ok(), server.status().ToString());
  pair.server = *std::move(server);
  transport::ConnectOptions options;
  options.region_bytes = kRingBytes + (64 << 20);
  auto connection = transport::Connect(pair.server->address(), HelloFrame(), options,
                                       MonotonicNow() + absl::Seconds(10));
  CAIRN_CHECK(connection.ok(), connection.status().ToString());
  pair.connection = *std::move(connection);
  pair.Ready();
  return pair;
}

#ifdef CAIRN_HAS_UCX
Pair UcxPair(size_t bytes, bool is_crc_computed) {
  Pair pair;
  pair.store = std::make_unique<RingStore>(bytes);
  transport::UcxServerOptions options;
  options.host = "127.0.0.1";
  auto server =
      transport::StartUcxServer(options, {.is_crc_computed = is_crc_computed}, *pair.store);
  CAIRN_CHECK(server.ok(), server.status().ToString());
  pair.server = *std::move(server);
  const std::string address = pair.server->address();
  auto connection = transport::UcxConnection::Connect(
      "127.0.0.1", static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))),
      HelloFrame(), {}, MonotonicNow() + absl::Seconds(10), nullptr);
  CAIRN_CHECK(connection.ok(), connection.status().ToString());
  pair.connection = *std::move(connection);
  pair.Ready();
  return pair;
}
#endif

// One line of the table: a rate, or a rate over that of the yardstick of its group.
struct Line {
  std::string name;
  double goal = 0;  // of the ratio; 0: none
  std::function<std::optional<double>()> rate;
  std::vector<double> rates = {};
  std::vector<double> ratios = {};
};

std::function<std::optional<double>()> Moving(Pair& pair, Work work, size_t bytes, size_t count) {
  return [&pair, work, bytes, count]() -> std::optional<double> {
    const double seconds = Seconds([&] { Move(*pair.connection, *pair.ring, work, bytes, count); });
    return static_cast<double>(bytes) * static_cast<double>(count) / seconds;
  };
}

// Every round runs every line once; the first is the yardstick of the others.
void RunGroup(std::vector<Line>& lines, int rounds) {
  for (int round = -1; round < rounds; ++round) {  // the first warms
    std::optional<double> yardstick;
    for (Line& line : lines) {
      const std::optional<double> rate = line.rate();
      if (&line == &lines.front()) yardstick = rate;
      if (!rate.has_value() || round < 0) continue;
      line.rates.push_back(*rate);
      if (yardstick.has_value()) line.ratios.push_back(*rate / *yardstick);
    }
  }
}

void PrintLines(const std::vector<Line>& lines) {
  for (const Line& line : lines) {
    const double ratio = line.ratios.empty() ? 0 : Median(line.ratios);
    std::printf("%-34s %8.2f %8.3f", line.name.c_str(),
                line.rates.empty() ? 0 : Median(line.rates) / 1e9, ratio);
    if (line.goal > 0)
      std::printf("   goal %.2f %s", line.goal, ratio >= line.goal ? "met" : "MISSED");
    std::printf("\n");
  }
  std::fflush(stdout);
}

std::string SizeName(size_t bytes) {
  return bytes < (1 << 20) ? absl::StrCat(bytes >> 10, " KiB") : absl::StrCat(bytes >> 20, " MiB");
}

std::vector<Line> MeasureLocal(const std::string& folder, size_t bytes, size_t count, int rounds) {
  Pair pair = LocalPair(folder, bytes);
  std::vector<std::byte> source = Filled(kRingBytes);
  std::vector<std::byte> target = Filled(kRingBytes);
  Ring sources(source);
  Ring targets(target);
  const std::string size = SizeName(bytes);
  std::vector<Line> lines;
  lines.push_back({absl::StrCat("memcpy ", size), 0, [&]() -> std::optional<double> {
                     return static_cast<double>(bytes * count) / Seconds([&] {
                              for (size_t i = 0; i < count; ++i) {
                                std::memcpy(targets.Next(bytes).data(), sources.Next(bytes).data(),
                                            bytes);
                              }
                            });
                   }});
  const double put_goal = bytes >= (1 << 20) ? 0.8 : 0;
  const double get_goal = bytes >= (1 << 20) ? 0.6 : 0;
  lines.push_back(
      {absl::StrCat("local put+crc ", size), put_goal, Moving(pair, Work::kPut, bytes, count)});
  lines.push_back({absl::StrCat("local get ", size), 0, Moving(pair, Work::kGet, bytes, count)});
  lines.push_back({absl::StrCat("local get verified ", size), get_goal,
                   Moving(pair, Work::kGetVerified, bytes, count)});
  RunGroup(lines, rounds);
  return lines;
}

#ifdef CAIRN_HAS_UCX
std::vector<Line> MeasureUcx(size_t bytes, size_t count, int rounds) {
  Pair plain = UcxPair(bytes, false);
  Pair summed = UcxPair(bytes, true);
  const std::string size = SizeName(bytes);
  const double goal = bytes >= (1 << 20) ? 0.9 : 0;
  const double checked_goal = bytes >= (1 << 20) ? 0.8 : 0;
  std::vector<Line> lines;
  lines.push_back({absl::StrCat("ucx_perftest ucp_am_bw ", size), 0,
                   [=] { return RunPerftest(bytes, count, kDepth); }});
  lines.push_back({absl::StrCat("ucx put ", size), goal, Moving(plain, Work::kPut, bytes, count)});
  lines.push_back(
      {absl::StrCat("ucx put+crc ", size), checked_goal, Moving(summed, Work::kPut, bytes, count)});
  lines.push_back({absl::StrCat("ucx get ", size), goal, Moving(plain, Work::kGet, bytes, count)});
  lines.push_back({absl::StrCat("ucx get verified ", size), checked_goal,
                   Moving(plain, Work::kGetVerified, bytes, count)});
  RunGroup(lines, rounds);
  if (lines.front().rates.empty()) std::printf("ucx_perftest is not there: no ratios for UCX\n");
  return lines;
}
#endif

// --- stream --------------------------------------------------------------------------------------

double ThreadCpu() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double LaneCpu(transport::Server& server) {
  std::atomic<double> seconds{-1};
  CAIRN_CHECK_OK(server.lane(0).Submit([&](Lane&) { seconds.store(ThreadCpu()); }));
  while (seconds.load() < 0) {  // ends: the lane runs its tasks
    std::this_thread::yield();
  }
  return seconds.load();
}

// CPU seconds of the two sides of something.
struct Sides {
  double send = 0, receive = 0;
};

struct StreamPki {
  explicit StreamPki(const std::string& folder) : pki(folder) {
    const auto open = [&](const std::string& name, transport::TlsRole role) {
      auto files = transport::TlsFiles::Open({.certificate = pki.File(name + ".pem"),
                                              .key = pki.File(name + ".key"),
                                              .ca = {{.domain = "", .path = pki.File("ca.pem")}},
                                              .crl = ""},
                                             role);
      CAIRN_CHECK(files.ok(), files.status().ToString());
      return *std::move(files);
    };
    server = open("server", transport::TlsRole::kServer);
    client = open("client", transport::TlsRole::kClient);
  }
  TestPki pki;
  std::unique_ptr<transport::TlsFiles> server, client;
};

void AwaitSocket(int socket, short events) {
  pollfd ready{.fd = socket, .events = events, .revents = 0};
  ::poll(&ready, 1, 1000);
}

// The least that TLS costs here: a session each side, one writes and the other reads.
Sides BareLoop(const StreamPki& files, Ring& sources, Ring& targets, size_t bytes, size_t count) {
  transport::SocketAddress address;
  auto listener = transport::ListenTcp("127.0.0.1", 0, &address);
  CAIRN_CHECK(listener.ok());
  auto client_socket = transport::ConnectTcp(address, MonotonicNow() + absl::Seconds(10));
  CAIRN_CHECK(client_socket.ok());
  Fd server_socket(::accept4(listener->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  const auto shake = [](transport::TlsSession& session, int socket) {
    while (session.Handshake() != transport::TlsStep::kDone) AwaitSocket(socket, POLLIN);
  };
  Sides sides;
  std::thread receiver([&] {
    transport::SocketChannel channel(server_socket.get());
    transport::TlsSession session(files.server->context(), transport::TlsRole::kServer,
                                  {.alpn = "bench/1"}, channel);
    shake(session, server_socket.get());
    const double begun = ThreadCpu();
    for (size_t i = 0; i < count; ++i) {
      std::span<std::byte> left = targets.Next(bytes);
      while (!left.empty()) {
        const auto moved = session.Read(left);
        left = left.subspan(moved.bytes);
        if (moved.step == transport::TlsStep::kWantsRead) AwaitSocket(server_socket.get(), POLLIN);
      }
    }
    sides.receive = ThreadCpu() - begun;
  });
  {
    transport::SocketChannel channel(client_socket->get());
    transport::TlsSession session(files.client->context(), transport::TlsRole::kClient,
                                  {.alpn = "bench/1", .server_name = "127.0.0.1"}, channel);
    shake(session, client_socket->get());
    const double begun = ThreadCpu();
    for (size_t i = 0; i < count; ++i) {
      std::span<const std::byte> left = sources.Next(bytes);
      while (!left.empty()) {
        const auto moved = session.Write(left);
        left = left.subspan(moved.bytes);
        if (moved.step == transport::TlsStep::kWantsWrite) {
          AwaitSocket(client_socket->get(), POLLOUT);
        }
      }
    }
    sides.send = ThreadCpu() - begun;
    receiver.join();
  }
  return sides;
}

std::vector<Line> MeasureStream(const StreamPki& files, size_t bytes, size_t count, int rounds) {
  Pair pair;
  pair.store = std::make_unique<RingStore>(bytes);
  transport::Handshakes handshakes(*files.server, transport::HandshakeLimits());
  handshakes.Start();
  auto server = transport::StartStreamServer({.host = "127.0.0.1"}, handshakes, *pair.store);
  CAIRN_CHECK(server.ok(), server.status().ToString());
  pair.server = *std::move(server);
  transport::ConnectOptions options;
  options.tls = files.client.get();
  auto connection = transport::Connect(pair.server->address(), HelloFrame(), options,
                                       MonotonicNow() + absl::Seconds(10));
  CAIRN_CHECK(connection.ok(), connection.status().ToString());
  pair.connection = *std::move(connection);
  pair.Ready();
  std::vector<std::byte> source = Filled(kRingBytes), target = Filled(kRingBytes);
  Ring sources(source), targets(target);
  const auto move = [&](Work work) {
    const double client = ThreadCpu(), lane = LaneCpu(*pair.server);
    Move(*pair.connection, *pair.ring, work, bytes, count);
    const double client_took = ThreadCpu() - client, lane_took = LaneCpu(*pair.server) - lane;
    return work == Work::kPut ? Sides{client_took, lane_took} : Sides{lane_took, client_took};
  };
  const std::string size = SizeName(bytes);
  const bool has_goal = bytes == (1 << 20) || bytes == (4 << 20);
  const double goal = has_goal ? 0.18 : 0, bare_goal = has_goal ? 0.85 : 0;
  std::vector<Line> lines;
  for (const auto& [name, line_goal] : std::initializer_list<std::pair<const char*, double>>{
           {"memcpy, a core", 0},
           {"bare TLS send", 0},
           {"bare TLS receive", 0},
           {"stream put, client", goal},
           {"stream put+crc, lane", goal},
           {"stream get, lane", goal},
           {"stream get, client", goal},
           {"put client / bare send", bare_goal},
           {"put lane / bare receive", bare_goal},
           {"get lane / bare send", bare_goal},
           {"get client / bare receive", bare_goal}}) {
    lines.push_back({absl::StrCat(name, " ", size), line_goal, nullptr});
  }
  const double total = static_cast<double>(bytes) * static_cast<double>(count);
  for (int round = -1; round < rounds; ++round) {  // the first warms
    const double begun = ThreadCpu();
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(targets.Next(bytes).data(), sources.Next(bytes).data(), bytes);
    }
    const double copied = ThreadCpu() - begun;
    const Sides bare = BareLoop(files, sources, targets, bytes, count);
    const Sides put = move(Work::kPut), get = move(Work::kGet);
    if (round < 0) continue;
    const double seconds[] = {copied,      bare.send, bare.receive, put.send,
                              put.receive, get.send,  get.receive};
    for (size_t i = 0; i < 7; ++i) {
      lines[i].rates.push_back(total / seconds[i]);
      lines[i].ratios.push_back(copied / seconds[i]);
    }
    for (size_t i = 0; i < 4; ++i) {
      lines[7 + i].rates.push_back(total / seconds[3 + i]);
      lines[7 + i].ratios.push_back(seconds[1 + i % 2] / seconds[3 + i]);
    }
  }
  pair.connection.reset();
  pair.server->Stop();
  handshakes.Stop();
  return lines;
}

std::vector<Figures> FiguresOf(const std::vector<Line>& lines) {
  std::vector<Figures> figures;
  for (const Line& line : lines) {
    figures.push_back({line.name,
                       {{"gb_per_s", line.rates.empty() ? 0 : Median(line.rates) / 1e9},
                        {"ratio", line.ratios.empty() ? 0 : Median(line.ratios)},
                        {"goal", line.goal}}});
  }
  return figures;
}

int Run(const Options& options) {
  SetLogLevel(LogLevel::kWarn);
  char folder[] = "/tmp/cairn-bench-XXXXXX";
  CAIRN_CHECK(mkdtemp(folder) != nullptr);
  const size_t total_bytes = options.quick ? size_t{16} << 20 : size_t{512} << 20;
  const int rounds = options.quick ? 1 : options.rounds;
  std::printf("transport, %d calls in flight, medians of %d alternated rounds\n", kDepth, rounds);
  std::printf("%-34s %8s %8s\n", "case", "GB/s", "ratio");
  std::vector<Line> all;
  const StreamPki pki(folder);
  for (const size_t bytes :
       {size_t{64} << 10, size_t{1} << 20, size_t{4} << 20, size_t{16} << 20}) {
    const size_t count = std::max<size_t>(kDepth, total_bytes / bytes);
    std::vector<std::vector<Line>> groups;
    const auto is_wanted = [&](std::string_view transport) {
      return options.only.empty() || options.only == transport;
    };
#ifdef CAIRN_HAS_UCX
    if (is_wanted("ucx")) groups.push_back(MeasureUcx(bytes, count, rounds));
#endif
    if (is_wanted("local")) groups.push_back(MeasureLocal(folder, bytes, count, rounds));
    if (is_wanted("stream")) groups.push_back(MeasureStream(pki, bytes, count, rounds));
    for (std::vector<Line>& lines : groups) {
      PrintLines(lines);
      for (Line& line : lines) line.rate = nullptr;  // refers to what is gone
      all.insert(all.end(), lines.begin(), lines.end());
    }
  }
  WriteJson(options, "transport", FiguresOf(all));
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) {
  return cairn::bench::Run(cairn::bench::ParseOptions(argc, argv));
}
