// SPDX-License-Identifier: Apache-2.0
#include "client/cli/replay/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"
#include "client/cli/output.h"

namespace cairn::replay {
namespace {

using cli::JsonWriter;

double ShareOf(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string PercentOf(uint64_t part, uint64_t whole) {
  return absl::StrFormat("%.2f %%", 100 * ShareOf(part, whole));
}

std::string Pace(const PlayOptions& options) {
  return options.rate > 0 ? absl::StrFormat("at %g times its pace", options.rate)
                          : "as fast as calls end";
}

void PrintRows(const std::vector<std::vector<std::string>>& rows) {
  cli::PrintTable(rows.front(), {rows.begin() + 1, rows.end()});
}

const char* NameOf(Tier tier) {
  switch (tier) {
    case Tier::kGpu:
      return "gpu";
    case Tier::kHost:
      return "host";
    case Tier::kSsd:
      return "ssd";
    case Tier::kPeer:
      return "peer";
    case Tier::kNone:
      break;
  }
  return "-";
}

// Returns 0 if there are none or the number is unknown.
uint64_t EvictedForIndex(const Report& report, Tier tier) {
  const auto found = report.evicted_for_index.find(NameOf(tier));
  return found == report.evicted_for_index.end() ? 0 : found->second;
}

void WriteHits(const char* name, const BlockCount& hits, const BlockCount& asked,
               JsonWriter& json) {
  json.Key(name).BeginObject().Field("blocks", hits.blocks).Field("tokens", hits.tokens);
  json.Key("block_rate").Real(ShareOf(hits.blocks, asked.blocks));
  json.Key("token_rate").Real(ShareOf(hits.tokens, asked.tokens)).EndObject();
}

void WriteCalls(const TallyWindow& window, JsonWriter& json) {
  json.Key("calls").BeginObject();
  for (size_t call = 0; call < kCallCount; ++call) {
    const std::vector<uint32_t>& times = window.call_us[call];
    json.Key(kCallNames[call])
        .BeginObject()
        .Field("count", uint64_t{times.size()})
        .Field("p50_us", Percentile(times, 0.5))
        .Field("p90_us", Percentile(times, 0.9))
        .Field("p99_us", Percentile(times, 0.99))
        .Field("max_us", Percentile(times, 1))
        .EndObject();
  }
  json.EndObject();
}

void WriteTiers(const Report& report, JsonWriter& json) {
  json.Key("tiers").BeginArray();
  for (const TierFigures& tier : report.tiers) {
    json.BeginObject()
        .Field("tier", NameOf(tier.tier))
        .Field("capacity_bytes", tier.capacity_bytes)
        .Field("used_bytes", tier.used_bytes)
        .Field("evicted_for_index", EvictedForIndex(report, tier.tier))
        .EndObject();
  }
  json.EndArray();
}

void WriteDaemons(const Report& report, JsonWriter& json) {
  json.Key("daemons").BeginArray();
  for (const DaemonFigures& daemon : report.daemons) {
    json.BeginObject()
        .Field("address", daemon.address)
        .Field("requests", daemon.tally.requests)
        .Field("blocks", daemon.sum.asked.blocks)
        .Field("hit_blocks", daemon.sum.AllHits().blocks)
        .Field("peer_hit_blocks", daemon.sum.hits[static_cast<size_t>(Tier::kPeer)].blocks)
        .Field("get_wire_bytes", daemon.get_bytes)
        .Field("put_wire_bytes", daemon.put_bytes)
        .Field("stored_bytes", daemon.tally.stored_bytes)
        .Field("wrong_bytes", daemon.tally.wrong_bytes)
        .Field("lost_blocks", daemon.tally.lost_blocks)
        .Field("late_calls", daemon.tally.late_calls)
        .EndObject();
  }
  json.EndArray();
}

// Returns the tiers that had a hit or exist in the daemon, fastest first.
std::vector<Tier> TiersOf(const Report& report) {
  std::vector<Tier> tiers;
  for (const Tier tier : {Tier::kGpu, Tier::kHost, Tier::kSsd, Tier::kPeer, Tier::kNone}) {
    const bool is_reported =
        std::ranges::any_of(report.tiers, [tier](const auto& one) { return one.tier == tier; });
    if (is_reported || report.sum.hits[static_cast<size_t>(tier)].blocks > 0) {
      tiers.push_back(tier);
    }
  }
  return tiers;
}

// Returns the heads, followed by the rows.
std::vector<std::vector<std::string>> HitRows(const Report& report) {
  const BlockCount& asked = report.sum.asked;
  std::vector<std::vector<std::string>> rows = {{"HITS", "BLOCKS", "OF BLOCKS", "OF TOKENS"}};
  const auto add = [&](const std::string& name, const BlockCount& hits) {
    rows.push_back({name, absl::StrCat(hits.blocks), PercentOf(hits.blocks, asked.blocks),
                    PercentOf(hits.tokens, asked.tokens)});
  };
  for (const Tier tier : TiersOf(report)) {
    add(NameOf(tier), report.sum.hits[static_cast<size_t>(tier)]);
  }
  add("all tiers", report.sum.AllHits());
  add("unbounded store", report.sum.ceiling);
  return rows;
}

std::vector<std::vector<std::string>> CallRows(const Report& report) {
  std::vector<std::vector<std::string>> rows = {{"CALLS", "COUNT", "P50", "P90", "P99", "MAX"}};
  for (size_t call = 0; call < kCallCount; ++call) {
    const std::vector<uint32_t>& times = report.sum.call_us[call];
    std::vector<std::string> row = {kCallNames[call], absl::StrCat(times.size())};
    for (const double share : {0.5, 0.9, 0.99, 1.0}) {
      row.push_back(absl::StrFormat("%.3f ms", Percentile(times, share) / 1000.0));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::vector<std::string>> DaemonRows(const Report& report) {
  std::vector<std::vector<std::string>> rows = {
      {"DAEMON", "REQUESTS", "BLOCKS", "HITS", "OF BLOCKS", "OF OTHERS", "GOT", "PUT", "LATE"}};
  for (const DaemonFigures& daemon : report.daemons) {
    const uint64_t hits = daemon.sum.AllHits().blocks;
    rows.push_back({daemon.address, absl::StrCat(daemon.tally.requests),
                    absl::StrCat(daemon.sum.asked.blocks), absl::StrCat(hits),
                    PercentOf(hits, daemon.sum.asked.blocks),
                    absl::StrCat(daemon.sum.hits[static_cast<size_t>(Tier::kPeer)].blocks),
                    FormatBytes(daemon.get_bytes), FormatBytes(daemon.put_bytes),
                    absl::StrCat(daemon.tally.late_calls)});
  }
  return rows;
}

}  // namespace

void PrintText(const Report& report) {
  const Tally& tally = report.tally;
  absl::PrintF("%s: %d requests, %d blocks, %d distinct, of %s as %s\n", report.trace_name,
               tally.requests, report.sum.asked.blocks, report.distinct_blocks,
               FormatBytes(report.block_bytes), report.recipe);
  absl::PrintF("played in %s %s, %d at a time, as space %s of tenant %s\n\n",
               absl::FormatDuration(absl::Trunc(report.elapsed, absl::Milliseconds(10))),
               Pace(report.options), report.options.parallel, report.space_name, report.tenant);
  PrintRows(HitRows(report));
  absl::PrintF("\n");
  PrintRows(CallRows(report));
  if (report.daemons.size() > 1) {
    absl::PrintF("\n");
    PrintRows(DaemonRows(report));
  }
  absl::PrintF("\nmoved        %s got, %s put\n", FormatBytes(report.get_bytes),
               FormatBytes(report.put_bytes));
  if (report.options.sends_hints) {
    absl::PrintF("hints        %d sent, %d refused\n", tally.hints, tally.refused_hints);
  }
  const uint64_t stored_blocks = tally.puts - tally.duplicate_puts;
  absl::PrintF("stored       %d blocks, %s (%s), %.2f bytes for each that was hit\n", stored_blocks,
               FormatBytes(tally.stored_bytes),
               cli::Ratio(stored_blocks * report.block_bytes, tally.stored_bytes),
               ShareOf(tally.stored_bytes, report.get_bytes));
  for (const TierFigures& tier : report.tiers) {
    absl::PrintF("%-12s %s of %s used at the end\n", NameOf(tier.tier),
                 FormatBytes(tier.used_bytes), FormatBytes(tier.capacity_bytes));
    if (const uint64_t blocks = EvictedForIndex(report, tier.tier); blocks > 0) {
      absl::PrintF("%-12s %d blocks went because the index was full, and not this tier: %s\n", "",
                   blocks, "a larger --index-bytes of cairnd keeps more");
    }
  }
  absl::PrintF("wrong bytes  %d in %d blocks, of %s that came back\n", tally.wrong_bytes,
               tally.wrong_blocks, FormatBytes(tally.verified_bytes));
  absl::PrintF("late calls   %d past their deadline of %s, by %s at most\n", tally.late_calls,
               absl::FormatDuration(report.options.deadline), absl::FormatDuration(tally.late_max));
  if (report.options.rate > 0) {
    absl::PrintF("behind       %s at most\n",
                 absl::FormatDuration(absl::Trunc(tally.behind_max, absl::Milliseconds(1))));
  }
  for (const auto& [name, count] : tally.errors) {
    absl::PrintF("failed       %d: %s\n", count, name);
  }
}

namespace {

// Writes all windows of the trace's time, including windows without requests.
void WriteWindows(const Report& report, JsonWriter& json) {
  json.Key("windows").BeginArray();
  for (const TallyWindow& window : report.tally.windows) {
    json.BeginObject()
        .Field("asked", window.asked.blocks)
        .Field("ceiling", window.ceiling.blocks)
        .Key("hits")
        .BeginObject();
    for (const Tier tier : TiersOf(report)) {
      json.Field(NameOf(tier), window.hits[static_cast<size_t>(tier)].blocks);
    }
    json.EndObject();
    WriteCalls(window, json);
    json.EndObject();
  }
  json.EndArray();
}

void WriteJson(const Report& report, JsonWriter& json) {
  const Tally& tally = report.tally;
  const BlockCount& asked = report.sum.asked;
  json.Field("trace", report.trace_name)
      .Field("trace_ms", report.trace_ms)
      .Field("recipe", report.recipe)
      .Field("tenant", report.tenant)
      .Field("space_name", report.space_name)
      .Field("block_bytes", report.block_bytes)
      .Field("parallel", report.options.parallel)
      .Key("rate")
      .Real(report.options.rate)
      .Field("elapsed_ms", static_cast<uint64_t>(absl::ToInt64Milliseconds(report.elapsed)))
      .Field("requests", tally.requests)
      .Field("blocks", asked.blocks)
      .Field("tokens", asked.tokens)
      .Field("distinct_blocks", report.distinct_blocks)
      .Key("hits")
      .BeginObject();
  for (const Tier tier : TiersOf(report)) {
    WriteHits(NameOf(tier), report.sum.hits[static_cast<size_t>(tier)], asked, json);
  }
  WriteHits("all", report.sum.AllHits(), asked, json);
  WriteHits("unbounded", report.sum.ceiling, asked, json);
  json.EndObject();
  WriteCalls(report.sum, json);
  json.Field("get_wire_bytes", report.get_bytes)
      .Field("put_wire_bytes", report.put_bytes)
      .Field("verified_bytes", tally.verified_bytes)
      .Field("wrong_bytes", tally.wrong_bytes)
      .Field("wrong_blocks", tally.wrong_blocks)
      .Field("lost_blocks", tally.lost_blocks)
      .Field("stored_blocks", tally.puts - tally.duplicate_puts)
      .Field("stored_bytes", tally.stored_bytes)
      .Key("stored_per_hit_byte")
      .Real(ShareOf(tally.stored_bytes, report.get_bytes))
      .Field("duplicate_puts", tally.duplicate_puts)
      .Field("skipped_puts", tally.skipped_puts)
      .Field("hints", tally.hints)
      .Field("refused_hints", tally.refused_hints)
      .Field("late_calls", tally.late_calls)
      .Field("late_max_us", static_cast<uint64_t>(absl::ToInt64Microseconds(tally.late_max)))
      .Field("behind_max_ms", static_cast<uint64_t>(absl::ToInt64Milliseconds(tally.behind_max)))
      .Key("errors")
      .BeginObject();
  for (const auto& [name, count] : tally.errors) {
    json.Field(name, count);
  }
  json.EndObject();
  WriteTiers(report, json);
  WriteDaemons(report, json);
}

}  // namespace

void PrintJson(const Report& report) {
  JsonWriter json;
  json.BeginObject();
  WriteJson(report, json);
  json.EndObject().Print();
}

std::string PageInputOf(const Report& report) {
  JsonWriter json(JsonWriter::Layout::kOneLine);
  json.BeginObject();
  WriteJson(report, json);
  WriteWindows(report, json);
  return json.EndObject().text();
}

}  // namespace cairn::replay
