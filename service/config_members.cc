// SPDX-License-Identifier: Apache-2.0
#include "service/config_members.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/text.h"

namespace cairn {

bool IsPlainName(std::string_view text, size_t bytes_max) {
  return !text.empty() && text.size() <= bytes_max && std::ranges::all_of(text, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

namespace {

// NAMESPACE/SERVICE[:PORT]
absl::StatusOr<MembersValue> ParseKubernetes(std::string_view text) {
  MembersValue value;
  value.kind = MembersValue::Kind::kKubernetes;
  const size_t slash = std::min(text.find('/'), text.size());
  const size_t colon = text.find(':');
  value.name_space = text.substr(0, slash);
  value.service = text.substr(std::min(slash + 1, text.size()));
  if (colon != text.npos) {  // ParseHostPort() knows what a port is
    CAIRN_ASSIGN_OR_RETURN(const HostPort port,
                           ParseHostPort(absl::StrCat("a", ToAbsl(text.substr(colon)))));
    if (port.port == 0) return absl::InvalidArgumentError("not a port");
    value.port = port.port;
    value.service = value.service.substr(0, value.service.find(':'));
  }
  if (IsPlainName(value.name_space, kMemberNameBytesMax) &&
      IsPlainName(value.service, kMemberNameBytesMax)) {
    return value;
  }
  return absl::InvalidArgumentError("not a namespace and a service");
}

}  // namespace

absl::StatusOr<MembersValue> ParseMembers(std::string_view text) {
  MembersValue value;
  if (text == "off") return value;
  constexpr std::string_view kFile = "file:";
  if (text.starts_with(kFile)) {
    value.kind = MembersValue::Kind::kFile;
    value.path = text.substr(kFile.size());
    CAIRN_RETURN_IF_ERROR(CheckPath(value.path));
    if (value.path == "off") return absl::InvalidArgumentError("not an absolute path");
    return value;
  }
  constexpr std::string_view kDns = "dns:";
  if (text.starts_with(kDns)) {
    value.kind = MembersValue::Kind::kDns;
    CAIRN_ASSIGN_OR_RETURN(value.dns, ParseHostPort(text.substr(kDns.size())));
    const bool is_name = IsPlainName(value.dns.host, kMemberNameBytesMax);
    if (is_name && value.dns.port != 0) return value;
    return absl::InvalidArgumentError("not a name and a port");
  }
  constexpr std::string_view kEtcd = "etcd:";
  if (text.starts_with(kEtcd)) {
    value.kind = MembersValue::Kind::kEtcd;
    for (const absl::string_view one : absl::StrSplit(ToAbsl(text.substr(kEtcd.size())), ',')) {
      CAIRN_ASSIGN_OR_RETURN(HostPort endpoint, ParseHostPort(ToStd(one)));
      if (!endpoint.enabled() || endpoint.port == 0)
        return absl::InvalidArgumentError("not a host and a port");
      value.etcd.push_back(std::move(endpoint));
    }
    return value;
  }
  constexpr std::string_view kKubernetes = "kubernetes:";
  if (text.starts_with(kKubernetes)) return ParseKubernetes(text.substr(kKubernetes.size()));
  return absl::InvalidArgumentError("no such source");
}

std::string_view MembersForm() {
  return "file:PATH, the path absolute; dns:NAME:PORT; kubernetes:NAMESPACE/SERVICE, and :PORT if "
         "the service names no port peer; etcd:HOST:PORT, several separated by commas; or off";
}

absl::Status CheckCluster(std::string_view text) {
  if (IsPlainName(text, kClusterNameBytesMax)) return absl::OkStatus();
  return absl::InvalidArgumentError("not a name");
}

absl::Status CheckName(std::string_view text) {
  if (IsPlainName(text, kMemberNameBytesMax)) return absl::OkStatus();
  return absl::InvalidArgumentError("not a name");
}

}  // namespace cairn
