// SPDX-License-Identifier: Apache-2.0
#include "transport/local/lane.h"

#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "codecs/checksum/checksum.h"
#include "transport/local/loans.h"
#include "transport/local/socket.h"

namespace cairn::transport {
namespace {

constexpr int kSleepMs = 1000;  // used only if no transfer is in progress

constexpr int kPacketsPerTurn = 16;  // limit for one peer

// Returns whether the frame answers a hello and allows the peer to map memory.
bool IsWelcomeToMap(const proto::FrameBytes& bytes) {
  const absl::StatusOr<proto::Frame> frame = proto::ParseFrame(bytes.bytes());
  const auto* reply = frame.ok() ? std::get_if<proto::HelloReply>(&frame->body) : nullptr;
  return reply != nullptr && reply->version >= proto::kVersionWithLoans;
}

// How often a lane checks its loans while no request arrives. Peers send no message when they
// return a loan.
constexpr absl::Duration kLoansLookedAt = absl::Milliseconds(20);

}  // namespace

// The payload of a request, still in its peer's memory. Destroying it moves nothing.
class LocalLane::HeldPayload final : public Arrival::Held {
 public:
  HeldPayload(LocalLane& lane, uint64_t place) : lane_(lane), place_(place) {
    lane_.arrivals_held_.fetch_add(1, std::memory_order_relaxed);
    lane_.share_.metrics.arrivals_held.Add(1);
  }
  ~HeldPayload() override {
    lane_.arrivals_held_.fetch_sub(1, std::memory_order_relaxed);
    lane_.share_.metrics.arrivals_held.Add(-1);
  }
  uint64_t place() const { return place_; }

 private:
  LocalLane& lane_;
  const uint64_t place_;
};

// --- The loop ------------------------------------------------------------------------------------

LocalLane::LocalLane(int index, LaneShare& share)
    : index_(index), share_(share), queue_(kTasksMax), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  CAIRN_CHECK(index >= 0 && index < kLanesMax);
  CAIRN_CHECK(epoll_.is_valid(), "no file descriptor left for a lane");
  WatchSocket(epoll_.get(), queue_.event_fd(), kSubmitTag, EPOLLIN);
  FillWords();
}

LocalLane::~LocalLane() {
  CAIRN_CHECK(!thread_.joinable(), "a lane is destroyed while its thread runs");
  CAIRN_CHECK(arrivals_held_.load() == 0, "an arrival outlives its server");
}

void LocalLane::Start() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), absl::StrCat("cairn-lane-", index_).c_str());
    Run();
  });
}

void LocalLane::Stop() {
  queue_.Close();
  is_stopping_.store(true);
  queue_.Wake();
}

void LocalLane::Join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

absl::Status LocalLane::Submit(absl::AnyInvocable<void(Lane&)> task) {
  return queue_.Push(std::move(task));
}

void LocalLane::Run() {
  absl::Time idle_since = MonotonicNow();
  while (!is_stopping_.load(std::memory_order_relaxed)) {
    if (Turn(0) > 0) {
      idle_since = MonotonicNow();
    } else if (MonotonicNow() - idle_since >= kSpin && queue_.PrepareSleep()) {
      Turn(lent_count_ == 0 ? kSleepMs
                            : static_cast<int>(absl::ToInt64Milliseconds(kLoansLookedAt)));
      queue_.Awake();
      idle_since = MonotonicNow();
    }
  }
  EndAll();
}

int LocalLane::Turn(int wait_ms) {
  int events = ServeSockets(wait_ms);
  SendUnsent();
  events += queue_.RunAll(*this);
  // Moves a piece of one transfer, or as many short transfers as fit into a packet.
  size_t bytes = 0;
  for (int i = 0; i < proto::kBatchMax && !moving_.empty() && bytes < kPieceBytes; ++i) {
    bytes += MovePiece();
    ++events;
  }
  SendUnsent();
  const absl::Time now = MonotonicNow();
  events += ExpireDeadlines(now);
  events += LookAfterAllLoans(now);
  events += CloseBroken();
  events += RunCallbacks();
  return events;
}

int LocalLane::ServeSockets(int wait_ms) {
  epoll_event events[kEventsMax];
  const int count = epoll_wait(epoll_.get(), events, kEventsMax, wait_ms);
  if (count < 0) {
    CAIRN_CHECK(errno == EINTR);
    return 0;
  }
  int served = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = events[i].data.u64;
    if (tag == kSubmitTag) {
      continue;  // Awake() drains it
    }
    ++served;
    if (Peer* peer = Find(tag); peer != nullptr && !peer->is_breaking) {
      ReadPeer(*peer);
    }
  }
  return served;
}

// --- Ends ----------------------------------------------------------------------------------------

void LocalLane::Break(PeerId id) {
  if (Peer* peer = Find(id); peer != nullptr && !peer->is_breaking) {
    share_.metrics.peers_broken.Add();
    BreakPeer(*peer, absl::UnavailableError("the session is over"));
  }
}

void LocalLane::BreakPeer(Peer& peer, absl::Status end) {
  if (!peer.is_breaking) {
    peer.is_breaking = true;
    peer.end = std::move(end);
    broken_.push_back(peer.id);
  }
}

int LocalLane::ExpireDeadlines(absl::Time now) {
  int expired = 0;
  for (Moving& moving : moving_) {
    Peer* peer = Find(moving.peer);
    if (moving.deadline <= now && !peer->is_breaking) {
      share_.metrics.deadlines_exceeded.Add();
      share_.metrics.peers_broken.Add();
      BreakPeer(*peer,
                absl::UnavailableError("another transfer of the peer was not complete in time"));
      ++expired;
    }
  }
  return expired;
}

int LocalLane::CloseBroken() {
  SendUnsent();
  const std::vector<PeerId> broken = std::exchange(broken_, {});
  const absl::Time now = MonotonicNow();
  for (const PeerId id : broken) {
    const auto found = peers_.find(id);
    CAIRN_CHECK(found != peers_.end());
    Peer& peer = *found->second;
    for (size_t i = moving_.size();
         i-- > 0;) {  // backwards, because FinishMoving() fills the gap from the end
      if (moving_[i].peer == id) {
        FinishMoving(i, moving_[i].deadline <= now
                            ? absl::DeadlineExceededError("the transfer was not complete in time")
                            : peer.end);
      }
    }
    while (!peer.lent.empty()) {  // ends: each turn removes one
      EndLoan(peer, peer.lent.size() - 1, LoanEnd::kGone);
    }
    // On kernels that cannot refuse descriptors, some may have arrived since the hello.
    if (!peer.brought.empty() || !EndConnection(peer.socket.get())) {
      share_.jobs.Run(peer.party, [socket = std::move(peer.socket),
                                   brought = std::move(peer.brought)]() mutable {
        CloseSlowly(std::move(socket), std::move(brought));
      });
    }
    const std::optional<std::string> owner = std::move(peer.region_owner);
    const uint64_t region_bytes = peer.region.bytes();
    peers_.erase(found);  // closes the socket, unmaps the region
    if (owner.has_value()) {
      share_.handler.OnRegionGone(*owner, region_bytes);
    }
    share_.peers.fetch_sub(1);
    share_.metrics.peers.Add(-1);
    share_.handler.OnPeerGone(*this, id);
  }
  return static_cast<int>(broken.size());
}

int LocalLane::RunCallbacks() {
  std::vector<CompletedTransfer> completed = std::exchange(completed_, {});
  for (CompletedTransfer& transfer : completed) {
    if (transfer.receive_done) {
      transfer.receive_done({std::move(transfer.status), transfer.crc32c});
    } else if (transfer.reply_done) {
      transfer.reply_done(std::move(transfer.status));
    } else {
      transfer.loan_done(transfer.loan_end);
    }
  }
  return static_cast<int>(completed.size());
}

void LocalLane::EndAll() {
  // Ends: the queue is closed, and no peer is left to send requests. Callbacks may still reply.
  // These replies complete at once with Unavailable.
  do {
    queue_.RunAll(*this);
    for (const auto& [id, peer] : peers_) {
      BreakPeer(*peer, absl::UnavailableError("the daemon is stopping"));
    }
    CloseBroken();
  } while (RunCallbacks() > 0 || !peers_.empty() || !queue_.IsEmpty());
}

LocalLane::Peer* LocalLane::Find(PeerId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

// --- Arrivals ------------------------------------------------------------------------------------
// Peers and their requests. All their bytes are untrusted.

absl::Status LocalLane::AddPeer(Greeted& greeted) {
  // A dropped task must not close the socket on this thread.
  auto owned = std::make_shared<Greeted>(std::move(greeted));
  absl::Status taken =
      Submit([owned](Lane& lane) { static_cast<LocalLane&>(lane).OpenPeer(std::move(*owned)); });
  if (!taken.ok()) {
    greeted = std::move(*owned);
  }
  return taken;
}

void LocalLane::OpenPeer(Greeted greeted) {
  auto owned = std::make_unique<Peer>();
  Peer& peer = *owned;
  peer.id = (++peers_made_ << kLaneBits) | static_cast<uint64_t>(index_);
  peer.socket = std::move(greeted.socket);
  peer.identity = std::move(greeted.identity);
  peer.party = greeted.party;
  peer.region = std::move(greeted.region);
  share_.metrics.peers.Add(1);
  WatchSocket(epoll_.get(), peer.socket.get(), peer.id, EPOLLIN | EPOLLRDHUP);
  peers_.emplace(peer.id, std::move(owned));
  if (absl::Status counted = CountRegion(peer, greeted); !counted.ok()) {
    // The error is sent before the socket closes, so that an honest client learns the reason.
    const proto::Frame error = proto::ErrorFrame(greeted.hello.seq, {}, counted);
    SendPacket(peer.socket.get(),
               Serialize({.direction = Direction::kReply}, proto::Serialize(error)).bytes())
        .IgnoreError();  // the socket is closed in any case
    share_.metrics.peers_refused.Add();
    return BreakPeer(peer, std::move(counted));
  }
  if (absl::Status taken = TakeMessage(peer, greeted.hello); !taken.ok()) {
    BreakForWhatItSent(peer, taken);
  }
}

absl::Status LocalLane::CountRegion(Peer& peer, const Greeted& greeted) {
  if (!greeted.is_memfd) {
    return absl::OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(const proto::Frame frame, proto::ParseFrame(greeted.hello.frame.bytes()));
  const auto* hello = std::get_if<proto::Hello>(&frame.body);
  peer.asks_to_map = share_.lender != nullptr && hello != nullptr &&
                     hello->version_max >= proto::kVersionWithLoans;
  peer.reads_places = peer.asks_to_map && hello->version_max >= proto::kVersionWithPlaces;
  CAIRN_ASSIGN_OR_RETURN(peer.region_owner,
                         share_.handler.OnRegion(frame.ticket, peer.identity, peer.region.bytes()));
  return absl::OkStatus();
}

void LocalLane::ReadPeer(Peer& peer) {
  for (int i = 0; i < kPacketsPerTurn && !peer.is_breaking; ++i) {
    Packet packet = ReceivePacket(peer.socket.get());
    switch (packet.outcome) {
      case Packet::Outcome::kNothing:
        return;
      case Packet::Outcome::kClosed:
        peer.brought = std::move(packet.fds);
        BreakPeer(peer, absl::UnavailableError("the peer is gone"));
        return;
      case Packet::Outcome::kPacket:
        if (absl::Status taken = TakePacket(peer, packet); !taken.ok()) {
          BreakForWhatItSent(peer, taken);
        }
        break;
    }
  }
}

void LocalLane::BreakForWhatItSent(Peer& peer, const absl::Status& why) {
  LogDebug("transport", "peer sent what the protocol forbids", {{"peer", peer.id}, {"why", why}});
  share_.metrics.peers_broken.Add();
  BreakPeer(peer, absl::UnavailableError("the peer broke the protocol"));
}

absl::Status LocalLane::TakePacket(Peer& peer, Packet& packet) {
  peer.brought = std::move(packet.fds);
  if (!peer.brought.empty()) {
    return absl::InvalidArgumentError("message: descriptors after the hello");
  }
  if (packet.is_cut) {
    return absl::InvalidArgumentError("message: too long");
  }
  // Checked before the requests are handled: a reply may be lent, and use a cell in which one of
  // these requests returns a loan.
  LookAfterLoans(peer, MonotonicNow());
  std::span<const std::byte> rest = packet.bytes();
  for (int count = 0; !rest.empty() && !peer.is_breaking; ++count) {
    if (count == proto::kBatchMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("message: more than ", proto::kBatchMax, " requests at once"));
    }
    const std::span<const std::byte> first = FirstMessage(rest);
    rest = rest.subspan(first.size());
    if (count == 0 && !rest.empty()) {
      peer.takes_batches = true;
      share_.metrics.batches.Add();
    }
    CAIRN_ASSIGN_OR_RETURN(const Message message,
                           ParseMessage(first, Direction::kRequest, peer.is_mapped));
    CAIRN_RETURN_IF_ERROR(TakeMessage(peer, message));
  }
  return absl::OkStatus();
}

absl::Status LocalLane::TakeMessage(Peer& peer, const Message& message) {
  CAIRN_RETURN_IF_ERROR(CheckPlaces(peer, message));
  if (++peer.unanswered > kUnansweredMax) {
    return absl::ResourceExhaustedError("more requests than any window allows");
  }
  TakeRequest(peer, message);
  return absl::OkStatus();
}

absl::Status LocalLane::CheckPlaces(const Peer& peer, const Message& message) const {
  const Envelope& envelope = message.envelope;
  const auto lies_within = [&peer](uint64_t place, uint64_t bytes) {
    return bytes == 0 || peer.region.At(place, bytes) != nullptr;
  };
  if (envelope.direction == Direction::kLendableRequest) {
    if (envelope.payload_bytes != 0 || envelope.payload_place % sizeof(LoanWord) != 0 ||
        !lies_within(envelope.payload_place, sizeof(LoanWord))) {
      return absl::InvalidArgumentError("message: a loan cannot be given back there");
    }
  } else if (!lies_within(envelope.payload_place, envelope.payload_bytes)) {
    return absl::InvalidArgumentError("message: the payload is outside the region");
  }
  if (!lies_within(envelope.reply_place, envelope.reply_capacity_bytes)) {
    return absl::InvalidArgumentError("message: the reply's place is outside the region");
  }
  return absl::OkStatus();
}

void LocalLane::TakeRequest(Peer& peer, const Message& message) {
  const Envelope& envelope = message.envelope;
  const ReplyTo reply_to{
      .peer = peer.id,
      .seq = message.seq,
      .place = envelope.reply_place,
      .capacity_bytes = envelope.reply_capacity_bytes,
      .takes_loan = envelope.direction == Direction::kLendableRequest,
      .takes_places = envelope.direction == Direction::kLendableRequest && peer.reads_places,
      .back_place = envelope.payload_place};
  if (envelope.payload_bytes > share_.limits.payload_bytes_max) {
    return RefuseRequest(reply_to, message,
                         absl::InvalidArgumentError(
                             absl::StrCat("payload_bytes is ", envelope.payload_bytes,
                                          ", expected at most ", share_.limits.payload_bytes_max)));
  }
  std::unique_ptr<Arrival::Held> held;
  if (envelope.payload_bytes > 0) {
    if (arrivals_held_.load(std::memory_order_relaxed) >= share_.limits.arrivals_held_max) {
      return RefuseRequest(reply_to, message,
                           absl::ResourceExhaustedError(absl::StrCat(
                               "the lane holds ", share_.limits.arrivals_held_max, " arrivals")));
    }
    held = std::make_unique<HeldPayload>(*this, envelope.payload_place);
  }
  share_.handler.OnArrival(*this, Arrival(reply_to, message.frame, envelope.payload_bytes,
                                          std::move(held), &peer.identity));
}

void LocalLane::RefuseRequest(const ReplyTo& reply_to, const Message& message,
                              const absl::Status& status) {
  share_.metrics.arrivals_refused.Add();
  const absl::StatusOr<proto::Frame> request = proto::ParseFrame(message.frame.bytes());
  const proto::Ticket ticket = request.ok() ? request->ticket : proto::Ticket{};
  Reply(reply_to, proto::Serialize(proto::ErrorFrame(message.seq, ticket, status)), {},
        absl::InfiniteFuture(), [](absl::Status) {});
}

// --- Transfers -----------------------------------------------------------------------------------
// Receive() and Reply() begin a transfer; the loop moves it piece by piece.

void LocalLane::Receive(Arrival arrival, std::span<std::byte> target, absl::Time deadline,
                        ReceiveDone done) {
  CAIRN_CHECK(target.size() == arrival.payload_bytes(),
              "a target of another size than its payload");
  const Peer* peer = Find(arrival.reply_to().peer);
  if (peer == nullptr || peer->is_breaking) {
    completed_.push_back(
        {.status = absl::UnavailableError("the peer is gone"), .receive_done = std::move(done)});
    return;
  }
  Moving moving;
  moving.peer = peer->id;
  moving.target = target;
  moving.bytes = target.size();
  moving.deadline = deadline;
  moving.receive_done = std::move(done);
  if (arrival.held() != nullptr) {
    moving.place = static_cast<HeldPayload*>(arrival.held())->place();
  }
  moving_.push_back(std::move(moving));
}

void LocalLane::Reply(const ReplyTo& reply_to, const proto::FrameBytes& frame,
                      std::span<const std::byte> payload, absl::Time deadline, ReplyDone done) {
  ReplyPlaces(reply_to, frame, {.head = payload, .places = {}}, deadline, std::move(done));
}

void LocalLane::ReplyPlaces(const ReplyTo& reply_to, const proto::FrameBytes& frame,
                            const PlacedPayload& payload, absl::Time deadline, ReplyDone done) {
  const uint64_t bytes = payload.bytes();
  CAIRN_CHECK(bytes <= reply_to.capacity_bytes, "a reply is larger than its room");
  Peer* peer = Find(reply_to.peer);
  if (peer == nullptr || peer->is_breaking) {
    completed_.push_back(
        {.status = absl::UnavailableError("the peer is gone"), .reply_done = std::move(done)});
    return;
  }
  peer->unanswered = std::max(0, peer->unanswered - 1);
  CAIRN_CHECK(bytes == 0 || peer->region.At(reply_to.place, bytes) != nullptr,
              "a reply lies outside its peer's memory");
  Moving moving;
  moving.peer = reply_to.peer;
  moving.place = reply_to.place;
  moving.source = payload.head;
  moving.places = payload.places;
  moving.bytes = bytes;
  moving.deadline = deadline;
  moving.frame = frame;
  moving.brings_memory = std::exchange(peer->asks_to_map, false) && IsWelcomeToMap(frame);
  moving.reply_done = std::move(done);
  moving_.push_back(std::move(moving));
}

size_t LocalLane::MovePiece() {
  moving_next_ = moving_next_ < moving_.size() ? moving_next_ : 0;
  const size_t index = moving_next_;
  Moving& moving = moving_[index];
  Peer* peer = Find(moving.peer);
  CAIRN_CHECK(peer != nullptr, "a transfer outlives its peer");
  if (peer->is_breaking) {  // CloseBroken() ends it
    ++moving_next_;
    return 0;
  }
  const size_t bytes = CopyPiece(moving, *peer);
  if (moving.moved_bytes < moving.bytes) {
    ++moving_next_;
    return bytes;
  }
  FinishMoving(index, moving.reply_done ? SendReply(moving, *peer) : absl::OkStatus());
  return bytes;
}

size_t LocalLane::CopyPiece(Moving& moving, const Peer& peer) {
  const size_t bytes = std::min(kPieceBytes, moving.bytes - moving.moved_bytes);
  if (bytes == 0) {
    return 0;
  }
  // The place was checked when the request arrived. The region lives as long as its peer.
  std::byte* theirs = peer.region.At(moving.place + moving.moved_bytes, bytes);
  if (moving.receive_done) {
    // A target as large as this is not in the caches: writing past them saves reading it.
    const auto copy = moving.bytes >= kPieceBytes ? codecs::StreamCrc32c : codecs::CopyCrc32c;
    moving.crc32c = copy(moving.crc32c, moving.target.data() + moving.moved_bytes, {theirs, bytes});
  } else {
    CopyFromPlaces(moving, theirs, bytes);
  }
  moving.moved_bytes += bytes;
  return bytes;
}

void LocalLane::CopyFromPlaces(Moving& moving, std::byte* target, size_t bytes) {
  while (bytes > 0) {  // ends: source and places have all bytes of the transfer, and none is empty
    if (moving.source.empty()) {
      moving.source = moving.places.front();
      moving.places = moving.places.subspan(1);
    }
    const size_t some = std::min(bytes, moving.source.size());
    std::memcpy(target, moving.source.data(), some);
    moving.source = moving.source.subspan(some);
    target += some;
    bytes -= some;
  }
}

absl::Status LocalLane::SendReply(const Moving& moving, Peer& peer) {
  const Envelope envelope{Direction::kReply, moving.place, moving.bytes, 0, 0};
  absl::Status status;
  if (moving.brings_memory) {
    const int fds[] = {share_.lender->memory_fd(), share_.lender->words_fd()};
    status = SendTo(peer, envelope, moving.frame, fds);
    peer.is_mapped = status.ok();
  } else {
    status = SendTo(peer, envelope, moving.frame, {});
  }
  if (status.ok()) {
    share_.metrics.sent_bytes.Add(moving.bytes);
  }
  return status;
}

absl::Status LocalLane::SendTo(Peer& peer, const Envelope& envelope, const proto::FrameBytes& frame,
                               std::span<const int> fds) {
  const MessageBytes message = Serialize(envelope, frame);
  if (!peer.takes_batches || !fds.empty()) {
    absl::Status status = SendPacket(peer.socket.get(), message.bytes(), fds);
    return status.ok() ? status : BreakDeaf(peer, status);
  }
  if (peer.unsent.is_empty()) {
    unsent_.push_back(peer.id);
  }
  peer.unsent.Add(message);
  if (peer.unsent.is_full()) {
    SendUnsent();
  }
  return absl::OkStatus();
}

void LocalLane::SendUnsent() {
  for (const PeerId id : unsent_) {
    Peer* const peer = Find(id);
    if (peer == nullptr) {
      continue;
    }
    if (const absl::Status sent = SendPacket(peer->socket.get(), peer->unsent.bytes());
        !sent.ok()) {
      BreakDeaf(*peer, sent).IgnoreError();
    }
    peer->unsent.Clear();
  }
  unsent_.clear();
}

// Breaks a peer that does not read its replies.
absl::Status LocalLane::BreakDeaf(Peer& peer, const absl::Status& sent) {
  share_.metrics.peers_broken.Add();
  BreakPeer(peer, absl::UnavailableError("the peer does not read its replies"));
  return absl::UnavailableError(sent.message());
}

void LocalLane::FinishMoving(size_t index, absl::Status status) {
  Moving& moving = moving_[index];
  if (status.ok() && moving.receive_done) {
    share_.metrics.received_bytes.Add(moving.bytes);
  }
  completed_.push_back({.status = std::move(status),
                        .crc32c = moving.crc32c,
                        .receive_done = std::move(moving.receive_done),
                        .reply_done = std::move(moving.reply_done)});
  if (index + 1 != moving_.size()) {
    moving = std::move(moving_.back());
  }
  moving_.pop_back();
}

// --- Loans ---------------------------------------------------------------------------------------
// loans.h explains loans.

void LocalLane::FillWords() {
  if (share_.lender == nullptr) {
    return;
  }
  const auto first = static_cast<uint32_t>(index_) * Lender::kLoansPerLane;
  for (uint32_t i = Lender::kLoansPerLane; i-- > 0;) {
    free_words_.push_back(first + i);
  }
}

bool LocalLane::can_lend() const { return share_.lender != nullptr; }

bool LocalLane::CanLendNow(std::span<const std::byte> payload) const {
  return !free_words_.empty() && share_.lender->PlaceOf(payload).has_value();
}

void LocalLane::Lend(const ReplyTo& reply_to, const proto::FrameBytes& frame,
                     std::span<const std::byte> payload, absl::Time until, ReplyDone sent,
                     LoanDone back) {
  CAIRN_CHECK(reply_to.takes_loan && CanLendNow(payload), "what cannot be lent");
  if (Peer* peer = PeerToLend(reply_to, sent, back); peer != nullptr) {
    BeginLoan(*peer, reply_to, frame,
              {.direction = Direction::kLoan,
               .payload_place = *share_.lender->PlaceOf(payload),
               .payload_bytes = payload.size()},
              until, std::move(sent), std::move(back));
  }
}

void LocalLane::LendPlaces(const ReplyTo& reply_to, const proto::FrameBytes& frame,
                           const PlacedPayload& payload, absl::Time until, ReplyDone sent,
                           LoanDone back) {
  const size_t count = payload.places.size();
  CAIRN_CHECK(reply_to.takes_places && count > 0 && count <= proto::kLentPlacesMax &&
                  payload.bytes() <= reply_to.capacity_bytes &&
                  payload.room_bytes() <= reply_to.capacity_bytes,
              "what cannot be lent");
  Peer* peer = PeerToLend(reply_to, sent, back);
  if (peer == nullptr) {
    return;
  }
  std::byte* theirs = peer->region.At(reply_to.place, payload.room_bytes());
  CAIRN_CHECK(theirs != nullptr, "a reply lies outside its peer's memory");
  for (const std::span<const std::byte> place : payload.places) {
    CAIRN_CHECK(!place.empty() && CanLendNow(place), "what cannot be lent");
    const ListedPlace listed{*share_.lender->PlaceOf(place), place.size()};
    std::memcpy(theirs, &listed, sizeof(listed));
    theirs += sizeof(listed);
  }
  if (!payload.head.empty()) {
    std::memcpy(theirs, payload.head.data(), payload.head.size());
  }
  share_.metrics.lent_places.Add(count);
  BeginLoan(*peer, reply_to, frame,
            {.direction = Direction::kLoanOfPlaces,
             .payload_place = count,
             .payload_bytes = payload.bytes()},
            until, std::move(sent), std::move(back));
}

LocalLane::Peer* LocalLane::PeerToLend(const ReplyTo& reply_to, ReplyDone& sent, LoanDone& back) {
  Peer* peer = Find(reply_to.peer);
  if (peer != nullptr && !peer->is_breaking) {
    return peer;
  }
  completed_.push_back(
      {.status = absl::UnavailableError("the peer is gone"), .reply_done = std::move(sent)});
  completed_.push_back({.loan_end = LoanEnd::kGone, .loan_done = std::move(back)});
  return nullptr;
}

// Sends `envelope`, with the loan's word and number. REQUIRES: a word is free.
void LocalLane::BeginLoan(Peer& peer, const ReplyTo& reply_to, const proto::FrameBytes& frame,
                          Envelope envelope, absl::Time until, ReplyDone sent, LoanDone back) {
  peer.unanswered = std::max(0, peer.unanswered - 1);
  Lent lent{.word = free_words_.back(),
            .number = (++loans_made_ << kLaneBits) | static_cast<uint64_t>(index_),
            .back_place = reply_to.back_place,
            .bytes = envelope.payload_bytes,
            .until = until,
            .done = std::move(back)};
  free_words_.pop_back();
  // The packet below makes the store visible to the peer.
  share_.lender->word(lent.word).store(lent.number, std::memory_order_release);
  envelope.reply_place = lent.word;
  envelope.reply_capacity_bytes = lent.number;
  const bool is_first = lent_count_++ == 0;
  share_.metrics.loans.Add(1);
  share_.metrics.loan_bytes.Add(static_cast<int64_t>(envelope.payload_bytes));
  peer.lent.push_back(std::move(lent));
  // Counted before the peer gets the loan, because it may then read the metrics.
  share_.metrics.lent.Add();
  share_.metrics.lent_bytes.Add(envelope.payload_bytes);
  absl::Status status = SendTo(peer, envelope, frame, {});
  completed_.push_back({.status = std::move(status), .reply_done = std::move(sent)});
  if (is_first) {
    loans_due_ = MonotonicNow() + kLoansLookedAt;
  }
}

// Removes a loan. After this, IsInForce() is false for the peer.
void LocalLane::EndLoan(Peer& peer, size_t index, LoanEnd end) {
  Lent& lent = peer.lent[index];
  share_.lender->word(lent.word).store(0, std::memory_order_seq_cst);
  // `done` allows the owner to write to the payload. These writes come after this fence. It pairs
  // with the fence in LocalLoan::IsInForce().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  free_words_.push_back(lent.word);
  --lent_count_;
  share_.metrics.loans.Add(-1);
  share_.metrics.loan_bytes.Add(-static_cast<int64_t>(lent.bytes));
  if (end == LoanEnd::kLate) {
    share_.metrics.loans_late.Add();
  }
  completed_.push_back({.loan_end = end, .loan_done = std::move(lent.done)});
  if (index + 1 != peer.lent.size()) {
    lent = std::move(peer.lent.back());
  }
  peer.lent.pop_back();
}

// Ends the loans that the peer has returned, and loans past their deadline.
int LocalLane::LookAfterLoans(Peer& peer, absl::Time now) {
  int ended = 0;
  for (size_t i = peer.lent.size();
       i-- > 0;) {  // backwards, because EndLoan() moves the last loan into the gap
    const Lent& lent = peer.lent[i];
    // The request's place was checked on arrival. A wrong number there harms only the peer.
    const auto* cell =
        reinterpret_cast<const LoanWord*>(peer.region.At(lent.back_place, sizeof(LoanWord)));
    // Acquire: pairs with LocalLoan's release, before which the payload was read.
    if (cell->load(std::memory_order_acquire) == lent.number) {
      EndLoan(peer, i, LoanEnd::kGivenBack);
      ++ended;
    } else if (lent.until <= now) {
      EndLoan(peer, i, LoanEnd::kLate);
      ++ended;
    }
  }
  return ended;
}

int LocalLane::LookAfterAllLoans(absl::Time now) {
  if (lent_count_ == 0 || now < loans_due_) {
    return 0;
  }
  loans_due_ = now + kLoansLookedAt;
  int ended = 0;
  for (const auto& [id, peer] : peers_) {
    ended += LookAfterLoans(*peer, now);
  }
  return ended;
}

}  // namespace cairn::transport
