// SPDX-License-Identifier: Apache-2.0
#include "client/cli/replay/route.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "client/cli/replay/mix.h"

namespace cairn::replay {
namespace {

// In published traces all requests share their first block, so the second one is needed, too.
constexpr size_t kStickyBlocks = 2;

uint64_t HashOfBeginning(const Trace& trace, const TraceRequest& request, uint64_t seed) {
  const std::span<const BlockNumber> chain = trace.ChainOf(request);
  uint64_t hash = Mix(seed);
  for (const BlockNumber block : chain.first(std::min(chain.size(), kStickyBlocks))) {
    hash = Mix(hash ^ trace.blocks[block].hash_id);
  }
  return hash;
}

}  // namespace

std::optional<Route> RouteNamed(std::string_view name) {
  if (name == "random") return Route::kRandom;
  if (name == "sticky") return Route::kSticky;
  return std::nullopt;
}

std::vector<uint32_t> RoutesOf(const Trace& trace, Route route, uint32_t daemons, uint64_t seed) {
  std::vector<uint32_t> routes;
  routes.reserve(trace.requests.size());
  for (const TraceRequest& request : trace.requests) {
    const uint64_t hash = route == Route::kRandom ? Mix(Mix(seed) + routes.size())
                                                  : HashOfBeginning(trace, request, seed);
    routes.push_back(static_cast<uint32_t>(hash % daemons));
  }
  return routes;
}

}  // namespace cairn::replay
