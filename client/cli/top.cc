// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/keyboard.h"
#include "client/cli/output.h"
#include "client/cli/scrape.h"

namespace cairn::cli {
namespace {

constexpr uint64_t kIntervalSeconds = 2;
constexpr uint64_t kIntervalSecondsMax = 60;
constexpr size_t kSpacesShown = 8;
constexpr int kBarCells = 24;
constexpr std::string_view kTiers[] = {"gpu", "host", "ssd"};

constexpr Flag kTopFlags[] = {
    {"--interval", "SECONDS", "interval of the rates, 1 to 60 [2]"},
    {"--once", "", "show one interval and exit"},
    {"--http", "HOST:PORT", "address of the daemon's metrics [as the daemon reports]"},
};

// The data of one moment.
struct Sample {
  absl::Time time;
  Scrape scrape;
  absl::StatusOr<v1::ListSpacesReply> spaces;
};

absl::StatusOr<Sample> Take(const Arguments& arguments, const std::string& http,
                            AdminClient& admin) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(arguments));
  CAIRN_ASSIGN_OR_RETURN(Scrape scrape, Scrape::Fetch(http, deadline));
  return Sample{MonotonicNow(), std::move(scrape), admin.ListSpaces(deadline)};
}

struct SpaceRow {
  v1::SpaceInfo info;
  double blocks_per_second = 0;  // additions minus removals
};

// The changes between two samples.
class Interval {
 public:
  Interval(const Sample& before, const Sample& now)
      : before_(before),
        now_(now),
        seconds_(std::max(absl::ToDoubleSeconds(now.time - before.time), 1e-3)) {}

  const Scrape& now() const { return now_.scrape; }
  double Rate(std::string_view name, std::initializer_list<std::string_view> labels = {}) const {
    return Grown(name, labels) / seconds_;
  }
  // Returns 0 if there were no requests.
  double Share(std::string_view part, std::string_view whole) const {
    const double asked = Grown(whole);
    return asked > 0 ? Grown(part) / asked : 0;
  }
  double MeanSeconds(std::string_view op) const {
    const double count = Grown("cairn_data_request_seconds_count", {op});
    return count > 0 ? Grown("cairn_data_request_seconds_sum", {op}) / count : 0;
  }
  // Returns the spaces with the most changes first, then the largest.
  absl::StatusOr<std::vector<SpaceRow>> Spaces() const {
    CAIRN_RETURN_IF_ERROR(now_.spaces.status());
    std::map<uint64_t, uint64_t> before;
    if (before_.spaces.ok()) {
      for (const v1::SpaceInfo& space : before_.spaces->spaces()) {
        before[space.space_id()] = space.block_count();
      }
    }
    std::vector<SpaceRow> rows;
    for (const v1::SpaceInfo& space : now_.spaces->spaces()) {
      const auto grown =
          static_cast<double>(space.block_count()) - static_cast<double>(before[space.space_id()]);
      rows.push_back({space, grown / seconds_});
    }
    std::ranges::sort(rows, std::greater(), [](const SpaceRow& row) {
      return std::pair(std::abs(row.blocks_per_second), row.info.image_bytes());
    });
    rows.resize(std::min(rows.size(), kSpacesShown));
    return rows;
  }

 private:
  // Returns the increase of a counter. A counter that has decreased has started again.
  double Grown(std::string_view name, std::initializer_list<std::string_view> labels = {}) const {
    const double now = now_.scrape.Sum(name, labels), before = before_.scrape.Sum(name, labels);
    return now < before ? now : now - before;
  }

  const Sample& before_;
  const Sample& now_;
  const double seconds_;
};

std::string Label(std::string_view key, std::string_view value) {
  return absl::StrCat(ToAbsl(key), "=\"", ToAbsl(value), "\"");
}

uint64_t Whole(double value) { return static_cast<uint64_t>(std::max(value, 0.0)); }

std::string Milliseconds(double seconds) { return absl::StrFormat("%.3g ms", seconds * 1e3); }

// Returns the payload rate of gets: copied bytes, plus bytes that clients on the daemon's host read
// in place.
double OutRate(const Interval& interval) {
  return interval.Rate("cairn_transport_sent_bytes_total") +
         interval.Rate("cairn_transport_lent_bytes_total");
}

void PrintJson(const Interval& interval) {
  const Scrape& now = interval.now();
  JsonWriter json;
  const auto rate = [&](std::string_view key, std::string_view name,
                        std::initializer_list<std::string_view> labels = {}) {
    json.Key(key).Real(interval.Rate(name, labels));
  };
  json.BeginObject()
      .Field("daemon_version", now.LabelOf("cairn_build_info", "version"))
      .Field("uptime_seconds", Whole(now.Sum("cairn_uptime_seconds")))
      .Field("draining", now.Sum("cairn_draining_state") > 0)
      .Field("sessions", Whole(now.Sum("cairn_sessions")))
      .Field("leases", Whole(now.Sum("cairn_leases")));
  rate("asked_blocks_per_second", "cairn_match_asked_blocks_total");
  json.Key("hit_ratio")
      .Real(interval.Share("cairn_match_found_blocks_total", "cairn_match_asked_blocks_total"));
  rate("gets_per_second", "cairn_gets_total");
  rate("puts_per_second", "cairn_puts_total");
  json.Key("get_seconds").Real(interval.MeanSeconds(R"(op="get")"));
  json.Key("put_seconds").Real(interval.MeanSeconds(R"(op="put")"));
  json.Key("sent_bytes_per_second").Real(OutRate(interval));
  rate("received_bytes_per_second", "cairn_transport_received_bytes_total");
  rate("evictions_per_second", "cairn_evictions_total");
  json.Key("tiers").BeginArray();
  for (const std::string_view tier : kTiers) {
    const std::string label = Label("tier", tier);
    if (now.Sum("cairn_tier_capacity_bytes", {label}) == 0) continue;
    json.BeginObject()
        .Field("tier", tier)
        .Field("capacity_bytes", Whole(now.Sum("cairn_tier_capacity_bytes", {label})))
        .Field("used_bytes", Whole(now.Sum("cairn_tier_used_bytes", {label})));
    rate("hits_per_second", "cairn_gets_total", {label, R"(outcome="hit")"});
    json.EndObject();
  }
  json.EndArray();
  const auto spaces = interval.Spaces();
  if (!spaces.ok()) {
    json.Field("spaces_unknown", std::string(spaces.status().message())).EndObject().Print();
    return;
  }
  json.Key("spaces").BeginArray();
  for (const SpaceRow& row : *spaces) {
    json.BeginObject()
        .Field("space_id", row.info.space_id())
        .Field("fingerprint", HexOf(row.info.fingerprint()))
        .Field("tenant", row.info.spec().tenant())
        .Field("model", row.info.spec().model())
        .Field("blocks", row.info.block_count())
        .Field("image_bytes", row.info.image_bytes())
        .Key("blocks_per_second")
        .Real(row.blocks_per_second)
        .EndObject();
  }
  json.EndArray().EndObject().Print();
}

void PrintRates(const Interval& interval) {
  absl::PrintF(
      "asked   %10.0f blocks/s, %.1f %% of them found\n",
      interval.Rate("cairn_match_asked_blocks_total"),
      100 * interval.Share("cairn_match_found_blocks_total", "cairn_match_asked_blocks_total"));
  absl::PrintF("gets    %10.0f /s, %s/s out, %s each\n", interval.Rate("cairn_gets_total"),
               FormatBytes(Whole(OutRate(interval))),
               Milliseconds(interval.MeanSeconds(R"(op="get")")));
  absl::PrintF("puts    %10.0f /s, %s/s in, %s each\n", interval.Rate("cairn_puts_total"),
               FormatBytes(Whole(interval.Rate("cairn_transport_received_bytes_total"))),
               Milliseconds(interval.MeanSeconds(R"(op="put")")));
  absl::PrintF("evicted %10.0f blocks/s\n\n", interval.Rate("cairn_evictions_total"));
}

void PrintText(const Arguments& arguments, const Interval& interval) {
  const Scrape& now = interval.now();
  absl::PrintF("cairnd %s at %s, up %s%s: %.0f sessions, %.0f leases\n\n",
               now.LabelOf("cairn_build_info", "version"), arguments.control(),
               absl::FormatDuration(absl::Seconds(Whole(now.Sum("cairn_uptime_seconds")))),
               now.Sum("cairn_draining_state") > 0 ? ", DRAINING" : "", now.Sum("cairn_sessions"),
               now.Sum("cairn_leases"));
  PrintRates(interval);
  std::vector<std::vector<std::string>> rows;
  for (const std::string_view tier : kTiers) {
    const std::string label = Label("tier", tier);
    const uint64_t capacity = Whole(now.Sum("cairn_tier_capacity_bytes", {label}));
    if (capacity == 0) continue;
    const uint64_t used = Whole(now.Sum("cairn_tier_used_bytes", {label}));
    rows.push_back(
        {std::string(tier), Bar(used, capacity, kBarCells), Percent(used, capacity),
         FormatBytes(used), FormatBytes(capacity),
         absl::StrFormat("%.0f", interval.Rate("cairn_gets_total", {label, R"(outcome="hit")"}))});
  }
  PrintTable({"TIER", "", "USED", "BYTES", "OF", "HITS/S"}, rows);
  const auto spaces = interval.Spaces();
  if (!spaces.ok()) {
    absl::PrintF("\nspaces are not shown: %s\n", spaces.status().message());
    return;
  }
  rows.clear();
  for (const SpaceRow& row : *spaces) {
    rows.push_back({ShortHexOf(row.info.fingerprint()), row.info.spec().tenant(),
                    row.info.spec().model(), absl::StrCat(row.info.block_count()),
                    absl::StrFormat("%.0f", row.blocks_per_second),
                    FormatBytes(row.info.image_bytes())});
  }
  absl::PrintF("\n");
  PrintTable({"FINGERPRINT", "TENANT", "MODEL", "BLOCKS", "MORE/S", "BYTES"}, rows);
}

void Print(const Arguments& arguments, const Interval& interval) {
  if (arguments.is_json()) {
    PrintJson(interval);
  } else {
    PrintText(arguments, interval);
  }
}

absl::StatusOr<std::string> HttpOf(const Arguments& arguments) {
  if (arguments.Has("--http")) return arguments.Get("--http");
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(arguments));
  CAIRN_ASSIGN_OR_RETURN(const DaemonAbout about,
                         AskAbout(arguments.control(), deadline, arguments.tls()));
  if (about.http_address.empty()) {
    return absl::FailedPreconditionError("the daemon has no metrics: it runs with --http off");
  }
  return about.http_address;
}

absl::Status RunTop(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t seconds,
                         arguments.GetNumber("--interval", kIntervalSeconds, kIntervalSecondsMax));
  if (seconds == 0) return absl::InvalidArgumentError("--interval is 0; expected 1 to 60");
  CAIRN_ASSIGN_OR_RETURN(const std::string http, HttpOf(arguments));
  CAIRN_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(arguments));
  CAIRN_ASSIGN_OR_RETURN(Sample before, Take(arguments, http, *admin));
  if (arguments.Has("--once")) {
    absl::SleepFor(absl::Seconds(seconds));
    CAIRN_ASSIGN_OR_RETURN(const Sample now, Take(arguments, http, *admin));
    Print(arguments, Interval(before, now));
    return absl::OkStatus();
  }
  const bool is_terminal = ::isatty(STDOUT_FILENO) != 0;
  Keyboard keyboard;
  // Ends when the user presses a key, or when the daemon is gone.
  while (!keyboard.AwaitQuit(absl::Seconds(seconds))) {
    CAIRN_ASSIGN_OR_RETURN(Sample now, Take(arguments, http, *admin));
    if (is_terminal) absl::PrintF("\033[H\033[2J");
    Print(arguments, Interval(before, now));
    if (is_terminal && keyboard.is_there()) {
      absl::PrintF("\nq quits; rates are of the last %d s\n", seconds);
    }
    std::fflush(stdout);
    before = std::move(now);
  }
  return absl::OkStatus();
}

}  // namespace

const Command kTop{
    .name = "top",
    .operands = "",
    .summary = "Shows live rates, hit ratio, tiers and the busiest spaces",
    .examples =
        "  cairnctl top\n"
        "  cairnctl top --once --interval 10\n",
    .details =
        "q or ^C ends it. Rates are for the last interval. A space is as busy as its number\n"
        "of blocks changes; only operators see spaces.\n",
    .flags = kTopFlags,
    .operands_min = 0,
    .operands_max = 0,
    .run = RunTop,
};

}  // namespace cairn::cli
