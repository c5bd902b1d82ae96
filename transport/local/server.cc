// SPDX-License-Identifier: Apache-2.0
#include "transport/local/server.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/local/lane_internal.h"
#include "transport/local/lane_set.h"
#include "transport/local/lent_memory.h"
#include "transport/local/socket_file.h"

namespace cairn::transport {
namespace {

class LocalServer final : public Server {
 public:
  LocalServer(SocketFile socket, const ServerLimits& limits, LaneHandler& handler,
              std::unique_ptr<const Lender> lender)
      : address_(absl::StrCat("unix:", socket.path())),
        lender_(std::move(lender)),
        socket_(std::move(socket)),
        lanes_(limits, handler, lender_.get()) {
    lanes_.Listen(socket_->get());
    lanes_.Start();
  }
  ~LocalServer() override { Stop(); }

  void Stop() override {
    const MutexLock lock(stop_mutex_);
    if (!socket_.has_value()) {
      return;
    }
    // Closed last, on a thread that may block: connections in the backlog may have sent
    // descriptors.
    auto socket = std::make_shared<SocketFile>(*std::exchange(socket_, std::nullopt));
    lanes_.Stop([socket]() mutable { socket.reset(); });
  }
  std::string address() const override { return address_; }
  absl::StatusOr<bool> KeepAddress() override {
    const MutexLock lock(stop_mutex_);
    if (!socket_.has_value()) return false;
    CAIRN_ASSIGN_OR_RETURN(const bool is_made_again, socket_->Keep());
    if (is_made_again) lanes_.ListenAgain();
    return is_made_again;
  }
  int lane_count() const override { return lanes_.count(); }
  Lane& lane(int index) override { return lanes_.at(index); }
  void Report(MetricSink& sink) const override { lanes_.Report(sink, "local"); }

 private:
  const std::string address_;
  const std::unique_ptr<const Lender> lender_;  // null: clients map nothing
  Mutex stop_mutex_;
  std::optional<SocketFile> socket_;
  LaneSet lanes_;
};

}  // namespace

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
  return std::make_unique<LocalServer>(std::move(socket), options.limits, handler,
                                       std::move(lender));
}

}  // namespace cairn::transport
