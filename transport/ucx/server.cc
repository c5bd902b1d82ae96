// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/server.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/ucx/address.h"
#include "transport/ucx/context.h"
#include "transport/ucx/listener.h"

namespace cairn::transport {
namespace {

constexpr int kLanesMax = 256;  // what a PeerId has room for

class UcxServer final : public Server {
 public:
  UcxServer(std::unique_ptr<UcxContext> context, const ServerLimits& limits)
      : limits_(limits), context_(std::move(context)) {}
  ~UcxServer() override { UcxServer::Stop(); }

  absl::Status Start(const SocketAddress& address, const UcxLaneOptions& lane_options,
                     LaneHandler& handler) {
    for (int i = 0; i < limits_.lanes; ++i) {
      lanes_.push_back(std::make_unique<UcxLane>(i, *context_, lane_options, handler, metrics_));
      CAIRN_RETURN_IF_ERROR(lanes_.back()->Start());
    }
    listener_ = std::make_unique<UcxListener>(
        *context_, [this](ucp_conn_request_h request) { return Route(request); });
    CAIRN_RETURN_IF_ERROR(listener_->Start(address));
    address_ = AddressText(listener_->address());
    return absl::OkStatus();
  }

  // Lanes first stop accepting, so that the listener can reject what is left and go; then they
  // break their peers and end.
  void Stop() override {
    const MutexLock lock(stop_mutex_);
    is_stopping_.store(true);
    for (const auto& lane : lanes_) lane->Refuse();
    if (listener_ != nullptr) {
      listener_->Stop([this]() -> ucp_conn_request_h {
        for (const auto& lane : lanes_) {
          if (const ucp_conn_request_h request = lane->TakeUnaccepted()) return request;
        }
        return nullptr;
      });
    }
    for (const auto& lane : lanes_) lane->Finish();
  }

  std::string address() const override { return address_; }
  int lane_count() const override { return static_cast<int>(lanes_.size()); }
  Lane& lane(int index) override { return *lanes_.at(static_cast<size_t>(index)); }
  void Report(MetricSink& sink) const override { metrics_.Report(sink, "ucx"); }

 private:
  // On the listener's thread: to the lane with the fewest peers.
  bool Route(ucp_conn_request_h request) {
    int peers = 0;
    UcxLane* best = nullptr;
    for (const auto& lane : lanes_) {
      peers += lane->peer_count();
      if (best == nullptr || lane->peer_count() < best->peer_count()) best = lane.get();
    }
    if (is_stopping_.load() || peers >= limits_.peers_max || !best->Adopt(request)) {
      metrics_.peers_refused.Add();
      return false;
    }
    return true;
  }

  const ServerLimits limits_;
  TransportMetrics metrics_;
  std::string address_;
  std::atomic<bool> is_stopping_{false};
  Mutex stop_mutex_;
  // Destroyed from the last to the first: the listener, its lanes, the context of their workers.
  std::unique_ptr<UcxContext> context_;
  std::vector<std::unique_ptr<UcxLane>> lanes_;
  std::unique_ptr<UcxListener> listener_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> StartUcxServer(const UcxServerOptions& options,
                                                       UcxLaneOptions lane_options,
                                                       LaneHandler& handler) {
  if (options.limits.lanes < 1 || options.limits.lanes > kLanesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.limits.lanes, " lanes; the limits are 1 and ", kLanesMax));
  }
  CAIRN_ASSIGN_OR_RETURN(const SocketAddress address,
                         ParseLocalAddress(options.host, options.port));
  CAIRN_ASSIGN_OR_RETURN(const std::string device, InterfaceOf(address));
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<UcxContext> context,
                         UcxContext::Make({.device = device, .port_range = options.port_range}));
  const uint64_t memory_types = context->memory_types();
  lane_options.limits = options.limits;
  auto server = std::make_unique<UcxServer>(std::move(context), options.limits);
  CAIRN_RETURN_IF_ERROR(server->Start(address, lane_options, handler));
  LogInfo("ucx", "data plane listens; every peer that reaches it is trusted with this process",
          {{"address", server->address()},
           {"interface", device},
           {"lanes", options.limits.lanes},
           {"memory_types", memory_types}});
  return server;
}

}  // namespace cairn::transport
