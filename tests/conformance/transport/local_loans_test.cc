// SPDX-License-Identifier: Apache-2.0
// Loans of transport/local: how they begin and end, who gets none, and what clients and daemons
// that lie about them achieve.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/conformance/transport/local_hostile.h"
#include "tests/conformance/transport/shared_area.h"
#include "tests/support/sanitizer.h"
#include "transport/local/loans.h"

namespace cairn::transport {
namespace {

constexpr size_t kBlockBytes = 100'000;
constexpr char kArena[] = "memfd:cairn-arena";

class LocalLoansTest : public LocalHostileTest {
 protected:
  void StartLending(const ServerLimits& limits = {}) {
    daemon_.shared = &area_;
    auto server = StartLocalServer(
        {.path = path_, .limits = limits, .shared = area_.memory(), .shared_fd = area_.fd()},
        daemon_);
    CAIRN_CHECK(server.ok(), server.status().ToString());
    server_ = *std::move(server);
    mappings_ = MappingCount(kArena);
    block_ = Pattern(kBlockBytes, 1);
    daemon_.Store(KeyOf(1), block_);
    good_ = Connect();
    fds_ = FdCount();
  }
  // As a client of before loans.
  std::unique_ptr<Connection> ConnectWithoutMap() {
    ConnectOptions options;
    options.region_bytes = kRegionBytes;
    options.maps = false;
    auto connection = transport::Connect("unix:" + path_, HelloFrame(), options,
                                         MonotonicNow() + absl::Seconds(10));
    CAIRN_CHECK(connection.ok(), connection.status().ToString());
    return *std::move(connection);
  }
  // Gets block 1; true: it was lent.
  bool Get(Connection& connection, Call* get, uint64_t key = 1) {
    target_.assign(kBlockBytes, std::byte{0});
    *get = Call();
    get->target = target_;
    get->takes_loan = true;
    EXPECT_EQ(Exchange(connection, *get, GetFrame(++seq_, KeyOf(key), kBlockBytes)),
              absl::OkStatus());
    EXPECT_EQ(get->reply_payload_bytes, kBlockBytes);
    return get->loan != nullptr;
  }
  static bool Has(const Loan& loan, const std::vector<std::byte>& bytes) {
    std::vector<std::byte> read(loan.head().begin(), loan.head().end());
    for (const auto place : loan.places()) read.insert(read.end(), place.begin(), place.end());
    return read == bytes;
  }
  double Loans() { return Metric("cairn_transport_loans"); }
  bool AwaitLoans(double count) {
    return WaitFor([&] { return Loans() == count; });
  }

  // A raw peer that has mapped, with the descriptors that it was given.
  struct Raw2 {
    std::shared_ptr<ClientRegion> region;
    Fd socket;
    std::vector<Fd> brought;
  };
  Raw2 RawMapped(uint16_t version_max = proto::kVersionWithLoans) {
    Raw2 raw{.region = *ClientRegion::Make(kRegionBytes), .socket = Raw(), .brought = {}};
    proto::Frame hello = HelloFrame();
    auto& body = std::get<proto::Hello>(hello.body);
    body.region_bytes = kRegionBytes;
    body.version_max = version_max;
    CAIRN_CHECK(SendPacket(raw.socket.get(), Serialize({}, proto::Serialize(hello)).bytes(),
                           raw.region->memfd())
                    .ok());
    Packet packet;
    CAIRN_CHECK(WaitFor([&] {
      packet = ReceivePacket(raw.socket.get());
      return packet.outcome != Packet::Outcome::kNothing;
    }));
    CAIRN_CHECK(packet.outcome == Packet::Outcome::kPacket);
    raw.brought = std::move(packet.fds);
    return raw;
  }
  static MessageBytes LendableGet(uint64_t seq, uint64_t back_place) {
    return Serialize({.direction = Direction::kLendableRequest,
                      .payload_place = back_place,
                      .reply_place = 0,
                      .reply_capacity_bytes = kBlockBytes},
                     proto::Serialize(GetFrame(seq, KeyOf(1), kBlockBytes)));
  }
  // The next message on a mapped raw connection; none: it was dropped.
  static std::optional<Message> Next(const Fd& socket) {
    Packet packet;
    CAIRN_CHECK(WaitFor([&] {
      packet = ReceivePacket(socket.get());
      return packet.outcome != Packet::Outcome::kNothing;
    }));
    if (packet.outcome == Packet::Outcome::kClosed) return std::nullopt;
    const auto message = ParseMessage(packet.bytes(), Direction::kReply, /*is_mapped=*/true);
    CAIRN_CHECK(message.ok());
    return *message;
  }

  SharedArea area_{size_t{64} << 20};
  std::vector<std::byte> block_, target_;
  uint64_t seq_ = 0;
  int mappings_ = 0;
};

TEST_F(LocalLoansTest, APayloadIsReadWhereItLies) {
  StartLending();
  ASSERT_TRUE(good_->is_mapped());
  Call get;
  ASSERT_TRUE(Get(*good_, &get));
  EXPECT_TRUE(Has(*get.loan, block_));
  EXPECT_TRUE(get.loan->IsInForce());
  EXPECT_TRUE(std::ranges::all_of(target_, [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_EQ(Loans(), 1);
  EXPECT_EQ(Metric("cairn_transport_loan_bytes"), kBlockBytes);
  get.loan = nullptr;
  EXPECT_TRUE(AwaitLoans(0)) << "given back in memory: nobody was told";
  EXPECT_EQ(Metric("cairn_transport_loans_late_total"), 0);
  EXPECT_EQ(Metric("cairn_transport_loans_total"), 1);
  EXPECT_EQ(Metric("cairn_transport_lent_bytes_total"), kBlockBytes);
}

TEST_F(LocalLoansTest, APayloadMayLieInSeveralPlaces) {
  StartLending();
  for (const size_t count : {size_t{1}, size_t{2}, size_t{50}, proto::kLentPlacesMax}) {
    daemon_.lent_places = count;
    Call get;
    ASSERT_TRUE(Get(*good_, &get));
    EXPECT_EQ(get.loan->places().size(), count);
    EXPECT_EQ(get.loan->head().size(), 100u);
    EXPECT_EQ(get.loan->payload_bytes(), kBlockBytes);
    EXPECT_TRUE(get.loan->bytes().empty());
    EXPECT_TRUE(Has(*get.loan, block_));
    EXPECT_TRUE(get.loan->IsInForce());
    EXPECT_EQ(Loans(), 1);
    EXPECT_EQ(Metric("cairn_transport_loan_bytes"), kBlockBytes);
    get.loan = nullptr;
    EXPECT_TRUE(AwaitLoans(0));
  }
  EXPECT_EQ(Metric("cairn_transport_loans_total"), 4);
  EXPECT_EQ(Metric("cairn_transport_lent_places_total"), 53 + proto::kLentPlacesMax);
  // One loan: all places are taken back at once.
  daemon_.lent_places = 3;
  daemon_.loan_wait = absl::Milliseconds(50);
  Call late;
  ASSERT_TRUE(Get(*good_, &late));
  EXPECT_TRUE(WaitFor([&] { return !late.loan->IsInForce(); }));
  EXPECT_EQ(Metric("cairn_transport_loans_late_total"), 1);
}

// Above the limits of what may be lent, the same payload is moved from its places.
TEST_F(LocalLoansTest, APayloadInSeveralPlacesMayBeMoved) {
  StartLending();
  daemon_.lent_places = 50;
  daemon_.moves_places = true;
  Call get;
  EXPECT_FALSE(Get(*good_, &get));
  EXPECT_EQ(target_, block_);
  EXPECT_EQ(Metric("cairn_transport_loans_total"), 0);
}

// A client of the version before gets what it reads.
TEST_F(LocalLoansTest, WhoReadsNoPlacesGetsALoanOfOne) {
  StartLending();
  daemon_.lent_places = 3;
  for (const uint16_t version : {proto::kVersionWithLoans, proto::kVersionWithBatches,
                                 proto::kVersionWithPlaces, uint16_t{60'000}}) {
    const Raw2 raw = RawMapped(version);
    ASSERT_TRUE(SendPacket(raw.socket.get(), LendableGet(1, 0).bytes()).ok());
    const std::optional<Message> answer = Next(raw.socket);
    ASSERT_TRUE(answer.has_value());
    const bool reads_places = version >= proto::kVersionWithPlaces;
    EXPECT_EQ(answer->envelope.direction,
              reads_places ? Direction::kLoanOfPlaces : Direction::kLoan);
    EXPECT_EQ(answer->envelope.payload_bytes, kBlockBytes);
    if (!reads_places) continue;
    EXPECT_EQ(answer->envelope.payload_place, 3u);
    ListedPlace listed[3];
    std::memcpy(listed, raw.region->At(0), sizeof(listed));
    const std::byte* head = raw.region->At(sizeof(listed));
    EXPECT_EQ(std::memcmp(head, block_.data(), 100), 0);
    uint64_t at = 100;
    for (const ListedPlace& place : listed) {
      EXPECT_EQ(std::memcmp(area_.memory().data() + place.place, block_.data() + at, place.bytes),
                0);
      at += place.bytes;
    }
    EXPECT_EQ(at, kBlockBytes);
  }
}

TEST_F(LocalLoansTest, OneMappingServesAllConnectionsOfAProcess) {
  StartLending();
  const auto second = Connect();
  EXPECT_TRUE(second->is_mapped());
  EXPECT_EQ(MappingCount(kArena), mappings_ + 1);
  good_ = nullptr;
  EXPECT_EQ(MappingCount(kArena), mappings_ + 1);
}

TEST_F(LocalLoansTest, NothingIsLentToWhoDoesNotAsk) {
  StartLending();
  const auto old = ConnectWithoutMap();
  EXPECT_FALSE(old->is_mapped());
  Call get;
  EXPECT_FALSE(Get(*old, &get));
  EXPECT_EQ(target_, block_);
  // Nor in answer to a call that wants the bytes in its target.
  Call moved;
  target_.assign(kBlockBytes, std::byte{0});
  moved.target = target_;
  EXPECT_EQ(Exchange(*good_, moved, GetFrame(++seq_, KeyOf(1), kBlockBytes)), absl::OkStatus());
  EXPECT_EQ(moved.loan, nullptr);
  EXPECT_EQ(target_, block_);
  EXPECT_EQ(Metric("cairn_transport_loans_total"), 0);
}

TEST_F(LocalLoansTest, ADaemonThatLendsNothingSendsCopies) {
  StartServer();
  block_ = Pattern(kBlockBytes, 1);
  daemon_.Store(KeyOf(1), block_);
  EXPECT_FALSE(good_->is_mapped());
  Call get;
  EXPECT_FALSE(Get(*good_, &get));
  EXPECT_EQ(target_, block_);
}

TEST_F(LocalLoansTest, TakenBackAtItsDeadline) {
  StartLending();
  daemon_.loan_wait = absl::Milliseconds(100);
  Call get;
  ASSERT_TRUE(Get(*good_, &get));
  EXPECT_TRUE(WaitFor([&] { return !get.loan->IsInForce(); }));
  EXPECT_TRUE(AwaitLoans(0));
  EXPECT_EQ(Metric("cairn_transport_loans_late_total"), 1);
  EXPECT_EQ(daemon_.loans_over[static_cast<size_t>(LoanEnd::kLate)].load(), 1);
  get.loan = nullptr;  // late is no mistake
  ExpectOthersServed();
}

// Numbers are never used again: an old loan does not find a new one in its word.
TEST_F(LocalLoansTest, AnOldLoanDoesNotComeBackToLife) {
  StartLending();
  daemon_.loan_wait = absl::Milliseconds(1);
  Call old;
  ASSERT_TRUE(Get(*good_, &old));
  ASSERT_TRUE(WaitFor([&] { return !old.loan->IsInForce(); }));
  daemon_.loan_wait = absl::Seconds(20);
  for (int i = 0; i < 10; ++i) {
    Call get;
    ASSERT_TRUE(Get(*good_, &get));
    EXPECT_TRUE(get.loan->IsInForce());
    EXPECT_FALSE(old.loan->IsInForce());
  }
}

TEST_F(LocalLoansTest, EndsWithItsConnection) {
  StartLending();
  auto connection = Connect();
  Call get;
  ASSERT_TRUE(Get(*connection, &get));
  connection = nullptr;
  EXPECT_TRUE(WaitFor([&] { return !get.loan->IsInForce(); }));
  EXPECT_TRUE(AwaitLoans(0));
  EXPECT_EQ(daemon_.loans_over[static_cast<size_t>(LoanEnd::kGone)].load(), 1);
  EXPECT_EQ(get.loan->bytes().size(), kBlockBytes);  // it is mapped as long as it is held
  EXPECT_TRUE(Has(*get.loan, block_));
}

TEST_F(LocalLoansTest, AServerThatStopsTakesThemBackAndIsUnmapped) {
  StartLending();
  Call get;
  ASSERT_TRUE(Get(*good_, &get));
  server_->Stop();
  EXPECT_FALSE(get.loan->IsInForce());
  EXPECT_TRUE(Has(*get.loan, block_));  // no SIGBUS
  good_->Poll(MonotonicNow() + absl::Seconds(5));
  EXPECT_TRUE(good_->broken());
  EXPECT_FALSE(good_->is_mapped());
  EXPECT_EQ(MappingCount(kArena), mappings_ + 1);
  get.loan = nullptr;
  EXPECT_EQ(MappingCount(kArena), mappings_);
}

TEST_F(LocalLoansTest, WhoHoldsTooManyGetsCopies) {
  StartLending();
  std::vector<Call> held(2 * LoanCells::kCells);
  size_t lent = 0;
  for (Call& get : held) lent += Get(*good_, &get) ? 1 : 0;
  EXPECT_EQ(lent, LoanCells::kCells);
  EXPECT_EQ(target_, block_);  // the last one's
  // Of all connections of a lane.
  std::vector<std::unique_ptr<Connection>> others;
  std::vector<Call> more(4 * Lender::kLoansPerLane / 3);
  for (size_t i = 0; i < more.size(); ++i) {
    if (i % (LoanCells::kCells / 2) == 0) others.push_back(Connect());
    lent += Get(*others.back(), &more[i]) ? 1 : 0;
  }
  EXPECT_EQ(lent, Lender::kLoansPerLane);
  EXPECT_EQ(Loans(), Lender::kLoansPerLane);
  held.clear();
  more.clear();
  EXPECT_TRUE(AwaitLoans(0));
  Call get;
  EXPECT_TRUE(Get(*good_, &get));
}

// --- clients that lie

TEST_F(LocalLoansTest, WhoHasNotMappedCannotAskForLoans) {
  StartLending();
  const auto region = *ClientRegion::Make(kRegionBytes);
  const Fd socket = RawOpen(*region);
  ASSERT_TRUE(SendPacket(socket.get(), LendableGet(1, 0).bytes()).ok());
  EXPECT_EQ(Answer(socket).code(), absl::StatusCode::kUnavailable);
  ExpectOthersServed();
}

TEST_F(LocalLoansTest, TheMemoryThatIsLentCannotBeWritten) {
  StartLending();
  const Raw2 raw = RawMapped();
  ASSERT_EQ(raw.brought.size(), 2u);
  for (const Fd& fd : raw.brought) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
    const Fd again(open(path.c_str(), O_RDWR | O_CLOEXEC));
    for (const int writable : {fd.get(), again.get()}) {
      if (writable < 0) continue;
      EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, writable, 0), MAP_FAILED);
      void* base = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, writable, 0);
      ASSERT_NE(base, MAP_FAILED);
      EXPECT_NE(mprotect(base, 4096, PROT_READ | PROT_WRITE), 0);
      EXPECT_NE(madvise(base, 4096, MADV_REMOVE), 0);
      munmap(base, 4096);
      EXPECT_NE(ftruncate(writable, 0), 0);
      EXPECT_NE(fallocate(writable, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
      EXPECT_LT(pwrite(writable, "x", 1, 0), 0);
    }
  }
}

TEST_F(LocalLoansTest, PlacesToGiveBackThatAreNone) {
  StartLending();
  for (const uint64_t place : {uint64_t{1}, uint64_t{4}, kRegionBytes - 4, kRegionBytes,
                               kRegionBytes + 8, ~uint64_t{7}, ~uint64_t{0}}) {
    const Raw2 raw = RawMapped();
    ASSERT_TRUE(SendPacket(raw.socket.get(), LendableGet(1, place).bytes()).ok());
    EXPECT_EQ(Next(raw.socket), std::nullopt) << place;
  }
  // A payload and a loan in one.
  const Raw2 raw = RawMapped();
  MessageBytes both = Serialize({.direction = Direction::kLendableRequest,
                                 .payload_place = 0,
                                 .payload_bytes = 8,
                                 .reply_place = 0,
                                 .reply_capacity_bytes = kBlockBytes},
                                proto::Serialize(GetFrame(1, KeyOf(1), kBlockBytes)));
  ASSERT_TRUE(SendPacket(raw.socket.get(), both.bytes()).ok());
  EXPECT_EQ(Next(raw.socket), std::nullopt);
  ExpectOthersServed();
}

// It says that it has given back what it still reads, and what others have.
TEST_F(LocalLoansTest, WhoGivesBackWhatIsNotItsOwnHarmsItselfAlone) {
  StartLending();
  Call honest;
  ASSERT_TRUE(Get(*good_, &honest));
  const Raw2 raw = RawMapped();
  ASSERT_TRUE(SendPacket(raw.socket.get(), LendableGet(1, 8).bytes()).ok());
  const std::optional<Message> loan = Next(raw.socket);
  ASSERT_TRUE(loan.has_value());
  ASSERT_EQ(loan->envelope.direction, Direction::kLoan);
  ASSERT_EQ(Loans(), 2);
  auto* cells = reinterpret_cast<LoanWord*>(raw.region->At(0));
  const uint64_t number = loan->envelope.reply_capacity_bytes;
  for (uint64_t other = 0; other < 4096; ++other) cells[1].store(number ^ (other + 1));
  for (int i = 0; i < 64; ++i) cells[2 + i].store(number);  // not where it said that it would
  EXPECT_FALSE(WaitFor([&] { return Loans() < 2; }, absl::Milliseconds(100)));
  EXPECT_TRUE(honest.loan->IsInForce());
  cells[1].store(number);
  EXPECT_TRUE(AwaitLoans(1));
  EXPECT_TRUE(honest.loan->IsInForce());
  for (int i = 0; i < 3; ++i) cells[1].store(number);  // once more
  Call get;
  EXPECT_TRUE(Get(*good_, &get));
  EXPECT_TRUE(Has(*get.loan, block_));
}

TEST_F(LocalLoansTest, WhoHoldsAndNeverReadsIsBounded) {
  StartLending();
  daemon_.loan_wait = absl::Milliseconds(200);
  const Raw2 raw = RawMapped();
  uint64_t lent = 0;
  for (uint64_t i = 0; i < 3 * Lender::kLoansPerLane / 2; ++i) {
    ASSERT_TRUE(SendPacket(raw.socket.get(), LendableGet(i + 1, 0).bytes()).ok());
    const std::optional<Message> answer = Next(raw.socket);
    ASSERT_TRUE(answer.has_value());
    lent += answer->envelope.direction == Direction::kLoan ? 1 : 0;
  }
  EXPECT_GE(lent, Lender::kLoansPerLane / kSlowdown);
  EXPECT_TRUE(AwaitLoans(0));
  ExpectOthersServed();
}

// --- daemons that lie, and systems that refuse

// Answers one connection by hand.
class LyingDaemonTest : public LocalLoansTest {
 protected:
  void SetUp() override {
    auto listener = SocketFile::Listen(path_);
    CAIRN_CHECK(listener.ok(), listener.status().ToString());
    listener_.emplace(*std::move(listener));
  }
  // A client, and the daemon's end of its connection.
  std::unique_ptr<Connection> Open(std::vector<int> fds) {
    std::unique_ptr<Connection> connection;
    std::thread client([&] {
      ConnectOptions options;
      options.region_bytes = kRegionBytes;
      auto opened = transport::Connect("unix:" + path_, HelloFrame(), options,
                                       MonotonicNow() + absl::Seconds(10));
      if (opened.ok()) connection = *std::move(opened);
    });
    CAIRN_CHECK(WaitFor([&] {
      daemon_end_.Reset(accept4(listener_->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      return daemon_end_.is_valid();
    }));
    const Message hello = Request();
    proto::Frame reply;
    reply.seq = hello.seq;
    reply.body = proto::HelloReply{proto::kVersionWithLoans, 16, 1 << 20};
    CAIRN_CHECK(
        SendPacket(daemon_end_.get(),
                   Serialize({.direction = Direction::kReply}, proto::Serialize(reply)).bytes(),
                   fds)
            .ok());
    client.join();
    return connection;
  }
  Message Request() {
    Packet packet;
    CAIRN_CHECK(WaitFor([&] {
      packet = ReceivePacket(daemon_end_.get());
      return packet.outcome == Packet::Outcome::kPacket;
    }));
    if (!packet.fds.empty()) region_.memfd = std::move(packet.fds.front());
    const auto message = ParseMessage(packet.bytes(), Direction::kRequest, true);
    CAIRN_CHECK(message.ok());
    return *message;
  }

  // The client's memory, which came with its hello.
  struct {
    Fd memfd;
    bool Write(uint64_t place, std::span<const std::byte> bytes) const {
      return pwrite(memfd.get(), bytes.data(), bytes.size(), static_cast<off_t>(place)) ==
             static_cast<ssize_t>(bytes.size());
    }
  } region_;
  std::optional<SocketFile> listener_;
  Fd daemon_end_;
};

TEST_F(LyingDaemonTest, LoansThatAreNone) {
  const auto words = *Lender::Make(area_.memory(), area_.fd(), 1);
  constexpr uint64_t kMax = ~uint64_t{0};
  const uint64_t area = area_.memory().size();
  struct Lie {
    uint64_t place, bytes, word, number;
  };
  for (const Lie& lie :
       {Lie{area, 1, 0, 1}, Lie{area - 1, 2, 0, 1}, Lie{kMax, 1, 0, 1}, Lie{kMax - 10, 100, 0, 1},
        Lie{0, kBlockBytes + 1, 0, 1}, Lie{0, 0, 0, 1}, Lie{0, 10, Lender::kLoansPerLane, 1},
        Lie{0, 10, kMax, 1}, Lie{0, 10, 0, 0}}) {
    const auto connection = Open({area_.fd(), words->words_fd()});
    ASSERT_NE(connection, nullptr);
    ASSERT_TRUE(connection->is_mapped());
    target_.assign(kBlockBytes, std::byte{0});
    Call get;
    get.target = target_;
    get.takes_loan = true;
    get.request = proto::Serialize(GetFrame(7, KeyOf(1), kBlockBytes));
    get.deadline = MonotonicNow() + absl::Seconds(10);
    ASSERT_TRUE(connection->Start(&get).ok());
    (void)Request();
    proto::Frame reply;
    reply.seq = 7;
    reply.payload_bytes = lie.bytes;
    reply.body = proto::GetReply{};
    const Envelope envelope{Direction::kLoan, lie.place, lie.bytes, lie.word, lie.number};
    ASSERT_TRUE(
        SendPacket(daemon_end_.get(), Serialize(envelope, proto::Serialize(reply)).bytes()).ok());
    Await(*connection, get);
    EXPECT_EQ(get.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(get.loan, nullptr);
    EXPECT_TRUE(connection->broken());
  }
}

// Lists of places that are none, and places beyond the memory, the payload and the target. None is
// read before all are checked.
TEST_F(LyingDaemonTest, PlacesThatAreNone) {
  const auto words = *Lender::Make(area_.memory(), area_.fd(), 1);
  constexpr uint64_t kMax = ~uint64_t{0};
  const uint64_t area = area_.memory().size();
  struct Lie {
    uint64_t count, bytes;
    std::vector<ListedPlace> listed;
    bool is_true = false;
  };
  const std::vector<ListedPlace> good = {{0, 10}, {64, 10}};
  const std::vector<ListedPlace> many(proto::kLentPlacesMax + 1, {0, 1});
  for (const Lie& lie : {
           Lie{2, 30, good, true},
           Lie{2, 20, good, true},  // no head
           Lie{1, kBlockBytes - 16, {{0, 10}}, true},
           Lie{0, 30, good},
           Lie{3, 30, good},  // the third is what the target has: zeros
           Lie{kMax, 30, good},
           Lie{kMax / 16 + 2, 30, good},
           Lie{many.size(), 1000, many},
           Lie{2, 19, good},
           Lie{2, 0, good},
           Lie{2, kMax, good},
           Lie{2, kBlockBytes + 1, good},
           Lie{1, kBlockBytes, {{0, 10}}},  // no room for the list before the head
           Lie{1, 30, {{area, 1}}},
           Lie{1, 30, {{area - 1, 2}}},
           Lie{1, 30, {{kMax, 10}}},
           Lie{1, 30, {{kMax - 5, 10}}},
           Lie{1, 30, {{0, kMax}}},
           Lie{1, 30, {{0, 0}}},
           Lie{2, 30, {{0, kMax - 3}, {0, 4}}},
       }) {
    for (const bool is_in_region : {true, false}) {
      const auto connection = Open({area_.fd(), words->words_fd()});
      ASSERT_NE(connection, nullptr);
      ASSERT_TRUE(connection->is_mapped());
      const auto buffer = *connection->Allocate(kBlockBytes);
      target_.assign(kBlockBytes, std::byte{0});
      Call get;
      get.target = is_in_region ? buffer->bytes().first(kBlockBytes) : std::span(target_);
      std::ranges::fill(get.target, std::byte{0});
      get.takes_loan = true;
      get.request = proto::Serialize(GetFrame(7, KeyOf(1), kBlockBytes));
      get.deadline = MonotonicNow() + absl::Seconds(10);
      ASSERT_TRUE(connection->Start(&get).ok());
      const Message asked = Request();
      ASSERT_TRUE(region_.Write(asked.envelope.reply_place, std::as_bytes(std::span(lie.listed))));
      proto::Frame reply;
      reply.seq = 7;
      reply.payload_bytes = std::min(lie.bytes, proto::kPayloadBytesMax);
      reply.body = proto::GetReply{};
      const Envelope envelope{Direction::kLoanOfPlaces, lie.count, lie.bytes, 0, 1};
      ASSERT_TRUE(
          SendPacket(daemon_end_.get(), Serialize(envelope, proto::Serialize(reply)).bytes()).ok());
      Await(*connection, get);
      if (lie.is_true) {
        ASSERT_TRUE(get.status.ok());
        ASSERT_NE(get.loan, nullptr);
        EXPECT_EQ(get.loan->payload_bytes(), lie.bytes);
        continue;
      }
      EXPECT_EQ(get.status.code(), absl::StatusCode::kUnavailable) << lie.count << " " << lie.bytes;
      EXPECT_EQ(get.loan, nullptr);
      EXPECT_TRUE(connection->broken());
    }
  }
}

TEST_F(LyingDaemonTest, MemoryThatCouldBeCutIsNotMapped) {
  const auto words = *Lender::Make(area_.memory(), area_.fd(), 1);
  const Fd unsealed(memfd_create("liar", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), 1 << 20), 0);
  const Fd empty(memfd_create("liar", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(fcntl(empty.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  const Fd zero(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  for (const int liar : {unsealed.get(), empty.get(), zero.get()}) {
    for (const auto& fds : {std::vector<int>{liar, words->words_fd()},
                            std::vector<int>{area_.fd(), liar}, std::vector<int>{area_.fd()}}) {
      const auto connection = Open(fds);
      ASSERT_NE(connection, nullptr);
      EXPECT_FALSE(connection->is_mapped());
      EXPECT_FALSE(connection->broken());
    }
  }
}

TEST_F(LocalLoansTest, WhereTheSystemRefusesAMappingGetsAreCopied) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer has mapped all address space";
  StartLending();
  good_ = nullptr;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0;
  statm >> pages;
  // Room for the client's own region, and not for the daemon's memory.
  const rlimit tight{pages * 4096 + (uint64_t{24} << 20), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  const auto connection = Connect();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_FALSE(connection->is_mapped());
  Call get;
  EXPECT_FALSE(Get(*connection, &get));
  EXPECT_EQ(target_, block_);
}

}  // namespace
}  // namespace cairn::transport
