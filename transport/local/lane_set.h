// SPDX-License-Identifier: Apache-2.0
#pragma once
// The lanes of one server of this folder's kind, and the greeter that gives them their peers.
//
// Thread-safety: Thread-safe.

#include <memory>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "transport/local/greeter.h"
#include "transport/local/lane.h"
#include "transport/local/region.h"

namespace cairn::transport {

class LaneSet {
 public:
  // REQUIRES: 1 <= limits.lanes <= 64. `handler` must outlive the set, and `lender`, which may be
  // null.
  LaneSet(const ServerLimits& limits, LaneHandler& handler, const Lender* lender = nullptr);
  ~LaneSet();

  // Accepts what comes to `listener`. Before Start(), at most once.
  void Listen(int listener) { greeter_.Listen(listener); }
  // The number of the listener names another socket now. Thread-safe.
  void ListenAgain() { greeter_.ListenAgain(); }
  void Start();
  // Breaks all peers, completes every transfer, joins the threads, and runs `last` where it may
  // block, a second at most. Later calls wait for the first.
  void Stop(BlockingJobs::Job last = nullptr);

  // Takes a connected socket of this process, whose peer needs no memfd. False: the set is
  // stopping, and the socket is closed.
  bool AddPeer(Fd socket, Region region) {
    return greeter_.Add(std::move(socket), std::move(region));
  }

  int count() const { return static_cast<int>(lanes_.size()); }
  LocalLane& at(int index) { return *lanes_.at(index); }
  void Report(MetricSink& sink, std::string_view transport) const;

 private:
  // Shared with jobs of its peers, of which one that is held up outlives the set.
  const std::shared_ptr<LaneShare> share_;
  std::vector<std::unique_ptr<LocalLane>> lanes_;
  Greeter greeter_;
  Mutex stop_mutex_;
  bool is_stopped_ ABSL_GUARDED_BY(stop_mutex_) = false;
};

}  // namespace cairn::transport
