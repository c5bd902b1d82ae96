// SPDX-License-Identifier: Apache-2.0
#pragma once
// The daemon's end: one context pinned to one interface, a listener, N lanes.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/transport.h"
#include "transport/ucx/lane.h"
#include "transport/ucx_module.h"

namespace cairn::transport {

// Thread-safe. `lane_options.limits` are overwritten by those of `options`.
absl::StatusOr<std::unique_ptr<Server>> StartUcxServer(const UcxServerOptions& options,
                                                       UcxLaneOptions lane_options,
                                                       LaneHandler& handler);

}  // namespace cairn::transport
