// SPDX-License-Identifier: Apache-2.0
#include "transport/stream/server.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/address.h"
#include "transport/stream/lane.h"
#include "transport/stream/socket.h"

namespace cairn::transport {
namespace {

constexpr int kStreamLanesMax = 256;  // the limit of a PeerId

class StreamServer final : public Server {
 public:
  StreamServer(const StreamServerOptions& options, Handshakes& handshakes, LaneHandler& handler)
      : options_(options), handshakes_(handshakes) {
    for (int i = 0; i < options_.limits.lanes; ++i) {
      lanes_.push_back(std::make_unique<StreamLane>(i, StreamLaneOptions{.limits = options_.limits},
                                                    handler, metrics_, handshakes.files()));
    }
  }
  ~StreamServer() override { StreamServer::Stop(); }

  void Start(Fd socket, const SocketAddress& address) {
    address_ = absl::StrCat("tls:", AddressText(address));
    for (const auto& lane : lanes_) lane->Start();
    door_ = handshakes_.Listen(std::move(socket),
                               {.name = "stream",
                                .alpn = kStreamAlpn,
                                .done = [this](TlsArrival arrival) { Route(std::move(arrival)); }});
  }

  void Stop() override {
    const MutexLock lock(stop_mutex_);
    if (std::exchange(is_stopped_, true)) return;
    handshakes_.Close(door_);
    for (const auto& lane : lanes_) lane->Stop();
    for (const auto& lane : lanes_) lane->Join();
  }

  std::string address() const override { return address_; }
  int lane_count() const override { return static_cast<int>(lanes_.size()); }
  Lane& lane(int index) override { return *lanes_.at(static_cast<size_t>(index)); }
  void Report(MetricSink& sink) const override { metrics_.Report(sink, "stream"); }

 private:
  // Runs on the handshakes' thread. Chooses the lane with the fewest peers.
  void Route(TlsArrival arrival) {
    if (options_.on_arrival != nullptr) options_.on_arrival(arrival);
    int peers = 0;
    StreamLane* best = nullptr;
    for (const auto& lane : lanes_) {
      peers += lane->peer_count();
      if (best == nullptr || lane->peer_count() < best->peer_count()) best = lane.get();
    }
    if (peers < options_.limits.peers_max && best->Adopt(std::move(arrival))) return;
    metrics_.peers_refused.Add();
    metrics_.newcomers_too_many.Add();
  }

  const StreamServerOptions options_;
  Handshakes& handshakes_;
  TransportMetrics metrics_;
  std::string address_;
  int door_ = 0;
  Mutex stop_mutex_;
  bool is_stopped_ ABSL_GUARDED_BY(stop_mutex_) = false;
  std::vector<std::unique_ptr<StreamLane>> lanes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> StartStreamServer(const StreamServerOptions& options,
                                                          Handshakes& handshakes,
                                                          LaneHandler& handler) {
  if (options.limits.lanes < 1 || options.limits.lanes > kStreamLanesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("lanes is ", options.limits.lanes, ", expected 1 to ", kStreamLanesMax));
  }
  SocketAddress address;
  CAIRN_ASSIGN_OR_RETURN(Fd socket, ListenTcp(options.host, options.port, &address));
  auto server = std::make_unique<StreamServer>(options, handshakes, handler);
  server->Start(std::move(socket), address);
  return server;
}

}  // namespace cairn::transport
