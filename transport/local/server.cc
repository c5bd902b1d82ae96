// SPDX-License-Identifier: Apache-2.0
#include "transport/local/server.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/local/door_file.h"
#include "transport/local/loans.h"
#include "transport/local/socket.h"

namespace cairn::transport {
namespace {

constexpr absl::Duration kJobsWait = absl::Seconds(1);
constexpr uint64_t kNoParty = ~uint64_t{0};

class LocalServer final : public Server {
 public:
  LocalServer(SocketFile socket, std::vector<DoorFile> doors, const ServerLimits& limits,
              LaneHandler& handler, std::unique_ptr<const Lender> lender)
      : address_(absl::StrCat("unix:", socket.path())),
        lender_(std::move(lender)),
        socket_(std::move(socket)),
        doors_(std::move(doors)),
        lanes_(limits, handler, lender_.get()) {
    lanes_.Listen(socket_->get());
    for (const DoorFile& door : doors_) lanes_.Listen(door.get(), door.folder());
    lanes_.Start();
  }
  ~LocalServer() override { Stop(); }

  void Stop() override {
    const MutexLock lock(stop_mutex_);
    if (!socket_.has_value()) {
      return;
    }
    // Closed last, on a thread that may block: connections in the backlog may have sent
    // descriptors. So the job has the only references.
    lanes_.Stop([socket = std::exchange(socket_, std::nullopt),
                 doors = std::exchange(doors_, {})]() mutable {
      socket.reset();
      doors.clear();
    });
  }
  std::string address() const override { return address_; }
  absl::StatusOr<bool> KeepAddress() override {
    const MutexLock lock(stop_mutex_);
    if (!socket_.has_value()) return false;
    bool is_made_again = false;
    for (DoorFile& door : doors_) is_made_again = door.Keep() || is_made_again;
    const absl::StatusOr<bool> own = socket_->Keep();
    is_made_again = is_made_again || (own.ok() && *own);
    if (is_made_again) lanes_.ListenAgain();
    return own;
  }
  int lane_count() const override { return lanes_.count(); }
  Lane& lane(int index) override { return lanes_.at(index); }
  void Report(MetricSink& sink) const override { lanes_.Report(sink, "local"); }

 private:
  const std::string address_;
  const std::unique_ptr<const Lender> lender_;  // null: clients map nothing
  Mutex stop_mutex_;
  std::optional<SocketFile> socket_;
  std::vector<DoorFile> doors_;
  LaneSet lanes_;
};

}  // namespace

// --- Lanes ---------------------------------------------------------------------------------------

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

// --- Server --------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<Server>> StartLocalServer(const LocalServerOptions& options,
                                                         LaneHandler& handler) {
  if (options.limits.lanes < 1 || options.limits.lanes > kLanesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("lanes is ", options.limits.lanes, ", expected 1 to ", kLanesMax));
  }
  std::unique_ptr<const Lender> lender;
  if (options.shared_fd >= 0) {
    CAIRN_ASSIGN_OR_RETURN(lender,
                           Lender::Make(options.shared, options.shared_fd, options.limits.lanes));
  }
  CAIRN_ASSIGN_OR_RETURN(SocketFile socket, SocketFile::Listen(options.path));
  std::vector<DoorFile> doors;
  for (const DoorSocket& door : options.doors) {
    CAIRN_ASSIGN_OR_RETURN(DoorFile file, DoorFile::Listen(door.door, door.path, SOCK_SEQPACKET));
    doors.push_back(std::move(file));
  }
  return std::make_unique<LocalServer>(std::move(socket), std::move(doors), options.limits, handler,
                                       std::move(lender));
}

}  // namespace cairn::transport
