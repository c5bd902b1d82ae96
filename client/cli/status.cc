// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "base/units.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"

namespace cairn::cli {
namespace {

constexpr int kTierBarCells = 24;

std::string NameOf(v1::Tier tier) { return std::string(TierName(tier)); }

// Returns "1 block", "2 blocks".
std::string Count(uint64_t count, std::string_view noun) {
  return absl::StrCat(count, " ", ToAbsl(noun), count == 1 ? "" : "s");
}

// Returns whether only operators may ask, and this user is none.
bool IsClosed(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status);
}

void PrintHeld(const v1::StatsReply& stats, JsonWriter& json) {
  json.Field("sessions", stats.session_count())
      .Field("leases", stats.lease_count())
      .Field("blocks", stats.block_count())
      .Field("images", stats.image_count())
      .Field("image_bytes", stats.image_bytes())
      .Field("source_bytes", stats.source_bytes())
      .Field("copies_source_bytes", stats.copies_source_bytes());
}

// `tiers`: why only operators see more, if this user is none.
void PrintJson(const Arguments& arguments, const v1::StatsReply& stats,
               const std::string& local_gets, const absl::StatusOr<v1::ListTiersReply>& tiers) {
  JsonWriter json;
  json.BeginObject()
      .Field("control", arguments.control())
      .Field("daemon_version", stats.daemon_version())
      .Field("uptime_ms", stats.uptime_ms())
      .Field("draining", stats.draining())
      .Field("local_gets", local_gets);
  if (tiers.ok()) PrintHeld(stats, json);
  json.Key("tiers").BeginArray();
  for (const v1::TierStats& tier : stats.tiers()) {
    json.BeginObject()
        .Field("tier", NameOf(tier.tier()))
        .Field("capacity_bytes", tier.capacity_bytes());
    if (tiers.ok()) {
      json.Field("used_bytes", tier.used_bytes())
          .Field("pinned_bytes", tier.pinned_bytes())
          .Field("staging_bytes", tier.staging_bytes())
          .Field("quarantine_bytes", tier.quarantine_bytes());
    }
    json.EndObject();
  }
  json.EndArray();
  if (!tiers.ok()) {
    json.Field("devices_unknown", std::string(tiers.status().message())).EndObject().Print();
    return;
  }
  json.Key("devices").BeginArray();
  for (const v1::TierInfo& tier : tiers->tiers()) {
    for (const v1::DeviceInfo& device : tier.devices()) {
      json.BeginObject()
          .Field("path", device.path())
          .Field("state", DeviceStateName(device.state()))
          .Field("reason", device.reason())
          .EndObject();
    }
  }
  json.EndArray().EndObject().Print();
}

// Returns "1.0 MiB of KV, kept in 0.67 MiB (1.5x smaller)". It counts one copy of each image.
// Copies in other tiers are shown separately.
std::string Kept(const v1::StatsReply& stats) {
  const uint64_t source = stats.source_bytes();
  const uint64_t copies = stats.copies_source_bytes();
  if (source == 0 || copies == 0) return absl::StrCat(FormatBytes(source), " of KV");
  const uint64_t images = stats.image_bytes();
  const auto kept = static_cast<uint64_t>(
      static_cast<double>(images) * (static_cast<double>(source) / static_cast<double>(copies)));
  const std::string change =
      copies < images ? Ratio(images, copies) + " larger" : Ratio(copies, images) + " smaller";
  return absl::StrCat(
      FormatBytes(source), " of KV, kept in ", FormatBytes(kept), " (", change, ")",
      copies == source ? "" : absl::StrCat("; all copies take ", FormatBytes(images)));
}

void PrintHeld(const v1::StatsReply& stats) {
  absl::PrintF("%s, %s: %s\n", Count(stats.block_count(), "block"),
               Count(stats.image_count(), "image"), Kept(stats));
  absl::PrintF("%s, %s\n\n", Count(stats.session_count(), "session"),
               Count(stats.lease_count(), "lease"));
  std::vector<std::vector<std::string>> rows;
  for (const v1::TierStats& tier : stats.tiers()) {
    rows.push_back(
        {NameOf(tier.tier()), Bar(tier.used_bytes(), tier.capacity_bytes(), kTierBarCells),
         Percent(tier.used_bytes(), tier.capacity_bytes()), FormatBytes(tier.used_bytes()),
         FormatBytes(tier.capacity_bytes()), FormatBytes(tier.pinned_bytes()),
         FormatBytes(tier.staging_bytes()), FormatBytes(tier.quarantine_bytes())});
  }
  PrintTable({"TIER", "", "USED", "BYTES", "OF", "PINNED", "STAGING", "QUARANTINE"}, rows);
}

absl::Status RunStatus(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(arguments));
  CAIRN_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(arguments));
  const absl::StatusOr<v1::ListTiersReply> tiers = admin->ListTiers(deadline);
  if (!tiers.ok() && !IsClosed(tiers.status())) return tiers.status();
  CAIRN_ASSIGN_OR_RETURN(const v1::StatsReply stats,
                         tiers.ok() ? admin->Stats(deadline)
                                    : AskStats(arguments.control(), deadline, arguments.tls()));
  const absl::StatusOr<DaemonAbout> about =
      AskAbout(arguments.control(), deadline, arguments.tls());
  const std::string local_gets = about.ok() ? about->local_gets : "";  // empty from an older daemon
  if (arguments.is_json()) {
    PrintJson(arguments, stats, local_gets, tiers);
    return absl::OkStatus();
  }
  const absl::Duration uptime = absl::Milliseconds(stats.uptime_ms());
  absl::PrintF("cairnd %s at %s, up %s%s\n", stats.daemon_version(), arguments.control(),
               uptime < absl::Seconds(1)
                   ? "0s"
                   : absl::FormatDuration(absl::Trunc(uptime, absl::Seconds(1))),
               stats.draining() ? ", DRAINING" : "");
  if (!local_gets.empty()) absl::PrintF("gets of its host are %s\n", local_gets);
  if (tiers.ok()) {
    PrintHeld(stats);
    PrintDevicesInTrouble(*tiers);
    return absl::OkStatus();
  }
  for (const v1::TierStats& tier : stats.tiers()) {
    absl::PrintF("%s: %s\n", NameOf(tier.tier()), FormatBytes(tier.capacity_bytes()));
  }
  absl::PrintF("\ncontents and devices are not shown: %s\n", tiers.status().message());
  return absl::OkStatus();
}

}  // namespace

const Command kStatus{
    .name = "status",
    .operands = "",
    .summary = "Shows the daemon's tiers, blocks, sessions and leases",
    .examples =
        "  cairnctl status\n"
        "  cairnctl status --control 10.0.0.7:50151 --json\n",
    .details =
        "Callers that are not operators see only the daemon's version, uptime and tier sizes.\n",
    .flags = {},
    .operands_min = 0,
    .operands_max = 0,
    .run = RunStatus,
};

}  // namespace cairn::cli
