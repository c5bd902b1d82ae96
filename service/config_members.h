// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parses the settings of the cluster. All functions are pure. Errors are InvalidArgument and say
// what was expected.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/config_value.h"

namespace cairn {

inline constexpr size_t kMemberNameBytesMax = 253;
inline constexpr size_t kClusterNameBytesMax = 64;

// Where the members of the cluster are listed.
struct MembersValue {
  enum class Kind { kOff, kFile, kDns, kEtcd, kKubernetes };
  Kind kind = Kind::kOff;
  std::string path;                 // kFile: absolute
  HostPort dns;                     // kDns: a name and the members' port
  std::vector<HostPort> etcd;       // kEtcd: endpoints
  std::string name_space, service;  // kKubernetes
  uint16_t port = 0;                // kKubernetes; 0: the port that the service names "peer"
  bool enabled() const { return kind != Kind::kOff; }
};
// Parses "file:PATH", "dns:NAME:PORT", "kubernetes:NAMESPACE/SERVICE[:PORT]", "etcd:HOST:PORT,…" or
// "off".
absl::StatusOr<MembersValue> ParseMembers(std::string_view text);
std::string_view MembersForm();

// 1 to `bytes_max` characters of [A-Za-z0-9._-].
bool IsPlainName(std::string_view text, size_t bytes_max);
absl::Status CheckCluster(std::string_view text);
// The name of a member, or of a user at etcd. "auto" and "off" are names, too.
absl::Status CheckName(std::string_view text);

}  // namespace cairn
