// SPDX-License-Identifier: Apache-2.0
#pragma once
// Administrative calls (cairn.v1.Admin). They need no session and cover all tenants.
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
#include "client/cpp/options.h"

namespace cairn {

struct DaemonAbout {
  std::string version;
  // Addresses from the daemon's own configuration. admin is HOST:PORT or unix:PATH, http is
  // HOST:PORT. An empty address means that the daemon does not serve it.
  std::string admin_address, http_address;
  // How clients on the daemon's host read blocks: "mapped", or "copied: " and the reason. Empty if
  // the daemon does not report it.
  std::string local_gets;
};
// Asks the daemon at `control` for its identity and its other addresses. Needs no session. Errors:
// Unimplemented if the daemon is older than this call.
absl::StatusOr<DaemonAbout> AskAbout(const std::string& control, absl::Time deadline,
                                     const TlsOptions& tls = {});

// Asks the daemon at `control` for its public statistics: capacity of its tiers, version and
// uptime. Needs no session; a draining daemon also answers.
absl::StatusOr<v1::StatsReply> AskStats(const std::string& control, absl::Time deadline,
                                        const TlsOptions& tls = {});

class AdminClient {
 public:
  // Makes a client without connecting yet. Both addresses are HOST:PORT or unix:PATH. If `admin` is
  // empty, the first call asks the daemon at `control` for the address. That call fails with
  // PermissionDenied if this process may not open the administrative socket, and with
  // FailedPrecondition if the socket is on another host or disabled.
  static absl::StatusOr<std::unique_ptr<AdminClient>> Open(const std::string& control,
                                                           const std::string& admin = "",
                                                           const TlsOptions& tls = {});
  virtual ~AdminClient() = default;

  virtual absl::StatusOr<v1::ListSpacesReply> ListSpaces(absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::ListBlocksReply> ListBlocks(const v1::ListBlocksRequest& request,
                                                         absl::Time deadline) = 0;
  // Verifies every tile of a space, or of all spaces if `space_id` is 0. `report` receives the
  // progress; its last call has `done` set.
  virtual absl::Status Verify(uint64_t space_id, absl::Time deadline,
                              const std::function<void(const v1::VerifyProgress&)>& report) = 0;
  // Store.Explain for a space of any tenant, without a session.
  virtual absl::StatusOr<v1::ExplainReply> Explain(const v1::ExplainRequest& request,
                                                   absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::SetPolicyReply> SetPolicy(const v1::SetPolicyRequest& request,
                                                       absl::Time deadline) = 0;
  // Statistics of all tenants.
  virtual absl::StatusOr<v1::StatsReply> Stats(absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::ListTiersReply> ListTiers(absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::SetDeviceReply> SetDevice(const v1::SetDeviceRequest& request,
                                                       absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::ListMembersReply> ListMembers(absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::DrainReply> Drain(absl::Time deadline) = 0;
};

}  // namespace cairn
