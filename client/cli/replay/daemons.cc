// SPDX-License-Identifier: Apache-2.0
#include "client/cli/replay/daemons.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "client/cli/daemon.h"
#include "client/cpp/admin.h"

namespace cairn::cli {
namespace {

absl::StatusOr<ReplayDaemon> OpenOne(const std::string& address, ConnectOptions options,
                                     const proto::SpaceIdentity& identity,
                                     const std::string& recipe) {
  ReplayDaemon daemon{.address = address, .client = nullptr, .space = nullptr};
  options.control = address;
  CAIRN_ASSIGN_OR_RETURN(daemon.client, Client::Connect(options));
  CAIRN_ASSIGN_OR_RETURN(daemon.space, daemon.client->OpenSpace(identity, recipe, options.timeout));
  if (!recipe.empty() && daemon.space->recipe() != recipe) {
    return absl::InvalidArgumentError(absl::StrCat("the space is there as ", daemon.space->recipe(),
                                                   "; name another --space-name"));
  }
  return daemon;
}

void Add(const TierFigures& from, TierFigures* to) {
  to->capacity_bytes += from.capacity_bytes;
  to->used_bytes += from.used_bytes;
  to->pinned_bytes += from.pinned_bytes;
  to->staging_bytes += from.staging_bytes;
  to->quarantine_bytes += from.quarantine_bytes;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReplayAddressesOf(const Arguments& arguments) {
  if (!arguments.Has(kDaemonsFlag)) {
    return std::vector<std::string>{arguments.control()};
  }
  for (const std::string_view flag : {"--control", "--admin", "--data"}) {
    if (arguments.Has(flag)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "give --daemons or ", ToAbsl(flag), ", not both: ", ToAbsl(flag), " is of one daemon"));
    }
  }
  const std::vector<std::string> addresses = absl::StrSplit(arguments.Get(kDaemonsFlag), ',');
  if (addresses.size() > kReplayDaemonsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--daemons has ", addresses.size(), " addresses; expected 1 to ", kReplayDaemonsMax));
  }
  for (auto address = addresses.begin(); address != addresses.end(); ++address) {
    if (address->empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--daemons is '", arguments.Get(kDaemonsFlag),
                       "'; expected addresses with a comma between them"));
    }
    if (std::find(addresses.begin(), address, *address) != address) {
      return absl::InvalidArgumentError(absl::StrCat("--daemons has ", *address, " twice"));
    }
  }
  return addresses;
}

absl::StatusOr<std::vector<ReplayDaemon>> OpenReplayDaemons(
    const std::vector<std::string>& addresses, const ConnectOptions& options,
    const proto::SpaceIdentity& identity, const std::string& recipe) {
  std::vector<ReplayDaemon> daemons;
  for (const std::string& address : addresses) {
    absl::StatusOr<ReplayDaemon> daemon =
        OpenOne(address, options, identity, daemons.empty() ? recipe : daemons[0].space->recipe());
    if (!daemon.ok()) {
      return addresses.size() == 1 ? daemon.status() : Annotate(daemon.status(), address);
    }
    daemons.push_back(*std::move(daemon));
  }
  return daemons;
}

std::map<std::string, uint64_t> EvictedForIndex(const Arguments& arguments,
                                                const std::vector<ReplayDaemon>& daemons) {
  std::map<std::string, uint64_t> blocks;
  for (const ReplayDaemon& daemon : daemons) {
    const absl::StatusOr<std::unique_ptr<AdminClient>> admin =
        AdminClient::Open(daemon.address, arguments.Get("--admin"), arguments.tls());
    const absl::StatusOr<absl::Time> deadline = DeadlineOf(arguments);
    if (!admin.ok() || !deadline.ok()) continue;
    if (const auto reply = (*admin)->ListTiers(*deadline); reply.ok()) {
      for (const v1::TierInfo& tier : reply->tiers()) {
        blocks[std::string(TierName(tier.tier()))] += tier.evicted_for_index();
      }
    }
  }
  return blocks;
}

std::vector<TierFigures> TiersOf(const std::vector<ReplayDaemon>& daemons, absl::Duration timeout) {
  std::vector<TierFigures> tiers;
  for (const ReplayDaemon& daemon : daemons) {
    const absl::StatusOr<Stats> stats = daemon.client->GetStats(timeout);
    if (!stats.ok()) continue;
    for (const TierFigures& figures : stats->tiers) {
      const auto known = std::find_if(tiers.begin(), tiers.end(), [&](const TierFigures& one) {
        return one.tier == figures.tier;
      });
      known == tiers.end() ? tiers.push_back(figures) : Add(figures, &*known);
    }
  }
  return tiers;
}

}  // namespace cairn::cli
