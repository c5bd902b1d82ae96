// SPDX-License-Identifier: Apache-2.0
#pragma once
// Members from DNS: one for each address of a name. All have the same port, and their Hello says
// their names.
//
// It uses the A records, and the AAAA records only if there is no A record. A name without any
// record is an error, not an empty set, because a name server may forget the members for a while.
// Each question takes at most a few seconds.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "service/members/member_source.h"

namespace cairn {

struct DnsOptions {
  std::string name;   // of the service; search domains of the system apply
  uint16_t port = 0;  // of the members' peer port
  absl::Duration period = absl::Seconds(5);
  // A server at 127.0.0.1 with that port, instead of those of the system; 0: the system's.
  uint16_t server_port = 0;
};
std::unique_ptr<MemberSource> MakeDnsSource(DnsOptions options);

}  // namespace cairn
