// SPDX-License-Identifier: Apache-2.0
#pragma once
// Streams a tenant's events (EventLog) in batches with pauses between them. A space is described
// when it is first named. The stream ends with its session.

#include "service/front/control_call.h"
#include "service/index/event_log.h"
#include "service/sessions.h"
#include "service/spaces.h"

namespace cairn {

// `log`, `sessions` and `spaces` must outlive the call.
ControlCall* StartEventStream(const CallPlace& place, EventLog& log, Sessions& sessions,
                              Spaces& spaces);

}  // namespace cairn
