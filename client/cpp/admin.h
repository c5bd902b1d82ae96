// SPDX-License-Identifier: Apache-2.0
#pragma once
// The operator's calls (cairn.v1.Admin): they need no session and see every tenant.
//
// Thread-safety: Thread-safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cairn/v1/admin.pb.h"
#include "cairn/v1/store.pb.h"

namespace cairn {

struct DaemonAbout {
  std::string version;
  // As its host has them; empty: nowhere. admin: HOST:PORT or unix:PATH, http: HOST:PORT.
  std::string admin_address, http_address;
  // Gets of clients on its host: "mapped", or "copied: " and why; empty: it does not say.
  std::string local_gets;
};
// Which daemon answers at `control`, and where else. Needs no session. Unimplemented: one that is
// older than this call.
absl::StatusOr<DaemonAbout> AskAbout(const std::string& control, absl::Time deadline);

// What the daemon at `control` tells strangers of itself: its tiers' capacity, its version and for
// how long it runs. Needs no session, so a daemon that drains answers too.
absl::StatusOr<v1::StatsReply> AskStats(const std::string& control, absl::Time deadline);

class AdminClient {
 public:
  // Both are HOST:PORT or unix:PATH. Where `admin` is empty, the first call asks the daemon at
  // `control` where it answers operators; PermissionDenied where that is a socket that is not for
  // us, FailedPrecondition where it is none of this host, or nowhere. Does not connect yet.
  static absl::StatusOr<std::unique_ptr<AdminClient>> Open(const std::string& control,
                                                           const std::string& admin = "");
  virtual ~AdminClient() = default;

  virtual absl::StatusOr<v1::ListSpacesReply> ListSpaces(absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::ListBlocksReply> ListBlocks(const v1::ListBlocksRequest& request,
                                                         absl::Time deadline) = 0;
  // Checks every tile of a space, or of all with 0. `report` sees the progress, the last with done
  // set.
  virtual absl::Status Verify(uint64_t space_id, absl::Time deadline,
                              const std::function<void(const v1::VerifyProgress&)>& report) = 0;
  virtual absl::StatusOr<v1::SetPolicyReply> SetPolicy(const v1::SetPolicyRequest& request,
                                                       absl::Time deadline) = 0;
  // Figures of all tenants.
  virtual absl::StatusOr<v1::StatsReply> Stats(absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::ListTiersReply> ListTiers(absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::SetDeviceReply> SetDevice(const v1::SetDeviceRequest& request,
                                                       absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::DrainReply> Drain(absl::Time deadline) = 0;
};

}  // namespace cairn
