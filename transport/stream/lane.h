// SPDX-License-Identifier: Apache-2.0
#pragma once
// A lane of transport/stream: a thread, an epoll and the TLS connections of its peers. It never
// waits for one peer. In each turn, a peer gets at most one step in each direction
// (chunk_stream.h).
//
// To break a peer, the lane closes its socket. The memory of the peer's transfers is free at once,
// so there is no quarantine. The kernel's keep-alives detect a peer whose host is gone.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/bounded_queue.h"
#include "base/file.h"
#include "base/peer_identity.h"
#include "transport/stream/chunk_stream.h"
#include "transport/submit_queue.h"
#include "transport/tls/handshakes.h"
#include "transport/transport.h"
#include "transport/transport_metrics.h"

namespace cairn::transport {

class StreamLane;
class StreamPeer;

// A receive or a reply in progress.
struct StreamTransfer {
  enum class Kind : uint8_t { kReceive, kReply, kOwnReply };

  Kind kind = Kind::kReply;
  StreamPeer* peer = nullptr;  // null: the transfer never began
  uint64_t seq = 0;
  std::span<std::byte> target;         // kReceive
  std::span<const std::byte> payload;  // kReply
  proto::FrameBytes frame;
  uint64_t moved = 0;
  bool has_begun = false;  // a reply's first chunk was sent
  uint32_t crc32c = 0;
  absl::Time deadline;
  absl::Status status;
  ReceiveDone receive_done;
  ReplyDone reply_done;
  size_t moving_index = 0;
};

// The payload of an arrival, until it is received or refused.
class StreamHeld final : public Arrival::Held {
 public:
  StreamHeld(StreamLane& lane, StreamPeer& peer, uint64_t seq)
      : lane_(&lane), peer_(&peer), seq_(seq) {}
  ~StreamHeld() override;

 private:
  friend class StreamLane;
  friend class StreamPeer;
  StreamLane* lane_;  // null once the peer is gone or the payload was taken
  StreamPeer* peer_;
  const uint64_t seq_;
  std::vector<std::byte> inline_;  // a payload that came with its request
  size_t index_ = 0;               // index in the lane's list
};

// A connection of a lane. Owned by the lane's thread.
class StreamPeer final : public ChunkStream::User {
 public:
  StreamPeer(StreamLane& lane, PeerId id, TlsArrival arrival);

  absl::Status OnChunk(const Chunk& chunk, ChunkStream::Sink* sink) override;
  absl::Status OnChunkEnd(const Chunk& chunk) override;
  bool NextChunk(Chunk* chunk, std::span<const std::byte>* data) override;
  void OnChunkSent() override;

 private:
  friend class StreamLane;
  // An announced payload above kInlinePayloadBytesMax, which is not received completely yet.
  struct Put {
    uint64_t seq = 0;
    uint64_t payload_bytes = 0;
    StreamTransfer* transfer = nullptr;  // null: neither received nor refused yet
  };

  absl::Status OnRequest(const Chunk& chunk, ChunkStream::Sink* sink);
  absl::Status OnData(const Chunk& chunk, ChunkStream::Sink* sink);
  Put* FindPut(uint64_t seq);
  void ErasePut(uint64_t seq);

  StreamLane& lane_;
  const PeerId id_;
  TlsArrival tls_;
  const PeerIdentity identity_;
  ChunkStream stream_;
  absl::Time hello_by_;  // InfiniteFuture() after its first request
  bool is_gone_ = false;
  bool is_ready_ = false;        // whether it is in the lane's list
  bool can_read_ = true;         // the socket may have bytes
  bool is_watched_out_ = false;  // epoll reports when the socket has room
  int unanswered_ = 0;           // requests without a reply
  std::vector<Put> puts_;
  std::deque<uint64_t> goes_;            // requests to answer with `go`
  std::deque<StreamTransfer*> replies_;  // replies to send, in turn
  StreamTransfer* sending_ = nullptr;    // the reply of the chunk that is being written
  uint32_t sending_bytes_ = 0;           // data bytes of that chunk
  // The request whose front has arrived and whose data is arriving. Null if it is dropped.
  std::unique_ptr<StreamHeld> arriving_;
  absl::Status refusal_;  // the error for that request; sent after all of the request has arrived
};

struct StreamLaneOptions {
  ServerLimits limits = {};
  absl::Duration hello_within = absl::Seconds(2);
};

// Thread-safety: Owned by its thread, except Submit(), Adopt(), Stop(), Join() and peer_count().
class StreamLane final : public Lane {
 public:
  // `handler` and `metrics` must outlive the lane. All lanes of a server share the metrics. `files`
  // tell which certificates are revoked; connections with such a certificate are closed.
  StreamLane(int index, const StreamLaneOptions& options, LaneHandler& handler,
             TransportMetrics& metrics, const TlsFiles& files);
  ~StreamLane() override;

  void Start();
  // Takes over an authenticated connection. Returns false if the lane is stopping or full.
  [[nodiscard]] bool Adopt(TlsArrival arrival);
  void Stop();  // breaks all peers soon after the call
  void Join();

  int index() const override { return index_; }
  absl::Status Submit(absl::AnyInvocable<void(Lane&)> task) override;
  void Receive(Arrival arrival, std::span<std::byte> target, absl::Time deadline,
               ReceiveDone done) override;
  void Reply(const ReplyTo& reply_to, const proto::FrameBytes& frame,
             std::span<const std::byte> payload, absl::Time deadline, ReplyDone done) override;
  void Break(PeerId peer) override;

  int peer_count() const { return peer_count_.load(std::memory_order_relaxed); }

 private:
  friend class StreamHeld;
  friend class StreamPeer;

  // --- The loop
  void Run();
  void Turn();
  int SleepMs(absl::Time now);
  size_t AdoptAll();
  void Pump(StreamPeer& peer);
  void MakeReady(StreamPeer& peer);
  void EndRevoked();
  void ShutDown();

  // --- Peers
  StreamPeer* FindPeer(PeerId id);
  void Condemn(StreamPeer& peer, const absl::Status& why);
  void BreakPeer(StreamPeer& peer, const absl::Status& why);  // Condemn(), counted as peers_broken
  void ReapGone();

  // --- Transfers
  void Arrive(StreamPeer& peer, const Chunk& chunk, std::unique_ptr<StreamHeld> held);
  void RefuseRequest(StreamPeer& peer, const Chunk& chunk, const absl::Status& status);
  void Hold(StreamHeld& held);
  void LetGo(StreamHeld& held);
  void Release(StreamHeld& held);  // refuses the payload
  StreamTransfer& NewTransfer(StreamTransfer::Kind kind, StreamPeer* peer, absl::Time deadline);
  void StartMoving(StreamTransfer& transfer);
  void OnMoved(StreamTransfer& transfer, absl::Status status);
  void FinishLater(StreamTransfer& transfer, absl::Status status);
  void ExpireDeadlines(absl::Time now);
  size_t RunFinished();

  const int index_;
  const StreamLaneOptions options_;
  LaneHandler& handler_;
  TransportMetrics& metrics_;
  const TlsFiles& files_;

  // Shared with other threads.
  SubmitQueue submitted_;
  BoundedQueue<TlsArrival> arrivals_;
  std::atomic<bool> is_stopping_{false};
  std::atomic<int> peer_count_{0};  // includes those not yet adopted
  std::thread thread_;

  // Used by the lane's thread only.
  Fd epoll_;
  std::unordered_map<PeerId, std::unique_ptr<StreamPeer>> peers_;
  std::vector<PeerId> ready_;
  std::vector<PeerId> gone_;
  uint64_t peers_made_ = 0;
  uint64_t generation_ = 0;  // the generation of the files with which peers were checked
  std::vector<StreamHeld*> held_;
  std::vector<StreamTransfer*> moving_;
  std::vector<StreamTransfer*> finished_;
  std::vector<StreamTransfer*> free_;
  std::vector<std::unique_ptr<StreamTransfer>> transfers_;  // owns those in the three lists above
  absl::Time next_deadline_ = absl::InfiniteFuture();       // not later than any deadline
};

}  // namespace cairn::transport
