// SPDX-License-Identifier: Apache-2.0
#include "transport/local/lane_set.h"

#include <utility>

#include "base/check.h"

namespace cairn::transport {

LaneSet::LaneSet(const ServerLimits& limits, LaneHandler& handler) : share_(limits, handler) {
  CAIRN_CHECK(limits.lanes >= 1);
  for (int i = 0; i < limits.lanes; ++i) {
    lanes_.push_back(std::make_unique<LocalLane>(i, share_));
  }
}

LaneSet::~LaneSet() { Stop(); }

void LaneSet::Start() {
  for (const auto& lane : lanes_) {
    lane->Start();
  }
}

void LaneSet::Stop() {
  const MutexLock lock(stop_mutex_);
  if (is_stopped_) {
    return;
  }
  for (const auto& lane : lanes_) {
    lane->Stop();
  }
  for (const auto& lane : lanes_) {
    lane->Join();
  }
  is_stopped_ = true;
}

bool LaneSet::AddPeer(Fd socket, std::optional<Region> region) {
  if (share_.peers.fetch_add(1) >= share_.limits.peers_max) {
    share_.peers.fetch_sub(1);
    share_.metrics.peers_refused.Add();
    return false;
  }
  const unsigned turn = next_.fetch_add(1, std::memory_order_relaxed);
  return lanes_[turn % lanes_.size()]->AddPeer(std::move(socket), std::move(region));
}

}  // namespace cairn::transport
