// SPDX-License-Identifier: Apache-2.0
#pragma once
// The daemons that a replay plays against.
//
// Thread-safety: Thread-compatible.

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/cpp/client.h"
#include "client/cpp/options.h"
#include "client/cpp/space.h"
#include "proto/block_key.h"

namespace cairn::cli {

inline constexpr std::string_view kDaemonsFlag = "--daemons";
inline constexpr size_t kReplayDaemonsMax = 16;

// A daemon, and the replay's space there. The space needs the client.
struct ReplayDaemon {
  std::string address;  // as the user gave it
  std::unique_ptr<Client> client;
  std::unique_ptr<Space> space;
};

// Returns the addresses of --daemons, else the only address of --control. Errors: InvalidArgument,
// naming the problem: no address, an address that is there twice, more than kReplayDaemonsMax
// addresses, or a flag that describes one daemon only.
absl::StatusOr<std::vector<std::string>> ReplayAddressesOf(const Arguments& arguments);

// Opens one space at all daemons: with `recipe`, else with the one that the first daemon chooses.
// `options` are those of each session, except for the address. If there are several daemons, each
// error names its daemon. Errors: those of Client::Connect() and Client::OpenSpace(), and
// InvalidArgument if a daemon has the space with another recipe.
absl::StatusOr<std::vector<ReplayDaemon>> OpenReplayDaemons(
    const std::vector<std::string>& addresses, const ConnectOptions& options,
    const proto::SpaceIdentity& identity, const std::string& recipe);

// Returns the blocks of each tier that were evicted because the index was full, since the daemons
// started. Daemons on other hosts, and so their admin sockets, are left out.
std::map<std::string, uint64_t> EvictedForIndex(const Arguments& arguments,
                                                const std::vector<ReplayDaemon>& daemons);

// Returns the tiers of all daemons at present, those of one kind added up. Daemons that do not
// answer are left out.
std::vector<TierFigures> TiersOf(const std::vector<ReplayDaemon>& daemons, absl::Duration timeout);

}  // namespace cairn::cli
