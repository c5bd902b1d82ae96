// SPDX-License-Identifier: Apache-2.0
#pragma once
// The lanes of one server of this folder's kind, and where its new peers go.
//
// Thread-safety: Thread-safe.

#include <atomic>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "transport/local/lane.h"
#include "transport/local/region.h"

namespace cairn::transport {

class LaneSet {
 public:
  // REQUIRES: 1 <= limits.lanes <= 64. `handler` must outlive the set.
  LaneSet(const ServerLimits& limits, LaneHandler& handler);
  ~LaneSet();

  void Start();
  // Breaks all peers, completes every transfer, joins the threads. Later calls wait for the first.
  void Stop();

  // Gives a connected socket to the next lane in turn. False when there are peers_max already, or
  // the set is stopping: the socket is then closed.
  bool AddPeer(Fd socket, std::optional<Region> region);

  int count() const { return static_cast<int>(lanes_.size()); }
  LocalLane& at(int index) { return *lanes_.at(index); }
  void Report(MetricSink& sink, std::string_view transport) const {
    share_.metrics.Report(sink, transport);
  }

 private:
  LaneShare share_;
  std::vector<std::unique_ptr<LocalLane>> lanes_;
  std::atomic<unsigned> next_{0};
  Mutex stop_mutex_;
  bool is_stopped_ ABSL_GUARDED_BY(stop_mutex_) = false;
};

}  // namespace cairn::transport
