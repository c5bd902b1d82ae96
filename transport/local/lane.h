// SPDX-License-Identifier: Apache-2.0
#pragma once
// A lane for peers on unix sockets. Payloads are in shared memory: the peer's sealed memfd
// (transport/local) or this process's own memory (transport/memory).
//
// Each iteration of its loop runs submitted tasks, reads sockets, copies one piece of one transfer,
// closes broken peers and runs completions. The lane polls for 50 µs after the last progress, then
// it sleeps.
//
// Thread-safety: Owned by its thread, except Submit(), AddPeer(), Stop() and Join(), which are
// Thread-safe.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/mutex.h"
#include "transport/local/blocking_jobs.h"
#include "transport/local/region.h"
#include "transport/local/socket.h"
#include "transport/submit_queue.h"
#include "transport/transport.h"
#include "transport/transport_metrics.h"

namespace cairn::transport {

inline constexpr int kLanesMax = 64;
inline constexpr int kLaneBits = 6;
static_assert(1 << kLaneBits == kLanesMax);
inline constexpr int kEventsMax = 64;

// The tag of an epoll event of a lane or the greeter: a PeerId, or one of these values. A PeerId is
// larger than these, because its counter starts at 1.
inline constexpr uint64_t kSubmitTag = 0;
inline constexpr uint64_t kListenerTag = 1;
static_assert(kListenerTag < kLanesMax);

class Lender;
class LocalLane;

// A connection whose hello has arrived and been checked.
struct Greeted {
  Fd socket;
  PeerIdentity identity;
  uint64_t party = 0;
  Region region;
  bool is_memfd = false;  // whether the region is a client's memfd
  Message hello;          // the lane answers it
};

// State that the greeter and the lanes of one server share. They and their jobs own it together.
struct LaneShare {
  // `what_is_lent` may be null; peers then map nothing. It must outlive this object.
  LaneShare(const ServerLimits& server_limits, LaneHandler& lane_handler,
            const Lender* what_is_lent)
      : limits(server_limits),
        handler(lane_handler),
        lender(what_is_lent),
        regions(server_limits.regions_bytes_max) {}

  // Gives the connection to one of the lanes, in turn. Errors: ResourceExhausted (there are
  // peers_max connections, or the lane's queue is full), Unavailable (the server is stopping).
  // After an error, `greeted` still owns its socket.
  absl::Status Welcome(Greeted& greeted);

  const ServerLimits limits;
  LaneHandler& handler;
  const Lender* const lender;
  RegionBudget regions;
  TransportMetrics metrics;
  std::atomic<int> peers{0};  // connections of lanes, including those on their way to one
  BlockingJobs jobs;
  Mutex mutex;
  // The lanes that take connections. Empty before the start and after Stop().
  std::vector<LocalLane*> lanes ABSL_GUARDED_BY(mutex);
  size_t turn ABSL_GUARDED_BY(mutex) = 0;
};

class LocalLane final : public Lane {
 public:
  // The bytes that are copied between two polls of the sockets.
  static constexpr size_t kPieceBytes = size_t{256} << 10;
  // How long the lane polls after the last progress before it sleeps.
  static constexpr absl::Duration kSpin = absl::Microseconds(50);
  // Limit for the unanswered requests of one peer, which is above every window. The connection of a
  // peer that exceeds it is broken.
  static constexpr int kUnansweredMax = 2 * static_cast<int>(proto::kWindowMax);
  static constexpr size_t kTasksMax = 4096;

  // `share` must outlive it.
  LocalLane(int index, LaneShare& share);
  ~LocalLane() override;  // REQUIRES: Join() has returned, or Start() was never called

  void Start();
  // Refuses new tasks and peers, and completes every transfer. Then the thread ends.
  void Stop();
  void Join();

  // Takes over a connection that share.peers already counts. Errors: those of Submit(). After an
  // error, `greeted` is unchanged.
  absl::Status AddPeer(Greeted& greeted);

  int index() const override { return index_; }
  absl::Status Submit(absl::AnyInvocable<void(Lane&)> task) override;
  void Receive(Arrival arrival, std::span<std::byte> target, absl::Time deadline,
               ReceiveDone done) override;
  void Reply(const ReplyTo& reply_to, const proto::FrameBytes& frame,
             std::span<const std::byte> payload, absl::Time deadline, ReplyDone done) override;
  bool can_lend() const override;
  bool CanLendNow(std::span<const std::byte> payload) const override;
  void Lend(const ReplyTo& reply_to, const proto::FrameBytes& frame,
            std::span<const std::byte> payload, absl::Time until, ReplyDone sent,
            LoanDone back) override;
  void LendPlaces(const ReplyTo& reply_to, const proto::FrameBytes& frame,
                  const PlacedPayload& payload, absl::Time until, ReplyDone sent,
                  LoanDone back) override;
  void ReplyPlaces(const ReplyTo& reply_to, const proto::FrameBytes& frame,
                   const PlacedPayload& payload, absl::Time deadline, ReplyDone done) override;
  void Break(PeerId peer) override;

 private:
  class HeldPayload;

  // A loan that is in force.
  struct Lent {
    uint32_t word = 0;    // index of the loan's word in Lender
    uint64_t number = 0;  // not reused; the word has this value while the loan is in force
    // in the peer's region; the peer writes the number there to return the loan
    uint64_t back_place = 0;
    uint64_t bytes = 0;
    absl::Time until;
    LoanDone done;
  };

  struct Peer {
    PeerId id = 0;
    Fd socket;
    PeerIdentity identity;
    uint64_t party = 0;
    Region region;
    std::optional<std::string> region_owner;  // from OnRegion(); nullopt: the region is no memfd
    std::vector<Fd> brought;                  // unexpected descriptors, which a job closes
    bool is_breaking = false;                 // whether it is in broken_
    bool asks_to_map = false;                 // its hello has asked for it, and is not answered yet
    bool is_mapped = false;                   // it can take loans
    bool reads_places = false;                // it can take loans of several places
    bool takes_batches = false;               // it has sent a batch
    Batch unsent;                             // replies; the peer is then in unsent_
    std::vector<Lent> lent;
    int unanswered = 0;
    absl::Status end =
        absl::UnavailableError("the peer is gone");  // the status of its transfers when it breaks
  };

  // A running copy. A receive copies from the peer's memory to `target`. A reply copies from
  // `source`, and then from `places`, to the peer's memory.
  struct Moving {
    PeerId peer = 0;
    uint64_t place = 0;
    std::span<std::byte> target;
    std::span<const std::byte> source;  // the rest of it
    std::span<const std::span<const std::byte>> places;
    size_t bytes = 0;
    size_t moved_bytes = 0;
    uint32_t crc32c = 0;
    absl::Time deadline;
    proto::FrameBytes frame;     // the frame of a reply
    bool brings_memory = false;  // a reply to a hello that carries descriptors of lent memory
    ReceiveDone receive_done;    // exactly one of the two callbacks is set
    ReplyDone reply_done;
  };

  // A completed transfer or loan. Its callback runs at the end of the iteration.
  struct CompletedTransfer {
    absl::Status status = absl::OkStatus();
    uint32_t crc32c = 0;
    ReceiveDone receive_done = nullptr;  // exactly one of the three callbacks is set
    ReplyDone reply_done = nullptr;
    LoanEnd loan_end = LoanEnd::kGivenBack;
    LoanDone loan_done = nullptr;
  };

  // --- The loop, and how peers end
  void Run();
  int Turn(int wait_ms);
  int ServeSockets(int wait_ms);
  int ExpireDeadlines(absl::Time now);
  void BreakPeer(Peer& peer, absl::Status end);
  int CloseBroken();
  int RunCallbacks();
  void EndAll();
  Peer* Find(PeerId id);

  // --- Arrivals: new peers and their requests
  void OpenPeer(Greeted greeted);
  absl::Status CountRegion(Peer& peer, const Greeted& greeted);
  void ReadPeer(Peer& peer);
  void BreakForWhatItSent(Peer& peer, const absl::Status& why);
  absl::Status TakePacket(Peer& peer, Packet& packet);
  absl::Status TakeMessage(Peer& peer, const Message& message);
  absl::Status CheckPlaces(const Peer& peer, const Message& message) const;
  void TakeRequest(Peer& peer, const Message& message);
  void RefuseRequest(const ReplyTo& reply_to, const Message& message, const absl::Status& status);

  // --- Transfers, which Receive() and Reply() begin
  // Each function returns the bytes that it has moved. REQUIRES: moving_ is not empty.
  size_t MovePiece();
  size_t CopyPiece(Moving& moving, const Peer& peer);
  static void CopyFromPlaces(Moving& moving, std::byte* target, size_t bytes);
  void FinishMoving(size_t index, absl::Status status);
  absl::Status SendReply(const Moving& moving, Peer& peer);
  absl::Status SendTo(Peer& peer, const Envelope& envelope, const proto::FrameBytes& frame,
                      std::span<const int> fds);
  void SendUnsent();
  absl::Status BreakDeaf(Peer& peer, const absl::Status& sent);

  // --- Loans, which Lend() begins
  void FillWords();
  // Returns the peer. If it is gone, ends the loan at once, and returns null.
  Peer* PeerToLend(const ReplyTo& reply_to, ReplyDone& sent, LoanDone& back);
  void BeginLoan(Peer& peer, const ReplyTo& reply_to, const proto::FrameBytes& frame,
                 Envelope envelope, absl::Time until, ReplyDone sent, LoanDone back);
  void EndLoan(Peer& peer, size_t index, LoanEnd end);
  int LookAfterLoans(Peer& peer, absl::Time now);
  int LookAfterAllLoans(absl::Time now);

  const int index_;
  LaneShare& share_;
  SubmitQueue queue_;
  Fd epoll_;
  std::thread thread_;
  std::atomic<bool> is_stopping_{false};
  std::atomic<int> arrivals_held_{
      0};  // atomic, because an Arrival may be destroyed after the lane's thread has ended

  uint64_t peers_made_ = 0;
  std::unordered_map<PeerId, std::unique_ptr<Peer>> peers_;
  std::vector<Moving> moving_;
  size_t moving_next_ = 0;  // the transfer whose next piece is copied next
  std::vector<PeerId> broken_;
  std::vector<PeerId> unsent_;  // peers whose replies leave together at the end of the turn
  std::vector<CompletedTransfer> completed_;
  std::vector<uint32_t> free_words_;
  uint64_t loans_made_ = 0;
  size_t lent_count_ = 0;                          // loans of all peers
  absl::Time loans_due_ = absl::InfiniteFuture();  // when to check loans next
};

}  // namespace cairn::transport
