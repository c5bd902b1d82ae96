// SPDX-License-Identifier: Apache-2.0
#pragma once
// The daemon's UCX server: one context pinned to one interface, a listener, and the lanes.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/transport.h"
#include "transport/ucx/lane.h"
#include "transport/ucx_module.h"

namespace cairn::transport {

// Starts a server. Thread-safe. `options.limits` replace `lane_options.limits`.
absl::StatusOr<std::unique_ptr<Server>> StartUcxServer(const UcxServerOptions& options,
                                                       UcxLaneOptions lane_options,
                                                       LaneHandler& handler);

}  // namespace cairn::transport
