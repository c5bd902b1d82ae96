// SPDX-License-Identifier: Apache-2.0
#pragma once
// A lane whose peers are unix sockets and whose payloads lie in memory that both sides see: the
// peer's sealed memfd (transport/local) or this process itself (transport/memory).
//
// One turn of the loop: run what was submitted, read the sockets that have something, copy one
// piece of one transfer, close what is broken, run completions. It polls for 50 µs after the last
// progress, then sleeps.
//
// Thread-safety: Owned by its thread, but for Submit(), AddPeer(), Stop() and Join(), which are
// Thread-safe.

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "transport/local/packet.h"
#include "transport/local/region.h"
#include "transport/submit_queue.h"
#include "transport/transport.h"
#include "transport/transport_metrics.h"

namespace cairn::transport {

// What the lanes of one server share. Must outlive them.
struct LaneShare {
  LaneShare(const ServerLimits& server_limits, LaneHandler& lane_handler)
      : limits(server_limits), handler(lane_handler), regions(server_limits.regions_bytes_max) {}

  const ServerLimits limits;
  LaneHandler& handler;
  RegionBudget regions;
  TransportMetrics metrics;
  std::atomic<int> peers{0};  // connections open or on their way to a lane
};

class LocalLane final : public Lane {
 public:
  // Copied between two looks at the sockets.
  static constexpr size_t kPieceBytes = size_t{256} << 10;
  // Polling after the last progress, before the lane sleeps.
  static constexpr absl::Duration kSpin = absl::Microseconds(50);
  // From connecting to the Hello with its memory.
  static constexpr absl::Duration kHelloWait = absl::Seconds(5);
  // Requests of one peer without a reply: more than any window allows, so the peer is broken.
  static constexpr int kUnansweredMax = 2 * static_cast<int>(proto::kWindowMax);
  static constexpr size_t kTasksMax = 4096;

  LocalLane(int index, LaneShare& share);
  ~LocalLane() override;  // REQUIRES: Join() has returned, or Start() was never called

  void Start();
  // No new tasks or peers; every transfer completes, then the thread ends.
  void Stop();
  void Join();

  // Takes a connected socket, counted in share.peers already. With `region` the peer needs no memfd
  // of its own. False: the lane is stopping or its queue is full, the socket is closed and no
  // longer counted.
  bool AddPeer(Fd socket, std::optional<Region> region);

  // Calls `accept` while `listener` has connections. Before Start(), at most once.
  enum class Accepted {
    kPeer,          // one was taken or turned away; ask again
    kNone,          // no more of them
    kNoDescriptor,  // the process has none left; ask later
  };
  void Listen(int listener, absl::AnyInvocable<Accepted()> accept);
  // The number of the listener names another socket now. On the lane's thread.
  void WatchListener();

  int index() const override { return index_; }
  absl::Status Submit(absl::AnyInvocable<void(Lane&)> task) override;
  void Receive(Arrival arrival, std::span<std::byte> target, absl::Time deadline,
               ReceiveDone done) override;
  void Reply(const ReplyTo& reply_to, const proto::FrameBytes& frame,
             std::span<const std::byte> payload, absl::Time deadline, ReplyDone done) override;
  void Break(PeerId peer) override;

 private:
  class HeldPayload;

  struct Peer {
    PeerId id = 0;
    Fd socket;
    std::optional<PeerIdentity> identity;
    Region region;
    std::optional<std::string> region_owner;  // as OnRegion() says; none: the region is no memfd
    bool has_region = false;
    bool is_open = false;      // its Hello came
    bool is_breaking = false;  // on broken_
    int unanswered = 0;
    absl::Status end =
        absl::UnavailableError("the peer is gone");  // of its transfers when it breaks
  };

  // A copy under way. Receive: from the peer's memory to `target`; Reply: from `source` to the
  // peer's memory.
  struct Moving {
    PeerId peer = 0;
    uint64_t place = 0;
    std::span<std::byte> target;
    std::span<const std::byte> source;
    size_t bytes = 0;
    size_t moved_bytes = 0;
    uint32_t crc32c = 0;
    absl::Time deadline;
    proto::FrameBytes frame;   // Reply
    ReceiveDone receive_done;  // exactly one of the two is set
    ReplyDone reply_done;
  };

  // A transfer that is over; its callback runs at the end of the turn.
  struct Over {
    absl::Status status;
    uint32_t crc32c = 0;
    ReceiveDone receive_done;
    ReplyDone reply_done;
  };

  // lane.cc: the loop, and the ends of peers
  void Run();
  int Turn(int wait_ms);
  int SleepMs() const;
  int ServeSockets(int wait_ms);
  int ExpireDeadlines(absl::Time now);
  void BreakPeer(Peer& peer, absl::Status end);
  int CloseBroken();
  int RunCallbacks();
  void EndAll();
  Peer* Find(PeerId id);

  // lane_arrivals.cc: peers, their memory, their requests
  void ServeListener();
  void OpenPeer(Fd socket, std::optional<Region> region);
  void ReadPeer(Peer& peer);
  void TakePacket(Peer& peer, Packet packet);
  absl::Status TakeHello(Peer& peer, const Message& message, std::vector<Fd> fds);
  absl::Status CheckPlaces(const Peer& peer, const Message& message) const;
  void TakeRequest(Peer& peer, const Message& message);
  void RefuseRequest(const ReplyTo& reply_to, const Message& message, const absl::Status& status);

  // lane_transfers.cc: what Receive() and Reply() begin
  int MovePiece();
  void CopyPiece(Moving& moving, const Peer& peer);
  void FinishMoving(size_t index, absl::Status status);
  absl::Status SendReply(const Moving& moving, Peer& peer);

  const int index_;
  LaneShare& share_;
  SubmitQueue queue_;
  Fd epoll_;
  std::thread thread_;
  std::atomic<bool> is_stopping_{false};
  std::atomic<int> arrivals_held_{
      0};  // atomic: an Arrival may be destroyed after the lane's thread has ended

  uint64_t peers_made_ = 0;
  std::unordered_map<PeerId, std::unique_ptr<Peer>> peers_;
  std::deque<std::pair<absl::Time, PeerId>> greeting_;  // by deadline: peers whose Hello is due
  std::vector<Moving> moving_;
  size_t moving_next_ = 0;  // whose piece is next
  std::vector<PeerId> broken_;
  std::vector<Over> over_;

  int listener_ = -1;
  absl::AnyInvocable<Accepted()> accept_;
  bool is_listening_ = false;
  absl::Time listen_again_ = absl::InfiniteFuture();
};

}  // namespace cairn::transport
