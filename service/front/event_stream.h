// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tells a tenant what comes into tiers and goes (EventLog), in batches with pauses between them.
// Spaces are described when they are first named. The session that asked has to live.

#include "service/front/control_call.h"
#include "service/index/event_log.h"
#include "service/sessions.h"
#include "service/spaces.h"

namespace cairn {

// `log`, `sessions` and `spaces` must outlive the call.
ControlCall* StartEventStream(const CallPlace& place, EventLog& log, Sessions& sessions,
                              Spaces& spaces);

}  // namespace cairn
