// SPDX-License-Identifier: Apache-2.0
#pragma once
// The server of the data plane, for the peers of one transport server. It parses and checks each
// frame. Each request except Goodbye gets exactly one reply.
//
// - get/get.h and put/put.h describe the steps of gets and puts.
// - replies.h sends every reply.
//
// A peer's first frame must be a Hello whose ticket names an open session. All later frames must
// carry the same ticket. An invalid frame is answered with an error. A peer is disconnected after
// kStrikesMax invalid frames, or after one wrong ticket.
//
// Thread-safety: OnArrival() and OnPeerGone() are Owned by the lane thread that calls them. The
//                rest is Thread-safe. Must outlive its transport server and the path pool's jobs.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "proto/frame.h"
#include "service/data_metrics.h"
#include "service/get/get.h"
#include "service/index/tenant_shares.h"
#include "service/loan_budget.h"
#include "service/put/put.h"
#include "service/replies.h"
#include "service/request.h"
#include "service/sessions.h"
#include "transport/transport.h"

namespace cairn {

class DataServer final : public transport::LaneHandler {
 public:
  static constexpr int kStrikesMax = 3;

  struct Parts {  // borrowed
    Puts& puts;
    Gets& gets;
    Sessions& sessions;
    const Clock& clock;
  };
  struct Options {
    int server = 0;                              // the number of this server in PeerRef
    std::string_view transport_label = "local";  // static storage
    int lanes = 1;
    uint32_t window = 32;  // the limit for running requests per peer
    uint64_t payload_bytes_max = limits::kTransferBytesMax;
    uint64_t regions_bytes_max = 0;   // limit for memory that clients share; 0: none
    uint64_t lent_host_bytes = 0;     // the host tier from which is lent; 0: nothing is lent
    uint64_t lent_staging_bytes = 0;  // staging from which is lent
    absl::Duration slow = absl::InfiniteDuration();  // slower gets and puts are logged
  };
  DataServer(const Parts& parts, const Options& options);

  void OnArrival(transport::Lane& lane, transport::Arrival arrival) override;
  void OnPeerGone(transport::Lane& lane, transport::PeerId peer) override;
  // Returns the tenant to which the client's memory region is counted. All tickets without a
  // session share one name. Errors: those of Sessions::CheckPeer(): nothing is counted to a tenant
  // for a peer that may not use its session.
  absl::StatusOr<std::string> OnRegion(const proto::Ticket& ticket, const PeerIdentity& identity,
                                       uint64_t bytes) override;
  void OnRegionGone(const std::string& owner, uint64_t bytes) override;

  // Disconnects a peer. Ignores unknown peers.
  void BreakPeer(const PeerRef& peer) { replies_.BreakPeer(peer); }
  // Returns the number of requests that have arrived and are not complete.
  int64_t in_flight() const { return metrics_.in_flight.Value(); }
  void Report(MetricSink& sink) const;

 private:
  struct Peer {  // used only by the lane's thread
    Session session;
    proto::Ticket ticket{};
    bool is_greeted = false;
    uint32_t window = 0;
    uint32_t in_flight = 0;
    int strikes = 0;
  };
  using Peers = absl::flat_hash_map<transport::PeerId, Peer>;

  Peers& PeersOf(const transport::Lane& lane) { return peers_[static_cast<size_t>(lane.index())]; }
  absl::Status CheckRequest(const Request& request, const proto::Frame& frame,
                            const transport::Arrival& arrival, const Peer& peer) const;
  void Dispatch(transport::Lane& lane, Request request, const proto::Frame& frame,
                transport::Arrival arrival, Peer& peer);
  void Greet(transport::Lane& lane, const Request& request, const proto::Frame& frame,
             const PeerIdentity* identity, Peer& peer);
  // Refuses a request and counts a strike against the peer. The last strike disconnects the peer.
  void Strike(transport::Lane& lane, const Request& request, Peer& peer, const absl::Status& status,
              bool is_last);
  void OnRequestDone(transport::Lane& lane, const Request& request);

  const Parts parts_;
  const Options options_;
  DataMetrics metrics_;
  LoanBudget loans_;
  Replies replies_;
  std::vector<Peers> peers_;  // one element per lane, Owned by the lane's thread
  mutable Mutex regions_mutex_;
  TenantShares regions_ ABSL_GUARDED_BY(regions_mutex_);
};

}  // namespace cairn
