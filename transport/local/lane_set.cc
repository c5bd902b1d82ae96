// SPDX-License-Identifier: Apache-2.0
#include "transport/local/lane_set.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace cairn::transport {
namespace {

constexpr absl::Duration kJobsWait = absl::Seconds(1);
constexpr uint64_t kNoParty = ~uint64_t{0};

}  // namespace

absl::Status LaneShare::Welcome(Greeted& greeted) {
  const MutexLock lock(mutex);
  if (lanes.empty()) {
    return absl::UnavailableError("the daemon is stopping");
  }
  if (peers.fetch_add(1) >= limits.peers_max) {
    peers.fetch_sub(1);
    return absl::ResourceExhaustedError(
        absl::StrCat("connections: ", limits.peers_max, " are open"));
  }
  absl::Status taken = lanes[turn++ % lanes.size()]->AddPeer(greeted);
  if (!taken.ok()) {
    peers.fetch_sub(1);
  }
  return taken;
}

LaneSet::LaneSet(const ServerLimits& limits, LaneHandler& handler, const Lender* lender)
    : share_(std::make_shared<LaneShare>(limits, handler, lender)), greeter_(share_) {
  CAIRN_CHECK(limits.lanes >= 1);
  for (int i = 0; i < limits.lanes; ++i) {
    lanes_.push_back(std::make_unique<LocalLane>(i, *share_));
  }
}

LaneSet::~LaneSet() { Stop(); }

void LaneSet::Start() {
  for (const auto& lane : lanes_) {
    lane->Start();
  }
  {
    const MutexLock lock(share_->mutex);
    for (const auto& lane : lanes_) {
      share_->lanes.push_back(lane.get());
    }
  }
  greeter_.Start();
}

void LaneSet::Stop(BlockingJobs::Job last) {
  const MutexLock lock(stop_mutex_);
  if (is_stopped_) {
    return;
  }
  greeter_.Stop();
  {
    const MutexLock share_lock(share_->mutex);
    share_->lanes.clear();
  }
  for (const auto& lane : lanes_) {
    lane->Stop();
  }
  for (const auto& lane : lanes_) {
    lane->Join();
  }
  if (last) {
    share_->jobs.Run(kNoParty, std::move(last));
  }
  share_->jobs.Stop(kJobsWait);
  is_stopped_ = true;
}

void LaneSet::Report(MetricSink& sink, std::string_view transport) const {
  share_->metrics.regions_bytes.Set(static_cast<int64_t>(share_->regions.used_bytes()));
  share_->metrics.Report(sink, transport);
}

}  // namespace cairn::transport
