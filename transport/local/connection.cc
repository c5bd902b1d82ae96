// SPDX-License-Identifier: Apache-2.0
#include "transport/local/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/handshake.h"
#include "transport/heap_buffer.h"
#include "transport/local/socket.h"

namespace cairn::transport {
namespace {

// The polling time before the calling thread sleeps. Lanes use the same time.
constexpr absl::Duration kSpin = absl::Microseconds(50);

void Finish(Call& call, absl::Status status) {
  call.status = std::move(status);
  call.is_over = true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalConnection>> LocalConnection::Open(
    const std::string& path, const proto::Frame& hello, const LocalConnectOptions& options,
    absl::Time deadline, proto::HelloReply* reply) {
  // Allocate the memory before connecting. It takes a while, and the daemon may close a connection
  // that sends no hello.
  CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<ClientRegion> region,
                         ClientRegion::Make(options.region_bytes));
  CAIRN_ASSIGN_OR_RETURN(Fd socket, ConnectSocketFile(path, deadline));
  if (!options.maps) {
    RefuseDescriptors(socket.get());  // the daemon never sends descriptors
  }
  proto::Frame filled = hello;
  if (auto* body = std::get_if<proto::Hello>(&filled.body); body != nullptr) {
    body->region_bytes = region->bytes();
    // Versions 2 and later say that the client maps the daemon's memory.
    body->version_max = options.maps ? proto::kVersionWithPlaces : body->version_max;
  }
  std::unique_ptr<LocalConnection> connection(
      new LocalConnection(std::move(socket), std::move(region)));
  connection->awaits_memory_ = options.maps;
  proto::HelloReply answer;
  CAIRN_RETURN_IF_ERROR(connection->Shakes(filled, deadline, &answer));
  if (options.maps) {
    connection->awaits_memory_ = false;
    RefuseDescriptors(connection->socket_.get());  // no more descriptors are expected
    connection->MapWhatIsLent(answer);
  }
  if (reply != nullptr) {
    *reply = answer;
  }
  return connection;
}

absl::StatusOr<std::unique_ptr<LocalConnection>> LocalConnection::OpenInProcess(
    Fd socket, const proto::Frame& hello, absl::Time deadline, proto::HelloReply* reply) {
  std::unique_ptr<LocalConnection> connection(new LocalConnection(std::move(socket), nullptr));
  proto::Frame filled = hello;
  if (auto* body = std::get_if<proto::Hello>(&filled.body); body != nullptr) {
    body->version_max = proto::kVersionWithBatches;
  }
  CAIRN_RETURN_IF_ERROR(connection->Shakes(filled, deadline, reply));
  return connection;
}

LocalConnection::LocalConnection(Fd socket, std::shared_ptr<ClientRegion> region)
    : socket_(std::move(socket)), region_(std::move(region)), process_(getpid()) {}

LocalConnection::~LocalConnection() {
  if (getpid() == process_) {
    BreakAll(absl::InfinitePast(), absl::UnavailableError("the connection was closed"));
  }
}

absl::Status LocalConnection::Shakes(const proto::Frame& hello, absl::Time deadline,
                                     proto::HelloReply* reply) {
  CAIRN_ASSIGN_OR_RETURN(const proto::HelloReply answer, Shake(*this, hello, deadline));
  window_ = static_cast<int>(answer.window);
  keeps_ = answer.batch_max >= proto::kBatchMax;
  if (reply != nullptr) {
    *reply = answer;
  }
  return absl::OkStatus();
}

void LocalConnection::MapWhatIsLent(const proto::HelloReply& answer) {
  std::vector<Fd> brought = std::exchange(brought_, {});
  if (answer.version < proto::kVersionWithLoans) {
    return;
  }
  absl::StatusOr<std::shared_ptr<const LentMemory>> mapped =
      brought.size() == 2
          ? LentMemory::Map(brought[0], brought[1])
          : absl::ResourceExhaustedError("no file descriptor left for what the daemon lends");
  if (mapped.ok()) {
    lent_memory_ = *std::move(mapped);
    return;
  }
  static std::atomic<bool> is_said{false};
  if (!is_said.exchange(true, std::memory_order_relaxed)) {
    LogWarn("transport", "the daemon's memory is not mapped: gets are copied",
            {{"error", mapped.status()}});
  }
}

void LocalConnection::Unmap() {
  if (in_flight_.empty()) {
    lent_memory_ = nullptr;
  }
}

absl::StatusOr<std::unique_ptr<Buffer>> LocalConnection::Allocate(size_t bytes) {
  if (region_ == nullptr) {
    return AllocateHeapBuffer(bytes);  // a connection within one process
  }
  if (broken()) {
    // The range may have been used by a call that ended early. The daemon may still write there.
    return absl::UnavailableError("the connection is broken");
  }
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<RegionBuffer> buffer, RegionBuffer::Make(region_, bytes));
  return buffer;
}

absl::Status LocalConnection::Start(Call* call) {
  if (getpid() != process_) {
    return absl::FailedPreconditionError("the connection belongs to the process before fork");
  }
  if (broken()) {
    return absl::UnavailableError("the connection is broken");
  }
  if (static_cast<int>(in_flight_.size()) >= window_) {
    return absl::ResourceExhaustedError(absl::StrCat(window_, " calls are in flight"));
  }
  InFlight flight;
  flight.call = call;
  const std::optional<uint64_t> seq = proto::SeqOf(call->request.bytes());
  CAIRN_CHECK(seq.has_value(), "a request that is no frame");
  flight.seq = *seq;
  Envelope envelope;
  CAIRN_ASSIGN_OR_RETURN(envelope.payload_place, StagePayload(flight));
  CAIRN_RETURN_IF_ERROR(StageTarget(flight));
  envelope.payload_bytes = call->payload.size();
  if (call->takes_loan && call->payload.empty()) {
    flight.cell = TakeCell();
  }
  if (flight.cell.has_value()) {
    envelope.direction = Direction::kLendableRequest;
    envelope.payload_place = cells_->PlaceOf(*flight.cell);
  }
  envelope.reply_place = flight.target_place;
  envelope.reply_capacity_bytes = call->target.size();
  if (absl::Status sent = Send(*call, envelope); !sent.ok()) {
    if (flight.cell.has_value()) {
      cells_->Free(*flight.cell);
    }
    if (absl::IsUnavailable(sent)) {
      BreakAll(absl::InfinitePast(), sent);
    }
    return sent;
  }
  is_region_sent_ = true;
  call->is_over = false;
  call->reply_payload_bytes = 0;
  call->loan = nullptr;
  in_flight_.push_back(std::move(flight));
  return absl::OkStatus();
}

// Sends the request, or keeps it to send it with others.
absl::Status LocalConnection::Send(const Call& call, const Envelope& envelope) {
  const MessageBytes message = Serialize(envelope, call.request);
  if (!kept_.is_empty() && (kept_.is_full() || !call.may_wait)) {
    CAIRN_RETURN_IF_ERROR(SendKept());
  }
  if (call.may_wait && keeps_) {
    kept_.Add(message);
    return absl::OkStatus();
  }
  const int memfd = region_ != nullptr && !is_region_sent_ ? region_->memfd() : -1;
  return SendPacket(socket_.get(), message.bytes(), memfd);
}

absl::Status LocalConnection::SendKept() {
  if (kept_.is_empty()) {
    return absl::OkStatus();
  }
  absl::Status sent = SendPacket(socket_.get(), kept_.bytes());
  if (sent.ok()) {
    kept_.Clear();
  }
  return sent;
}

// Returns nullopt if there are too many loans or the region is full. The daemon then copies the
// reply.
std::optional<uint32_t> LocalConnection::TakeCell() {
  if (lent_memory_ == nullptr) {
    return std::nullopt;
  }
  if (cells_ == nullptr) {
    absl::StatusOr<std::shared_ptr<LoanCells>> cells = LoanCells::Make(region_);
    if (!cells.ok()) {
      return std::nullopt;
    }
    cells_ = *std::move(cells);
  }
  return cells_->Take();
}

// Returns the place of the payload for the daemon.
absl::StatusOr<uint64_t> LocalConnection::StagePayload(InFlight& flight) {
  const std::span<const std::byte> payload = flight.call->payload;
  if (payload.empty()) {
    return 0;
  }
  if (region_ == nullptr) {
    return reinterpret_cast<uintptr_t>(payload.data());
  }
  if (const std::optional<uint64_t> place = region_->PlaceOf(payload)) {
    return *place;
  }
  CAIRN_ASSIGN_OR_RETURN(flight.payload_stage, RegionBuffer::Make(region_, payload.size()));
  std::memcpy(flight.payload_stage->bytes().data(), payload.data(), payload.size());
  return flight.payload_stage->place();
}

// Sets the place where the daemon writes the payload of its reply.
absl::Status LocalConnection::StageTarget(InFlight& flight) {
  const std::span<std::byte> target = flight.call->target;
  if (target.empty()) {
    return absl::OkStatus();
  }
  if (region_ == nullptr) {
    flight.target_place = reinterpret_cast<uintptr_t>(target.data());
  } else if (const std::optional<uint64_t> place = region_->PlaceOf(target)) {
    flight.target_place = *place;
  } else {
    CAIRN_ASSIGN_OR_RETURN(flight.target_stage, RegionBuffer::Make(region_, target.size()));
    flight.target_place = flight.target_stage->place();
  }
  return absl::OkStatus();
}

void LocalConnection::Poll(absl::Time until) {
  const absl::Time begun = MonotonicNow();
  bool is_first = true;
  while (!broken()) {  // ends at `until`
    if (const absl::Status sent = SendKept(); absl::IsUnavailable(sent)) {
      return BreakAll(absl::InfinitePast(), sent);
    }
    if (ReadReplies()) {
      return;
    }
    const absl::Time now = MonotonicNow();
    if (ExpireDeadlines(now) || broken() || (now >= until && !is_first)) {
      return;
    }
    is_first = false;
    if (now - begun < kSpin) {
      continue;
    }
    absl::Time wake = until;
    for (const InFlight& flight : in_flight_) {
      wake = std::min(wake, flight.call->deadline);
    }
    const absl::Duration wait = std::clamp(wake - now, absl::ZeroDuration(), absl::Seconds(1));
    const timespec sleep = absl::ToTimespec(wait);
    const short events = static_cast<short>(kept_.is_empty() ? POLLIN : POLLIN | POLLOUT);
    pollfd ready{socket_.get(), events, 0};
    ppoll(&ready, 1, &sleep, nullptr);  // the socket is checked in any case
  }
}

// Receives all waiting replies. Returns whether a call ended.
bool LocalConnection::ReadReplies() {
  bool has_ended = false;
  bool was_reset = false;
  // ends: at most window() replies are expected, and an unknown reply breaks the connection
  while (!broken()) {
    Packet packet = ReceivePacket(socket_.get());
    if (packet.outcome == Packet::Outcome::kNothing) {
      break;
    }
    if (packet.outcome == Packet::Outcome::kClosed && !was_reset) {
      was_reset = true;  // a reset is reported before the last replies, which may still be readable
      continue;
    }
    if (packet.outcome == Packet::Outcome::kClosed) {
      BreakAll(absl::InfinitePast(), absl::UnavailableError("the daemon is gone"));
      return true;
    }
    bool is_valid = TakeDescriptors(packet);
    for (std::span<const std::byte> rest = packet.bytes(); is_valid && !rest.empty();) {
      const std::span<const std::byte> first = FirstMessage(rest);
      rest = rest.subspan(first.size());
      const absl::StatusOr<Message> message = ParseMessage(first, Direction::kReply, is_mapped());
      is_valid = message.ok() && TakeReply(*message);
    }
    if (!is_valid) {
      BreakAll(absl::InfinitePast(), absl::UnavailableError("the daemon broke the protocol"));
      return true;
    }
    has_ended = true;
  }
  return has_ended;
}

// Returns false if unexpected descriptors arrived.
bool LocalConnection::TakeDescriptors(Packet& packet) {
  if (!awaits_memory_) {
    return !packet.is_cut && packet.fds.empty();
  }
  // If the packet is cut, this process has no free descriptors, or the message is too long. The
  // parser detects the latter.
  brought_ = std::move(packet.fds);
  return true;
}

// Returns false if it answers no running call.
bool LocalConnection::TakeReply(const Message& message) {
  const auto found =
      std::find_if(in_flight_.begin(), in_flight_.end(),
                   [&](const InFlight& flight) { return flight.seq == message.seq; });
  if (found == in_flight_.end()) {
    return false;
  }
  const uint64_t bytes = message.envelope.payload_bytes;
  Call& call = *found->call;
  if (message.envelope.direction != Direction::kReply) {
    if (!TakeLoan(message.envelope, *found)) {
      return false;
    }
    call.reply = message.frame;
    call.reply_payload_bytes = bytes;
    End(*found, absl::OkStatus());
    in_flight_.erase(found);
    return true;
  }
  if (bytes > call.target.size() ||
      (bytes > 0 && message.envelope.payload_place != found->target_place)) {
    return false;
  }
  if (bytes > 0 && found->target_stage != nullptr) {
    std::memcpy(call.target.data(), found->target_stage->bytes().data(), bytes);
  }
  call.reply = message.frame;
  call.reply_payload_bytes = bytes;
  End(*found, absl::OkStatus());
  in_flight_.erase(found);
  return true;
}

// Returns false if a field of the loan is wrong.
bool LocalConnection::TakeLoan(const Envelope& envelope, InFlight& flight) {
  Call& call = *flight.call;
  const LoanWord* word = lent_memory_->WordAt(envelope.reply_place);
  if (!flight.cell.has_value() || word == nullptr || envelope.reply_capacity_bytes == 0 ||
      envelope.payload_bytes > call.target.size()) {
    return false;
  }
  LentPayload payload;
  if (envelope.direction == Direction::kLoanOfPlaces) {
    if (!TakePlaces(envelope, flight, &payload)) {
      return false;
    }
  } else {
    payload.places.push_back(lent_memory_->At(envelope.payload_place, envelope.payload_bytes));
    if (payload.places.front().empty()) {
      return false;
    }
  }
  call.loan =
      std::make_unique<LocalLoan>(lent_memory_, cells_, *std::exchange(flight.cell, std::nullopt),
                                  std::move(payload), word, envelope.reply_capacity_bytes);
  return true;
}

// Reads the list of places in the call's target, and the head of the payload behind it. Returns
// false if one of them is wrong.
bool LocalConnection::TakePlaces(const Envelope& envelope, const InFlight& flight,
                                 LentPayload* payload) const {
  const std::span<std::byte> target = flight.call->target;
  const uint64_t count = envelope.payload_place;
  if (count == 0 || count > proto::kLentPlacesMax || target.size() < count * sizeof(ListedPlace)) {
    return false;
  }
  const std::byte* written =
      flight.target_stage == nullptr ? target.data() : flight.target_stage->bytes().data();
  uint64_t head_bytes = envelope.payload_bytes;
  payload->places.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    ListedPlace listed;  // a copy, because the daemon can write to the region
    std::memcpy(&listed, written + i * sizeof(listed), sizeof(listed));
    const std::span<const std::byte> place = lent_memory_->At(listed.place, listed.bytes);
    if (place.empty() || place.size() > head_bytes) {
      return false;
    }
    head_bytes -= place.size();
    payload->places.push_back(place);
  }
  const size_t head_at = count * sizeof(ListedPlace);
  if (head_bytes > target.size() - head_at) {
    return false;
  }
  if (flight.target_stage != nullptr) {
    std::memcpy(target.data() + head_at, written + head_at, head_bytes);
  }
  payload->head = target.subspan(head_at, head_bytes);
  return true;
}

void LocalConnection::End(InFlight& flight, absl::Status status) {
  if (flight.cell.has_value()) {
    cells_->Free(*flight.cell);
  }
  Finish(*flight.call, std::move(status));
}

bool LocalConnection::ExpireDeadlines(absl::Time now) {
  for (const InFlight& flight : in_flight_) {
    if (flight.call->deadline <= now) {
      BreakAll(now, absl::UnavailableError("another call was not answered in time"));
      return true;
    }
  }
  return false;
}

// Ends the connection and every call. A call whose deadline is before `now` ends with
// DeadlineExceeded, the others with `status`. After this call, later writes of the daemon do not
// change any target.
void LocalConnection::BreakAll(absl::Time now, const absl::Status& status) {
  if (broken()) {
    return;
  }
  if (region_ == nullptr) {
    AwaitDaemon();
  }
  socket_.Reset();
  kept_.Clear();
  // The memory of a dead daemon stays allocated while a process has it mapped.
  lent_memory_ = nullptr;
  for (InFlight& flight : in_flight_) {
    if (region_ != nullptr && flight.target_stage == nullptr) {
      region_->Detach(flight.target_place, flight.call->target.size());
    }
    End(flight, flight.call->deadline <= now
                    ? absl::DeadlineExceededError("the daemon did not answer in time")
                    : status);
  }
  in_flight_.clear();
}

// Shuts down sending, and waits until the lane has closed its end. After that, the lane copies
// nothing.
void LocalConnection::AwaitDaemon() {
  shutdown(socket_.get(), SHUT_WR);
  bool is_over = false;
  // Ends: the lane is a thread of this process, and closes the sockets of peers that shut down.
  while (!is_over) {
    pollfd readable{socket_.get(), POLLIN, 0};
    poll(&readable, 1, 100);
    Packet packet = ReceivePacket(socket_.get());
    is_over = packet.outcome == Packet::Outcome::kClosed;
  }
}

}  // namespace cairn::transport
