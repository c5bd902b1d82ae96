// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"

namespace cairn::cli {
namespace {

constexpr Flag kTierFlags[] = {
    {"--rated-tbw", "TB", "rated endurance of all drives together: shows how long they will last"},
};
// Shorter uptimes give no estimate of a drive's life.
constexpr absl::Duration kUptimeMin = absl::Hours(24);
constexpr absl::Duration kTryStep = absl::Milliseconds(20);

// Returns "1 open, 12 sealed".
std::string Segments(const v1::DeviceInfo& device) {
  std::string text;
  for (const v1::SegmentCount& segments : device.segments()) {
    if (segments.count() > 0) {
      absl::StrAppend(&text, text.empty() ? "" : ", ", segments.count(), " ", segments.state());
    }
  }
  return text;
}

// Returns "ssd scrub: 64KiB/s, 2GiB in this pass, whole passes 3, last 3h ago, damaged images 0".
std::string Scrubbed(const v1::TierInfo& tier) {
  const v1::ScrubInfo& scrub = tier.scrub();
  const std::string prefix = absl::StrCat(ToAbsl(TierName(tier.tier())), " scrub: ");
  if (scrub.rate_bytes() == 0) {
    return absl::StrCat(prefix, "off");
  }
  const std::string last =
      scrub.last_pass_ms() == 0
          ? "none"
          : absl::StrCat(absl::FormatDuration(absl::Trunc(absl::Milliseconds(scrub.last_pass_ms()),
                                                          absl::Seconds(1))),
                         " ago");
  return absl::StrCat(prefix, FormatBytes(scrub.rate_bytes()), "/s, ",
                      FormatBytes(scrub.image_bytes()), " in this pass, whole passes ",
                      scrub.pass_count(), ", last ", last, ", damaged images ",
                      scrub.corrupt_images());
}

struct Written {
  double bytes_per_day = 0;
  double amplification = 1;  // written bytes, including those of reclaim, per byte of new images
};

Written WrittenTo(const v1::TierInfo& tier) {
  double written = 0, carried = 0;
  for (const v1::DeviceInfo& device : tier.devices()) {
    written += static_cast<double>(device.written_bytes());
    carried += static_cast<double>(device.carried_bytes());
  }
  const double days = static_cast<double>(std::max<uint64_t>(tier.writes().uptime_ms(), 1)) / 864e5;
  return {.bytes_per_day = (written + carried) / days,
          .amplification = written > 0 ? (written + carried) / written : 1};
}

// Returns "ssd writes: 412GiB a day, from 36h since the start, amplification 1.08; budget 500GiB a
// day, 20GiB left, 12 images withheld; drives of 600 TB last 4.0 years at this rate". After less
// than a day, the rate is too inaccurate, so the years are omitted.
std::string WritesOf(const v1::TierInfo& tier, uint64_t rated_tb) {
  const Written written = WrittenTo(tier);
  const v1::WriteInfo& writes = tier.writes();
  const absl::Duration uptime = absl::Milliseconds(writes.uptime_ms());
  std::string text = absl::StrFormat(
      "%s writes: %s a day, from %s since the start, amplification %.2f",
      ToAbsl(TierName(tier.tier())), FormatBytes(static_cast<uint64_t>(written.bytes_per_day)),
      absl::FormatDuration(std::max(
          absl::Trunc(uptime, uptime < absl::Minutes(1) ? absl::Seconds(1) : absl::Minutes(1)),
          absl::Seconds(1))),
      written.amplification);
  if (writes.budget_bytes() > 0) {
    absl::StrAppend(
        &text, "; budget ", FormatBytes(writes.budget_bytes()), " a day, ",
        FormatBytes(static_cast<uint64_t>(std::max<int64_t>(writes.budget_left_bytes(), 0))),
        " left, ", writes.withheld_images(), " images withheld");
  }
  if (rated_tb > 0 && uptime < kUptimeMin) {
    absl::StrAppend(&text, "; how long the drives last shows after a day");
  } else if (rated_tb > 0 && written.bytes_per_day > 0) {
    absl::StrAppendFormat(&text, "; drives of %d TB last %.1f years at this rate", rated_tb,
                          static_cast<double>(rated_tb) * 1e12 / written.bytes_per_day / 365);
  }
  return text;
}

// Returns "host index: full before the tier, of which 75% is used: 1234 blocks went for room in the
// index since the start; a larger --index-bytes of cairnd keeps more".
std::string LimitedByIndex(const v1::TierInfo& tier) {
  return absl::StrCat(ToAbsl(TierName(tier.tier())), " index: full before the tier, of which ",
                      Percent(tier.used_bytes(), tier.capacity_bytes()),
                      " is used: ", tier.evicted_for_index(),
                      " blocks went for room in the index since the start; a larger --index-bytes "
                      "of cairnd keeps more");
}

void PrintJson(const v1::ListTiersReply& reply) {
  JsonWriter json;
  json.BeginArray();
  for (const v1::TierInfo& tier : reply.tiers()) {
    json.BeginObject()
        .Field("tier", TierName(tier.tier()))
        .Field("capacity_bytes", tier.capacity_bytes())
        .Field("used_bytes", tier.used_bytes())
        .Field("images", tier.image_count())
        .Field("evicted_for_index", tier.evicted_for_index())
        .Key("devices")
        .BeginArray();
    for (const v1::DeviceInfo& device : tier.devices()) {
      json.BeginObject()
          .Field("path", device.path())
          .Field("state", DeviceStateName(device.state()))
          .Field("reason", device.reason())
          .Field("retired", device.retired())
          .Field("trying", device.trying())
          .Field("capacity_bytes", device.capacity_bytes())
          .Field("used_bytes", device.used_bytes())
          .Field("images", device.image_count())
          .Field("written_bytes", device.written_bytes())
          .Field("carried_bytes", device.carried_bytes())
          .Field("read_bytes", device.read_bytes())
          .Field("faults", device.fault_count())
          .Field("transfers", device.transfer_count())
          .Field("engine", device.engine())
          .Key("segments")
          .BeginObject();
      for (const v1::SegmentCount& segments : device.segments()) {
        json.Field(segments.state(), segments.count());
      }
      json.EndObject().EndObject();
    }
    json.EndArray();
    if (tier.has_scrub()) {
      const v1::ScrubInfo& scrub = tier.scrub();
      json.Key("scrub")
          .BeginObject()
          .Field("rate_bytes", scrub.rate_bytes())
          .Field("passes", scrub.pass_count())
          .Field("corrupt_images", scrub.corrupt_images())
          .Field("images", scrub.image_count())
          .Field("image_bytes", scrub.image_bytes())
          .Field("last_pass_ms", scrub.last_pass_ms())
          .EndObject();
    }
    if (tier.has_writes()) {
      const Written written = WrittenTo(tier);
      json.Key("writes")
          .BeginObject()
          .Field("bytes_per_day", static_cast<uint64_t>(written.bytes_per_day))
          .Key("amplification")
          .Real(written.amplification)
          .Field("budget_bytes", tier.writes().budget_bytes())
          .Key("budget_left_bytes")
          .Real(static_cast<double>(tier.writes().budget_left_bytes()))
          .Field("withheld_images", tier.writes().withheld_images())
          .EndObject();
    }
    json.EndObject();
  }
  json.EndArray().Print();
}

void PrintTiers(const v1::ListTiersReply& reply, uint64_t rated_tb) {
  std::vector<std::vector<std::string>> tiers, devices;
  for (const v1::TierInfo& tier : reply.tiers()) {
    tiers.push_back({std::string(TierName(tier.tier())), FormatBytes(tier.used_bytes()),
                     FormatBytes(tier.capacity_bytes()),
                     Percent(tier.used_bytes(), tier.capacity_bytes()),
                     absl::StrCat(tier.image_count())});
    for (const v1::DeviceInfo& device : tier.devices()) {
      devices.push_back({device.path(), std::string(DeviceStateName(device.state())),
                         FormatBytes(device.used_bytes()), FormatBytes(device.capacity_bytes()),
                         absl::StrCat(device.image_count()), FormatBytes(device.written_bytes()),
                         FormatBytes(device.carried_bytes()), FormatBytes(device.read_bytes()),
                         absl::StrCat(device.fault_count()), device.engine(), Segments(device)});
    }
  }
  PrintTable({"TIER", "USED", "OF", "", "IMAGES"}, tiers);
  if (!devices.empty()) {
    absl::PrintF("\n");
    PrintTable({"DEVICE", "STATE", "USED", "OF", "IMAGES", "WRITTEN", "CARRIED", "READ", "FAULTS",
                "ENGINE", "SEGMENTS"},
               devices);
  }
  for (const v1::TierInfo& tier : reply.tiers()) {
    if (tier.evicted_for_index() > 0) {
      absl::PrintF("%s\n", LimitedByIndex(tier));
    }
    if (tier.has_scrub()) {
      absl::PrintF("%s\n%s\n", WritesOf(tier, rated_tb), Scrubbed(tier));
    }
  }
  PrintDevicesInTrouble(reply);
}

// Returns the device of that path when the attempt to take it back has ended.
absl::StatusOr<v1::DeviceInfo> AwaitTried(AdminClient& admin, const std::string& path,
                                          absl::Time deadline) {
  while (true) {  // ends: the deadline
    CAIRN_ASSIGN_OR_RETURN(const v1::ListTiersReply reply, admin.ListTiers(deadline));
    for (const v1::TierInfo& tier : reply.tiers()) {
      for (const v1::DeviceInfo& device : tier.devices()) {
        if (device.path() == path && !device.trying()) {
          return device;
        }
      }
    }
    absl::SleepFor(kTryStep);
  }
}

absl::Status SetDevice(const Arguments& arguments, AdminClient& admin, bool is_retired) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(arguments));
  v1::SetDeviceRequest request;
  request.set_path(arguments.positional()[1]);
  request.set_retired(is_retired);
  CAIRN_ASSIGN_OR_RETURN(const v1::SetDeviceReply reply, admin.SetDevice(request, deadline));
  v1::DeviceInfo device = reply.device();
  if (device.trying()) {
    CAIRN_ASSIGN_OR_RETURN(device, AwaitTried(admin, device.path(), deadline));
  }
  const std::string state =
      absl::StrCat(device.path(), " is ", ToAbsl(DeviceStateName(device.state())),
                   device.reason().empty() ? "" : absl::StrCat(": ", device.reason()));
  if (!is_retired && device.state() == v1::DEVICE_STATE_READ_ONLY) {
    return absl::FailedPreconditionError(absl::StrCat("writes still fail: ", state));
  }
  absl::PrintF("%s\n", state);
  return absl::OkStatus();
}

absl::Status RunTier(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(arguments));
  if (const std::vector<std::string>& words = arguments.positional(); !words.empty()) {
    if (words.size() != 2 || (words[0] != "retire" && words[0] != "admit")) {
      return absl::InvalidArgumentError("usage: cairnctl tier [retire PATH | admit PATH] [FLAGS]");
    }
    return SetDevice(arguments, *admin, words[0] == "retire");
  }
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(arguments));
  CAIRN_ASSIGN_OR_RETURN(const v1::ListTiersReply reply, admin->ListTiers(deadline));
  if (arguments.is_json()) {
    PrintJson(reply);
  } else {
    CAIRN_ASSIGN_OR_RETURN(const uint64_t rated_tb,
                           arguments.GetNumber("--rated-tbw", 0, 1'000'000));
    PrintTiers(reply, rated_tb);
  }
  return absl::OkStatus();
}

}  // namespace

const Command kTier{
    .name = "tier",
    .operands = "[retire PATH | admit PATH]",
    .summary = "Shows the tiers and their devices, retires a device or takes it back",
    .examples =
        "  cairnctl tier\n"
        "  cairnctl tier retire /mnt/nvme0/cairn\n"
        "  cairnctl tier admit /mnt/nvme0/cairn\n",
    .details =
        "PATH is the folder of a device, as in --ssd of cairnd, or gpu:N of --gpu.\n"
        "\n"
        "retire   the device takes no new images; its images are still read. Lasts until\n"
        "         admit or the end of the daemon: to remove a drive permanently, remove its\n"
        "         --ssd as well.\n"
        "admit    the device takes images again. A device with failed writes is tested at\n"
        "         once.\n"
        "\n"
        "States of a device:\n"
        "  recovering  its contents are being found\n"
        "  ok          it works\n"
        "  capped      its file system has less room than it may use\n"
        "  read-only   writes failed, or it is retired\n"
        "  out         it is missing or cannot be opened, and is tried again; a GPU that\n"
        "              failed stays out until the daemon restarts\n"
        "\n"
        "CARRIED: bytes rewritten during space reclaim. The line of writes shows both per\n"
        "day, and what is left of cairnd's --ssd-write-budget. FAULTS: transfers that failed.\n"
        "The scrub line shows the rate of background verification, its progress and the\n"
        "damage found.\n",
    .flags = kTierFlags,
    .operands_min = 0,
    .operands_max = 2,
    .run = RunTier,
};

}  // namespace cairn::cli
