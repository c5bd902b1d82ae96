// SPDX-License-Identifier: Apache-2.0
#pragma once
// A lane over UCX: one thread, one UCX worker, one endpoint per peer.
//
// After the last progress, the loop spins for 50 µs. Then it sleeps, until the worker or the lane's
// own eventfd wakes it. UCX callbacks only record what has happened. The handler and the
// completions are called from the loop, outside UCX. Only Condemn() ends a peer: the loop closes
// the peer's endpoint by force, and UCX then calls the callback of each of its requests. Only then
// is the requests' memory free. If a callback does not come within kStuckAfter, UCX has failed. The
// lane then destroys the worker, which ends all requests, loses all its peers, and makes a new
// worker.

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/bounded_queue.h"
#include "base/file.h"
#include "base/mutex.h"
#include "transport/submit_queue.h"
#include "transport/transport.h"
#include "transport/transport_metrics.h"
#include "transport/ucx/context.h"
#include "transport/ucx/wire.h"

namespace cairn::transport {

// --- A lane's records of its peers and of its requests in UCX. Owned by its thread

class UcxLane;

// One endpoint: the connection of one client to one lane.
struct UcxPeer {
  UcxLane* lane = nullptr;
  PeerId id = 0;
  ucp_ep_h endpoint = nullptr;
  int transfers = 0;     // transfers in UCX, whose callbacks have not run yet
  int own_frames = 0;    // transfers that are refusals, Ping or Pong frames
  uint32_t arrived = 0;  // requests of this iteration that the handler has not seen
  absl::Time heard;      // time of the peer's last message
  int pings_missed = 0;

  // Set by Condemn(), which may run inside a UCX callback. The loop closes the endpoint later.
  bool is_breaking = false;
  bool is_close_started = false;
  void* close_request = nullptr;
  absl::Time breaking_since;
};

// One send or receive. Until its callback runs, UCX uses `header` and the memory that the transfer
// moves.
struct UcxTransfer {
  enum class Kind : uint8_t { kReceive, kReply, kOwnFrame };
  static constexpr size_t kNotMoving = ~size_t{0};

  UcxLane* lane = nullptr;
  UcxPeer* peer = nullptr;  // null if the peer was gone before UCX got the transfer
  Kind kind = Kind::kReply;
  std::span<std::byte> target;         // kReceive
  std::span<const std::byte> payload;  // kReply
  absl::Time deadline;
  HeaderBytes header;
  ReceiveDone receive_done;
  ReplyDone reply_done;

  absl::Status status;  // the result; an error as soon as the peer is condemned
  size_t moving_index = kNotMoving;
  bool is_quarantined = false;

  size_t bytes() const { return kind == Kind::kReceive ? target.size() : payload.size(); }
};

// The payload of an arrival, until it is received or refused.
class UcxHeld final : public Arrival::Held {
 public:
  UcxHeld(UcxLane& lane, UcxPeer& peer) : lane_(&lane), peer_(&peer) {}
  ~UcxHeld() override;  // refuses the payload

  UcxPeer* peer() const { return peer_; }

 private:
  friend class UcxLane;
  UcxLane* lane_;  // null once the peer is gone or the payload is taken
  UcxPeer* peer_;
  void* descriptor_ = nullptr;     // rendezvous: UCX's descriptor, to be received or released
  std::vector<std::byte> copied_;  // eager: at most kEagerRequestBytesMax
  size_t index_ = 0;               // index in the lane's held_
};

// --- The lane

// Options of a server and its lanes.
struct UcxLaneOptions {
  ServerLimits limits = {};
  absl::Duration spin = absl::Microseconds(50);
  // The time between pings of an idle peer. Two pings without an answer end the peer.
  absl::Duration ping_interval = absl::Seconds(10);
  bool is_crc_computed = true;  // off only for measuring its cost
  // Set only by tests: the number of receive completions to drop, as if UCX had not called back.
  std::atomic<int>* lost_completions = nullptr;
};

// Thread-safety: Owned by its thread, except Submit(), Adopt(), Refuse(), TakeUnaccepted(),
// Finish() and peer_count().
class UcxLane final : public Lane {
 public:
  // `context`, `handler` and `metrics` must outlive the lane. All lanes of a server share the
  // metrics.
  UcxLane(int index, const UcxContext& context, const UcxLaneOptions& options, LaneHandler& handler,
          TransportMetrics& metrics);
  ~UcxLane() override;

  // Starts the thread and returns once its worker is ready.
  absl::Status Start();
  // Takes over a connection request from the listener. Thread-safe. If it returns false, the caller
  // still owns the request.
  [[nodiscard]] bool Adopt(ucp_conn_request_h request);
  // Shutdown has three steps. Refuse() returns once the lane accepts no more connections. Then the
  // caller rejects every request from TakeUnaccepted(), and closes the listener. Finish() breaks
  // all peers and joins the thread.
  void Refuse();
  ucp_conn_request_h TakeUnaccepted();  // null if none is left
  void Finish();

  int index() const override { return index_; }
  absl::Status Submit(absl::AnyInvocable<void(Lane&)> task) override;
  void Receive(Arrival arrival, std::span<std::byte> target, absl::Time deadline,
               ReceiveDone done) override;
  void Reply(const ReplyTo& reply_to, const proto::FrameBytes& frame,
             std::span<const std::byte> payload, absl::Time deadline, ReplyDone done) override;
  void Break(PeerId peer) override;

  int peer_count() const { return peer_count_.load(std::memory_order_relaxed); }

 private:
  friend class UcxHeld;
  enum class Phase : int { kServing, kRefusing, kFinishing };

  // --- The loop
  void Run();
  absl::Status SetUp();
  size_t Turn(absl::Time now);
  void Sleep(absl::Time now);
  size_t AcceptConnections();
  size_t WatchIdlePeers(absl::Time now);
  void ShutDown();

  // --- Peers: accepting and closing them
  void Accept(ucp_conn_request_h request);
  void Condemn(UcxPeer& peer, const absl::Status& why);
  void BreakPeer(UcxPeer& peer, const absl::Status& why);  // Condemn(), counted as peers_broken
  size_t CloseBroken();
  void StartClose(UcxPeer& peer);
  size_t ReapClosed(absl::Time now);
  void Forget(UcxPeer& peer);
  void RebuildWorker();
  void AbandonWorker();
  UcxPeer* FindPeer(PeerId id);
  static void OnEndpointError(void* argument, ucp_ep_h endpoint, ucs_status_t status);

  // --- Transfers: arrivals, receives, replies
  static ucs_status_t OnRequest(void* argument, const void* header, size_t header_bytes, void* data,
                                size_t data_bytes, const ucp_am_recv_param_t* param);
  static ucs_status_t OnBatch(void* argument, const void* header, size_t header_bytes, void* data,
                              size_t data_bytes, const ucp_am_recv_param_t* param);
  UcxPeer* PeerOf(const ucp_am_recv_param_t* param);  // null: the peer is not open
  ucs_status_t TakeRequest(UcxPeer& peer, const Header& header, void* data, size_t data_bytes,
                           const ucp_am_recv_param_t* param);
  size_t DispatchArrivals();
  void RefuseRequest(UcxPeer& peer, const proto::FrameBytes& request, const absl::Status& status);
  void SendOwnFrame(UcxPeer& peer, uint64_t capacity_bytes, const proto::FrameBytes& frame);
  void Hold(UcxHeld& held);
  void* LetGo(UcxHeld& held);   // returns the descriptor, which the caller then owns
  void Release(UcxHeld& held);  // refuses the payload
  UcxTransfer& NewTransfer(UcxTransfer::Kind kind, UcxPeer* peer, absl::Time deadline);
  void Send(UcxTransfer& transfer, uint32_t flags);
  void StartMoving(UcxTransfer& transfer);
  void FinishLater(UcxTransfer& transfer, absl::Status status);
  void OnMoved(UcxTransfer& transfer, ucs_status_t status);
  void StopMoving(UcxTransfer& transfer);
  size_t ExpireDeadlines(absl::Time now);
  size_t RunFinished();
  static void OnSent(void* request, ucs_status_t status, void* argument);
  static void OnReceived(void* request, ucs_status_t status, size_t bytes, void* argument);

  const int index_;
  const UcxContext& context_;
  const UcxLaneOptions options_;
  LaneHandler& handler_;
  TransportMetrics& metrics_;

  // Shared with other threads.
  SubmitQueue submitted_;
  BoundedQueue<ucp_conn_request_h> connections_;
  std::atomic<Phase> phase_{Phase::kServing};
  std::atomic<int> peer_count_{0};  // includes requests that are not accepted yet
  Mutex state_mutex_;
  CondVar state_changed_;
  bool is_set_up_ ABSL_GUARDED_BY(state_mutex_) = false;
  absl::Status set_up_status_ ABSL_GUARDED_BY(state_mutex_);
  bool is_refusing_ ABSL_GUARDED_BY(state_mutex_) = false;  // accepts no more connections
  std::thread thread_;

  // Used by the lane thread only.
  std::unique_ptr<UcxWorker> worker_;
  Fd epoll_;
  std::unordered_map<PeerId, std::unique_ptr<UcxPeer>> peers_;
  std::unordered_map<ucp_ep_h, UcxPeer*> peers_by_endpoint_;
  std::vector<UcxPeer*> breaking_;
  uint64_t peers_made_ = 0;
  uint64_t quarantine_bytes_ = 0;  // this lane's; the gauge counts all lanes
  std::vector<Arrival> arrived_;
  std::vector<UcxHeld*> held_;
  std::vector<UcxTransfer*> moving_;
  std::vector<UcxTransfer*> finished_;
  std::vector<UcxTransfer*> free_;
  std::vector<std::unique_ptr<UcxTransfer>> transfers_;  // owns those in the three lists above
  absl::Time next_deadline_ = absl::InfiniteFuture();    // not later than any deadline in moving_
  absl::Time next_watch_ = absl::InfinitePast();
  absl::Time idle_since_ = absl::InfinitePast();
  bool is_draining_ = false;  // refuses all further arrivals
};

}  // namespace cairn::transport
