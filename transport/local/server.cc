// SPDX-License-Identifier: Apache-2.0
#include "transport/local/server.h"

#include <sys/socket.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/local/lane_internal.h"
#include "transport/local/lane_set.h"
#include "transport/local/socket_file.h"

namespace cairn::transport {
namespace {

LocalLane::Accepted AcceptOne(int listener, LaneSet& lanes) {
  Fd socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.is_valid()) {
    switch (errno) {
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        return LocalLane::Accepted::kNoDescriptor;
      case ECONNABORTED:
      case EINTR:
        return LocalLane::Accepted::kPeer;  // that one is gone; there may be others
      default:
        return LocalLane::Accepted::kNone;
    }
  }
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0) {
    LogDebug("transport", "local client connects",
             {{"pid", peer.pid}, {"uid", peer.uid}, {"gid", peer.gid}});
  }
  lanes.AddPeer(std::move(socket), std::nullopt);  // counted if refused
  return LocalLane::Accepted::kPeer;
}

class LocalServer final : public Server {
 public:
  LocalServer(SocketFile socket, const ServerLimits& limits, LaneHandler& handler)
      : address_(absl::StrCat("unix:", socket.path())),
        socket_(std::move(socket)),
        lanes_(limits, handler) {
    const int listener = socket_->get();
    lanes_.at(0).Listen(listener, [this, listener] { return AcceptOne(listener, lanes_); });
    lanes_.Start();
  }
  ~LocalServer() override { Stop(); }

  void Stop() override {
    const MutexLock lock(stop_mutex_);
    lanes_.Stop();  // first: lane 0 accepts from the socket
    socket_.reset();
  }
  std::string address() const override { return address_; }
  absl::StatusOr<bool> KeepAddress() override {
    const MutexLock lock(stop_mutex_);
    if (!socket_.has_value()) return false;
    CAIRN_ASSIGN_OR_RETURN(const bool is_made_again, socket_->Keep());
    is_unwatched_ = is_unwatched_ || is_made_again;
    if (is_unwatched_) {
      CAIRN_RETURN_IF_ERROR(
          lanes_.at(0).Submit([](Lane& lane) { static_cast<LocalLane&>(lane).WatchListener(); }));
      is_unwatched_ = false;
    }
    return is_made_again;
  }
  int lane_count() const override { return lanes_.count(); }
  Lane& lane(int index) override { return lanes_.at(index); }
  void Report(MetricSink& sink) const override { lanes_.Report(sink, "local"); }

 private:
  const std::string address_;
  Mutex stop_mutex_;
  std::optional<SocketFile> socket_;
  bool is_unwatched_ ABSL_GUARDED_BY(stop_mutex_) = false;  // lane 0 does not know the new socket
  LaneSet lanes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> StartLocalServer(const LocalServerOptions& options,
                                                         LaneHandler& handler) {
  if (options.limits.lanes < 1 || options.limits.lanes > kLanesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("lanes is ", options.limits.lanes, ", expected 1 to ", kLanesMax));
  }
  CAIRN_ASSIGN_OR_RETURN(SocketFile socket, SocketFile::Listen(options.path));
  return std::make_unique<LocalServer>(std::move(socket), options.limits, handler);
}

}  // namespace cairn::transport
