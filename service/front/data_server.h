// SPDX-License-Identifier: Apache-2.0
#pragma once
// The data plane's front: what arrives on the lanes of one transport server becomes a get or a put,
// and every request but Goodbye gets exactly one reply.
//
//   lane thread   parse, check ticket and limits, Admit() and receive (puts)
//   path pool     Get(), Put()
//   lane thread   send the reply, free what it held
//
// A peer's first frame must be a Hello whose ticket names an open session; later ones must carry
// the same ticket. Frames that break the rules are answered with a typed error; after kStrikesMax
// of them, or one wrong ticket, the peer is broken.
//
// Thread-safety: OnArrival() and OnPeerGone() are Owned by the lane thread they are called on; the
//                rest is Thread-safe. Must outlive its transport server and the path pool's jobs.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "proto/frame.h"
#include "service/front/data_metrics.h"
#include "service/get/get.h"
#include "service/path_pool.h"
#include "service/put/put.h"
#include "service/sessions.h"
#include "transport/transport.h"

namespace cairn {

class DataServer final : public transport::LaneHandler {
 public:
  static constexpr int kStrikesMax = 3;

  struct Parts {  // borrowed
    PutPath& put;
    GetPath& get;
    Sessions& sessions;
    PathPool& pool;
    const Clock& clock;
  };
  struct Options {
    int server = 0;                              // its number in PeerRef
    std::string_view transport_label = "local";  // static storage
    int lanes = 1;
    uint32_t window = 32;  // requests in flight per peer
    uint64_t payload_bytes_max = limits::kTransferBytesMax;
  };
  DataServer(const Parts& parts, const Options& options);
  ~DataServer() override;

  void OnArrival(transport::Lane& lane, transport::Arrival arrival) override;
  void OnPeerGone(transport::Lane& lane, transport::PeerId peer) override;

  // Ends a peer, from any thread; an unknown one is ignored.
  void BreakPeer(const PeerRef& peer);
  // Drain: puts are answered Unavailable from now on.
  void RefusePuts() { refuses_puts_.store(true, std::memory_order_relaxed); }
  // Requests that have arrived and are not over.
  int64_t in_flight() const { return metrics_.in_flight.Value(); }
  void Report(MetricSink& sink) const { metrics_.Report(sink); }

 private:
  struct Peer {  // of the lane thread
    Session session;
    proto::Ticket ticket{};
    bool is_greeted = false;
    uint32_t window = 0;
    uint32_t in_flight = 0;
    int strikes = 0;
  };
  // One request, from its arrival until its reply is over.
  struct Request {
    transport::ReplyTo reply_to;
    int lane = 0;
    proto::Frame frame;
    Session session;
    DataOp op = DataOp::kOther;
    absl::Time arrived, deadline;
  };
  // What a pool thread, or BreakPeer(), leaves for a lane to do.
  struct Outgoing {
    Request request{};
    proto::Frame reply{};
    Answer answer{};                      // empty for all but gets
    transport::PeerId peer_to_break = 0;  // not 0: nothing else counts
  };
  struct LaneState {
    absl::flat_hash_map<transport::PeerId, Peer> peers;  // of the lane thread
    Mutex mutex;
    transport::Lane* lane ABSL_GUARDED_BY(mutex) = nullptr;
    // At most window * peers of the lane, and a break for each peer.
    std::vector<Outgoing> outbox ABSL_GUARDED_BY(mutex);
    bool is_scheduled ABSL_GUARDED_BY(mutex) = false;
    std::vector<Outgoing> draining;  // of the lane thread; keeps its memory between turns
  };

  // --- on the lane
  void Dispatch(transport::Lane& lane, Request request, transport::Arrival arrival, Peer& peer);
  absl::Status CheckRequest(const Request& request, const transport::Arrival& arrival,
                            const Peer& peer) const;
  void StartHello(transport::Lane& lane, Request request, Peer& peer);
  void StartGet(transport::Lane& lane, Request request);
  void StartPut(transport::Lane& lane, Request request, transport::Arrival arrival);
  void Landed(transport::Lane& lane, Request request, PutContext context,
              const transport::Received& received);
  // A refusal that counts against the peer; at the last one it is broken.
  void Strike(transport::Lane& lane, Request request, Peer& peer, const absl::Status& status,
              bool is_last);
  void Refuse(transport::Lane& lane, Request request, const absl::Status& status);
  void Send(transport::Lane& lane, Request request, const proto::Frame& reply, Answer answer,
            bool breaks_after);
  void Over(transport::Lane& lane, const Request& request, absl::StatusCode code);

  // --- on the pool
  void RunGet(const Request& request);
  void RunPut(const Request& request, PutContext context, uint32_t crc32c);

  // --- anywhere
  proto::Frame ReplyOf(const Request& request, proto::Body body) const;
  void Post(int lane, Outgoing outgoing);
  void DrainOutbox(transport::Lane& lane);

  const Parts parts_;
  const Options options_;
  std::atomic<bool> refuses_puts_{false};
  DataMetrics metrics_;
  std::vector<std::unique_ptr<LaneState>> lanes_;
};

}  // namespace cairn
