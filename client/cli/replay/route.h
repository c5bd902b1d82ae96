// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which of several daemons each request of a trace goes to.
//
// Thread-safety: pure functions.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "client/cli/replay/trace.h"

namespace cairn::replay {

enum class Route : uint8_t {
  kRandom,  // each request to any daemon, all with the same probability
  kSticky,  // requests whose first two blocks are equal to the same daemon
};

// Returns the route with that name, "random" or "sticky".
std::optional<Route> RouteNamed(std::string_view name);

// Returns the index of a daemon, below `daemons`, for each request of the trace. Equal arguments
// give equal routes on every machine. REQUIRES: daemons > 0.
std::vector<uint32_t> RoutesOf(const Trace& trace, Route route, uint32_t daemons, uint64_t seed);

}  // namespace cairn::replay
