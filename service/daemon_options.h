// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts the configuration into the options of components. All functions are pure.
// REQUIRES: ParseCommandLine() made `config`.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "codecs/recipe/recipe.h"
#include "service/config.h"
#include "service/members/members.h"
#include "service/peer/peer_reader.h"
#include "service/tier/ssd/ssd_tier.h"
#include "service/tier/tiers.h"
#include "transport/tls/tls_files.h"

namespace cairn {

ControlAddress ControlOf(const Config& config);
// Returns nullopt if the setting is off.
std::optional<ControlAddress> AdminOf(const Config& config);
codecs::Recipe RecipeOf(const Config& config);
// Returns the folders that --door names. The daemon makes a socket in each.
std::vector<std::string> DoorsOf(const Config& config);
std::vector<SsdFolder> SsdFoldersOf(const Config& config);
// Returns nullopt if the setting is off.
std::optional<GpuShare> GpuOf(const Config& config);
// Returns the part of the GPU's memory that the GPU tier gets. Returns 0 if there is no GPU tier.
uint64_t GpuTierBytesOf(const Config& config);
// Returns the limit for the index memory of awake blocks (index/block.h).
uint64_t AwakeBytesMaxOf(const Config& config);
// Returns the limit for the number of blocks in the host tier.
uint64_t BlocksMaxOf(const Config& config);
IoChoice IoOf(const Config& config);
std::optional<uint64_t> ScrubRateOf(const Config& config);
// Returns the budget in bytes per day, or 0 for no limit.
uint64_t WriteBudgetOf(const Config& config, const Tiers& tiers);
std::optional<uint64_t> IndexBytesOf(const Config& config);
// Returns nullopt if TLS is off.
std::optional<transport::TlsPaths> TlsOf(const Config& config);
// Returns how this daemon reads from other members: over TLS if it has certificates, and over UCX
// if `data` is set. Returns nullopt if it can do neither.
std::optional<PeerReader::Options> PeerReaderOf(const Config& config, const std::string& self);
// Returns the duration above which requests are logged as slow.
absl::Duration SlowOf(const Config& config);
// Returns the maximum number of peers of all transports together.
uint64_t PeersMax(const Config& config);
// Returns true if the settings let local clients map the arena. A client that maps it can read the
// blocks of all tenants. So a daemon whose policy names more than one tenant lets no client map the
// arena, even if this function returns true.
bool MapsArena(const Config& config);

// Reads the files that the settings etcd-… name. Errors name the file.
absl::Status CheckEtcd(const Config& config);
// Returns null if the daemon belongs to no cluster.
std::unique_ptr<Members> MembersOf(const Config& config, const Clock& clock);

}  // namespace cairn
