// SPDX-License-Identifier: Apache-2.0
#pragma once
// Members from Kubernetes: the EndpointSlices of one service (discovery.k8s.io/v1).
//
// The slices are listed, then watched. A watch ends after a while, and the next one goes on where
// it ended. If the server no longer knows that point (410 Gone), or a call fails, they are listed
// again. Every call has a deadline, and every answer a limit.
//
// Each endpoint is a member, ready or not. The slices do not give the members' names. As with DNS,
// a member's name comes from its Hello. If the service has IPv4 and IPv6 slices, only the IPv4 ones
// count: they are of the same pods. A service without endpoints is an error and no empty set,
// because this daemon is an endpoint itself.
//
// The token and the CA are read anew for each call, because Kubernetes replaces the token.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "service/members/member_source.h"

namespace cairn {

struct KubernetesOptions {
  std::string server;  // HOST:PORT of the API server; empty: this is no pod
  std::string ca_file = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
  std::string token_file = "/var/run/secrets/kubernetes.io/serviceaccount/token";
  std::string name_space, service;  // plain names (service/config_members.h)
  uint16_t port = 0;                // of the members; 0: the port that the slice names "peer"
  absl::Duration call = absl::Seconds(5);
  absl::Duration watch = absl::Seconds(30);  // whole seconds
  absl::Duration backoff_max = absl::Seconds(10);
};
std::unique_ptr<MemberSource> MakeKubernetesSource(KubernetesOptions options);

}  // namespace cairn
