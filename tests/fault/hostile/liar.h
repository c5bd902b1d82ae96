// SPDX-License-Identifier: Apache-2.0
#pragma once
// A member of a cluster that lies. It has a certificate that the other members accept, serves
// cairn.v1.Peer, the calls of cairn.v1.Store that members make, and the data plane over TLS, and
// answers what a test tells it. Without orders it is an honest member without blocks.
//
// Thread-safety: Thread-safe. Orders run on threads of gRPC and on the lane.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "cairn/v1/peer.grpc.pb.h"
#include "cairn/v1/store.grpc.pb.h"
#include "client/cpp/options.h"
#include "proto/frame.h"

namespace cairn {

// The answer to a get.
struct LiarsImage {
  absl::Status error;  // instead of an image
  std::vector<std::byte> bytes;
  uint64_t first_position = 0;
  int64_t bytes_said_more = 0;  // by the frame, than are sent
  bool is_kept_back = false;    // no answer at all
};

struct LiarsOrders {
  std::function<void(v1::HelloReply*)> hello = {};
  std::function<grpc::Status(const v1::MatchRequest&, v1::MatchReply*)> match = {};
  std::function<LiarsImage(const proto::Get&)> get = {};
  std::function<void(const v1::LocateRequest&, v1::LocateReply*)> locate = {};
  // Calls that are not answered until the caller gives up.
  bool stalls_hello = false, stalls_session = false, stalls_match = false, stalls_announce = false;
  bool ends_sessions = false;  // as soon as they are open
};

class Liar {
 public:
  // `tls` are the certificates of the member, and where others are verified; off: no TLS, and no
  // data plane.
  Liar(std::string name, const TlsOptions& tls);
  ~Liar();

  const std::string& address() const { return address_; }
  const std::string& name() const { return name_; }
  uint64_t incarnation() const { return incarnation_; }
  v1::PeerSelf Self() const;
  void Order(LiarsOrders orders);
  // Pretends to be another process, which does as it is told from now on.
  void Restart(LiarsOrders orders);

  // Calls that came.
  uint64_t hellos() const { return hellos_; }
  uint64_t matches() const { return matches_; }
  uint64_t gets() const { return gets_; }
  uint64_t sessions() const { return sessions_; }

 private:
  class PeerCalls;
  class StoreCalls;
  class Lanes;
  struct Parts;

  LiarsOrders orders() const;
  // Waits until the caller gives up, or the liar ends.
  grpc::Status Stall(grpc::ServerContext& context) const;

  const std::string name_;
  std::string address_;
  std::atomic<uint64_t> incarnation_{1};
  std::atomic<uint64_t> hellos_{0}, matches_{0}, gets_{0}, sessions_{0};
  std::atomic<bool> is_ending_{false};
  mutable Mutex mutex_;
  LiarsOrders orders_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Parts> parts_;
};

}  // namespace cairn
