// SPDX-License-Identifier: Apache-2.0
#pragma once
// cairnd: owns every part, starts them in the order of the arrows and stops them in reverse.
//
// Thread-safety: BeginDrain() and is_draining() are Thread-safe, the rest is Owned by the main
// thread.

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/metric.h"
#include "service/config.h"
#include "service/front/admin_service.h"
#include "service/front/control_server.h"
#include "service/front/data_server.h"
#include "service/front/metrics_server.h"
#include "service/front/store_service.h"
#include "service/get/get.h"
#include "service/index/block_index.h"
#include "service/path_pool.h"
#include "service/put/put.h"
#include "service/recovery.h"
#include "service/sessions.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"
#include "service/upkeep/upkeep.h"
#include "transport/transport.h"

namespace cairn {

std::string_view DaemonVersion();

class Daemon {
 public:
  // Everything listens when it returns. Errors name the knob or the address.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Config& config);
  ~Daemon() { Stop(); }

  // "cairnd ready control=HOST:PORT http=HOST:PORT socket=PATH data=HOST:PORT"; "off" for what is
  // off.
  std::string ReadyLine() const;

  // From now on no new sessions and puts; readiness and health say so. Idempotent.
  void BeginDrain();
  bool is_draining() const { return is_draining_.load(std::memory_order_relaxed); }
  // Waits until no request is in flight and no lease is held, `drain-ms` at most. True: nothing was
  // left.
  bool AwaitDrained();

  // Ends every session, then every part. Idempotent.
  void Stop();

  void Report(MetricSink& sink) const;

 private:
  explicit Daemon(const Config& config);
  absl::Status StartAll();
  absl::Status StartStore();
  void Recover();
  absl::Status StartLocal();
  absl::Status StartUcx();
  absl::Status StartFronts();
  transport::ServerLimits TransportLimits() const;
  DataServer& AddDataServer(std::string_view transport_label);

  const Config config_;
  const Clock& clock_ = RealClock::Get();
  const absl::Time started_ = clock_.Now();
  std::atomic<bool> is_draining_{false};
  std::atomic<ControlServer*> health_{nullptr};  // control_, once it is there
  bool is_stopped_ = false;

  // In arrow order: each uses only what stands above it. Destroyed in reverse.
  std::unique_ptr<Tiers> tiers_;
  SideObjects side_objects_;
  QuerySquares query_squares_;
  Spaces spaces_;      // asks index_ for blocks, from fronts and upkeep only
  Sessions sessions_;  // its hooks call index_ and data_servers_, from fronts only
  std::unique_ptr<BlockIndex> index_;
  std::unique_ptr<Restorer> restorer_;  // of what outlived the process before
  std::unique_ptr<PathPool> pool_;      // its jobs use what stands below it: Stop() ends them first
  std::unique_ptr<PutPath> put_;
  std::unique_ptr<GetPath> get_;
  std::unique_ptr<Upkeep> upkeep_;
  std::vector<std::unique_ptr<DataServer>> data_servers_;  // by PeerRef::server
  std::vector<std::unique_ptr<transport::Server>> transports_;
  std::string local_address_, ucx_address_;
  std::unique_ptr<StoreService> store_service_;
  std::unique_ptr<AdminService> admin_service_;
  std::unique_ptr<ControlServer> control_;
  std::unique_ptr<MetricsServer> metrics_;
};

}  // namespace cairn
