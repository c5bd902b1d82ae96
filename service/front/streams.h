// SPDX-License-Identifier: Apache-2.0
#pragma once
// The streams of the control plane: sessions and events. Each lasts until one side ends it.

#include <functional>
#include <string>
#include <vector>

#include "service/audit.h"
#include "service/front/control_call.h"
#include "service/index/block_index.h"
#include "service/index/event_log.h"
#include "service/sessions.h"
#include "service/spaces.h"

namespace cairn {

struct SessionTerms {  // the same for every session
  std::vector<std::string> data_addresses;
  std::string local_address;  // one of these; a peer of a --door folder gets the folder's instead
  std::string daemon_version;
  std::string admin_address, http_address;  // for About; empty: no such address
  std::string local_gets;                   // for About
  std::string member_name, cluster;         // for About; empty: the daemon belongs to none
  uint64_t payload_bytes_max = 0;
  std::function<bool()> is_draining;
  Audit* audit = nullptr;       // null: no audit file
  bool is_for_members = false;  // sessions of other members of the cluster
};

// The stream of a session. It sends SessionOpened, then a heartbeat every 5 s, which renews the
// session's leases. The session ends with the stream. `terms`, `sessions` and `index` must outlive
// the call.
ControlCall* OpenSessionStream(const CallPlace& place, const SessionTerms& terms,
                               Sessions& sessions, BlockIndex& index);

// Streams a tenant's events (EventLog) in batches with pauses between them. The first event of a
// space is preceded by a description of the space. If the call asks for it, the stored blocks are
// sent after each reset. The stream ends with its session. `index`, `sessions` and `spaces` must
// outlive the call.
ControlCall* StartEventStream(const CallPlace& place, BlockIndex& index, Sessions& sessions,
                              Spaces& spaces);

}  // namespace cairn
