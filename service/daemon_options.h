// SPDX-License-Identifier: Apache-2.0
#pragma once
// The configuration in the types of the parts that it is for. Pure.
// REQUIRES: ParseCommandLine() made it.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "codecs/recipe/recipe.h"
#include "service/config.h"
#include "service/tier/ssd/ssd_tier.h"
#include "service/tier/tiers.h"

namespace cairn {

ControlAddress ControlOf(const Config& config);
// Absent: off.
std::optional<ControlAddress> AdminOf(const Config& config);
codecs::Recipe RecipeOf(const Config& config);
std::vector<SsdFolder> SsdFoldersOf(const Config& config);
// Absent: off.
std::optional<GpuShare> GpuOf(const Config& config);
// Of the GPU's memory, what its tier has; 0: there is no such tier.
uint64_t GpuTierBytesOf(const Config& config);
// What blocks that are not at rest may take of the index.
uint64_t AwakeBytesMaxOf(const Config& config);
// How many blocks the host tier may have.
uint64_t BlocksMaxOf(const Config& config);
IoChoice IoOf(const Config& config);
std::optional<uint64_t> ScrubRateOf(const Config& config);
// Bytes a day; 0: any.
uint64_t WriteBudgetOf(const Config& config, const Tiers& tiers);
std::optional<uint64_t> IndexBytesOf(const Config& config);
// What takes longer is logged.
absl::Duration SlowOf(const Config& config);
// Of all transports.
uint64_t PeersMax(const Config& config);
// Whether clients of the socket shall map the arena. Nothing keeps tenants apart today: who gives a
// tenant's name is of that tenant. So `auto` maps wherever there is a socket.
bool MapsArena(const Config& config);

}  // namespace cairn
