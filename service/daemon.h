// SPDX-License-Identifier: Apache-2.0
#pragma once
// cairnd itself. It owns all components, starts them in the order of their dependencies, and stops
// them in reverse.
//
// Thread-safety: BeginDrain() and is_draining() are Thread-safe. The rest is Owned by the main
// thread.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "kernels/runtime.h"
#include "service/announced_blocks.h"
#include "service/audit.h"
#include "service/config.h"
#include "service/front/admin_service.h"
#include "service/front/control_server.h"
#include "service/front/data_server.h"
#include "service/front/doors.h"
#include "service/front/metrics_server.h"
#include "service/front/peer_service.h"
#include "service/front/store_service.h"
#include "service/get/get.h"
#include "service/index/block_index.h"
#include "service/limits.h"
#include "service/members/generations.h"
#include "service/members/members.h"
#include "service/members/space_policies.h"
#include "service/path_pool.h"
#include "service/peer/announced.h"
#include "service/peer/announcer.h"
#include "service/peer/hellos.h"
#include "service/peer/location_table.h"
#include "service/peer/locator.h"
#include "service/peer/offers.h"
#include "service/peer/peer_channels.h"
#include "service/peer/peer_reader.h"
#include "service/peer/profile_calls.h"
#include "service/policy_watch.h"
#include "service/put/put.h"
#include "service/recovery.h"
#include "service/remote/offered_blocks.h"
#include "service/remote/policy_teller.h"
#include "service/remote/remote_blocks.h"
#include "service/remote/shared_profiles.h"
#include "service/remote/whereabouts.h"
#include "service/sessions.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"
#include "service/upkeep/upkeep.h"
#include "transport/tls/handshakes.h"
#include "transport/transport.h"

namespace cairn {

class DeviceCodec;
class GpuDevice;
class GpuTier;
class SsdTier;

std::string_view DaemonVersion();

// The daemon's interfaces to hardware, other than files and sockets. Tests replace them.
struct Machine {
  // Opens a device. Returns null if there is no such device; kernels::Probe() then returns the
  // reason.
  std::function<std::unique_ptr<kernels::Runtime>(int device)> open_device =
      kernels::OpenCudaRuntime;
  // The smallest source that the device codec accepts. Tests with slow devices change it.
  uint64_t device_coded_bytes_min = limits::kGpuCodedBytesMin;
};

class Daemon {
 public:
  // Starts the daemon. The http and control ports listen at once. During the start, /healthz
  // answers 200, /readyz answers 503 with the progress, gRPC health answers NOT_SERVING, and all
  // other calls answer UNAVAILABLE. On return, the tiers have recovered the data of the previous
  // process, the data planes listen, all calls are served, and /readyz answers 200. On an error,
  // stops everything that was started. The error names the setting or the address.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Config& config,
                                                       Machine machine = Machine());
  ~Daemon();

  // Returns "cairnd ready control=HOST:PORT http=HOST:PORT socket=PATH data=HOST:PORT
  // admin=unix:PATH". A disabled address is "off".
  std::string ReadyLine() const;

  // Refuses new sessions and puts from now on. /readyz and gRPC health report this. Offers blocks
  // to the other members, for at most `drain-ms`. Idempotent.
  void BeginDrain();
  bool is_draining() const { return is_draining_.load(std::memory_order_relaxed); }
  // Waits until no request runs, no lease of a client is held, nothing is offered any more, and
  // everything is written to the SSD tier, but at most `drain-ms`. Stops waiting earlier if only
  // writes are left and their device makes no progress. A member that holds a lease loses blocks
  // that it may read elsewhere; what it was offered, it has read when the offers are over.
  enum class Drained : uint8_t { kAll, kLate, kStalled };
  Drained AwaitDrained();

  // Repairs the socket files. Reads a changed policy and a changed revocation list, and ends the
  // sessions and connections that they no longer allow. The main thread calls it once a second.
  void Look();

  // Ends every session, then stops every component. Idempotent.
  void Stop();

  void Report(MetricSink& sink) const;
  // Returns the devices of all tiers. Includes the codec's device if no tier has it.
  std::vector<DeviceReport> Devices() const;

 private:
  Daemon(const Config& config, Machine machine);
  absl::Status StartAll();
  absl::Status LoadPolicy();
  absl::Status StartTls();
  absl::Status StartProbes();
  absl::Status StartStore();
  absl::StatusOr<std::unique_ptr<SsdTier>> OpenSsd(const std::vector<SsdFolder>& folders);
  absl::StatusOr<std::shared_ptr<GpuDevice>> OpenGpu(const GpuShare& gpu);
  // Makes the GPU tier from the memory that the codec does not use. Returns null if this leaves the
  // tier no memory.
  absl::StatusOr<std::unique_ptr<GpuTier>> MakeGpuTier(std::shared_ptr<GpuDevice> device,
                                                       HostTier& host);
  // Make what the daemon of a cluster knows of deleted spaces, and of policies that were set.
  void MakeGenerations();
  void MakePolicies();
  absl::Status UsePolicy(const ToldPolicy& told);
  std::optional<SpacePolicy> KnownPolicy(const SpaceEntry& space) const;
  void Recover();
  absl::Status StartLocal();
  absl::Status StartStream();
  absl::Status StartUcx();
  void StartServices();
  // Prepares to read from other members, if there is a transport for it.
  void StartRemote();
  // Prepares to offer blocks to members, and to take what they offer.
  void MakeOffers();
  // Joins the cluster.
  absl::Status StartMembers();
  // Makes the parts with which members tell and ask each other which blocks they have.
  void MakeLocations();
  PeerDial DialOfMembers();
  // Says whether the policy lets a peer use a tenant.
  std::function<bool(const PeerIdentity&, std::string_view)> MayUse();
  // Leases of others than members.
  uint64_t LeasesOfClients() const;
  // Returns the answer of /readyz.
  absl::Status Readiness() const;
  std::string Remarks() const;
  // Sets the step of the start that /readyz shows. An empty step means that the tiers recover.
  void SetStep(std::string_view step);
  std::string Step() const;
  void ReportParts(MetricSink& sink) const;
  transport::ServerLimits TransportLimits() const;
  DataServer& AddDataServer(std::string_view transport_label);

  const Config config_;
  const Machine machine_;
  const Clock& clock_ = RealClock::Get();
  const absl::Time started_ = clock_.Now();
  std::atomic<bool> is_draining_{false};
  std::atomic<bool> is_started_{false};  // all components exist
  bool is_stopped_ = false;
  mutable Mutex step_mutex_;
  std::string step_ ABSL_GUARDED_BY(step_mutex_) = "starting";

  // The components are in the order of their dependencies: each uses only components above it. They
  // are destroyed in reverse.
  std::unique_ptr<Tiers> tiers_;
  SideObjects side_objects_;
  QuerySquares query_squares_;
  Spaces spaces_;                        // uses index_, but only in calls from front/ and upkeep/
  std::unique_ptr<Audit> audit_;         // null: no audit file
  std::unique_ptr<PolicyWatch> policy_;  // null: no policy file
  bool maps_arena_ = false;              // local clients map the host tier and read blocks in place
  Sessions sessions_;  // its hooks use index_ and data_servers_, only in calls from front/
  std::unique_ptr<BlockIndex> index_;
  // Null: the daemon belongs to no cluster.
  std::unique_ptr<Generations> generations_;
  std::unique_ptr<SpacePolicies> policies_;
  std::unique_ptr<Restorer> restorer_;  // restores the previous process's data
  std::unique_ptr<DeviceCodec> codec_;  // null: no device
  std::unique_ptr<PathPool> pool_;  // Stop() ends its jobs before the members below are destroyed
  std::unique_ptr<Puts> puts_;
  std::unique_ptr<Gets> gets_;
  std::unique_ptr<Upkeep> upkeep_;
  std::vector<std::unique_ptr<DataServer>> data_servers_;  // indexed by PeerRef::server
  std::vector<std::unique_ptr<transport::Server>> transports_;
  std::string local_address_, stream_address_, ucx_address_;
  std::string local_gets_;            // "mapped", or "copied: " and why
  std::unique_ptr<Members> members_;  // null: the daemon belongs to no cluster
  // Of a daemon in a cluster; else null.
  std::unique_ptr<PeerChannels> peers_;
  std::unique_ptr<LocationTable> locations_;
  std::unique_ptr<Announced> announced_;               // by other members
  std::unique_ptr<AnnouncedBlocks> announced_blocks_;  // of this daemon
  std::unique_ptr<Announcer> announcer_;
  std::unique_ptr<Locator> locator_;
  std::unique_ptr<PolicyTeller> policy_teller_;
  // Null, too, if the daemon cannot move blocks to other members.
  std::unique_ptr<PeerReader> peer_reader_;
  std::unique_ptr<RemoteBlocks> remote_;
  std::unique_ptr<Whereabouts> whereabouts_;
  std::unique_ptr<OfferedBlocks> offered_;  // by other members
  std::unique_ptr<Offers> offers_;          // of this daemon
  std::unique_ptr<ProfileCalls> profile_calls_;
  std::unique_ptr<SharedProfiles> shared_profiles_;  // upkeep's thread uses it until Stop()
  std::unique_ptr<StoreService> store_service_;
  std::unique_ptr<AdminService> admin_service_;
  std::unique_ptr<transport::TlsFiles> tls_;           // null: no TLS
  std::unique_ptr<transport::Handshakes> handshakes_;  // null: no TLS
  uint64_t tls_generation_ = 0;                        // the generation that Look() saw last
  std::string tls_refusal_;                            // and why the newest files were not taken
  std::unique_ptr<ControlServer> control_;
  // Of a daemon in a cluster; else null.
  std::unique_ptr<Hellos> hellos_;
  std::unique_ptr<PeerService> peer_service_;
  std::unique_ptr<ControlServer> peer_server_;
  Doors doors_;  // the socket files of control_ and of the transports
  std::unique_ptr<MetricsServer> metrics_;
};

}  // namespace cairn
