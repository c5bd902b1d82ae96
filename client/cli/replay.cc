// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "base/units.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"
#include "client/cli/python.h"
#include "client/cli/replay/content.h"
#include "client/cli/replay/daemons.h"
#include "client/cli/replay/player.h"
#include "client/cli/replay/report.h"
#include "client/cli/replay/route.h"
#include "client/cli/replay/trace.h"
#include "proto/side_object.h"

namespace cairn::cli {
namespace {

using replay::Content;

constexpr uint64_t kDeadlineMs = 2000;
constexpr double kRateMax = 1e6;
constexpr char kRouteDefault[] = "random";
constexpr uint64_t kRouteSeed = 1;
constexpr uint64_t kRegionBytes = 4_MiB;  // for a connection, which moves one block at a time

constexpr Flag kReplayFlags[] = {
    {"--rate", "FACTOR", "speed relative to the trace, such as 1 or 60 [as fast as calls end]"},
    {"--requests", "COUNT", "play only the first COUNT requests [all]"},
    {"--parallel", "COUNT", "concurrent requests, 1 to 16; 1 keeps the trace's order [1]"},
    {"--block-bytes", "BYTES",
     "size of a block in source form, 8KiB to 64KiB in steps of 512 [64KiB]"},
    {"--block-tokens", "COUNT", "tokens of a block in the trace [512]"},
    {"--recipe", "NAME", "recipe of the replay's space [the daemon's]"},
    {"--profile", "FILE", "profile or bank to encode with [cairn: one made from the content]"},
    {"--tenant", "NAME", "tenant of the replay [default]"},
    {"--space-name", "NAME",
     "keep the blocks, and reuse those of an earlier replay with this name [none]"},
    {"--deadline-ms", "MS", "deadline of each match, get and put, 1 to 60000 [2000]"},
    {kDaemonsFlag, "ADDR,ADDR",
     "spread the requests over these daemons, up to 16 [the one of --control]"},
    {"--route", "NAME",
     "how requests are spread: random, or sticky by their first two blocks [random]"},
    {"--route-seed", "NUMBER", "seed of the route [1]"},
    {"--hints", "",
     "send the hints of agents: retain what a session goes on from, demote what it leaves"},
    {"--html", "FILE", "write a page with plots; needs Python with kvcairn and its extra evaluate"},
    {kPythonFlag, "PATH", "interpreter that writes the page [$CAIRN_PYTHON, else python3]"},
};

// The values of the flags.
struct Plan {
  uint64_t requests_max = 0;
  uint32_t block_tokens = 0, dim = 0;
  replay::PlayOptions options;
  std::string tenant, space_name;
  std::vector<std::string> addresses;
  replay::Route route = replay::Route::kRandom;
  uint64_t route_seed = 0;
};

absl::StatusOr<uint64_t> NumberFrom(const Arguments& arguments, std::string_view flag,
                                    uint64_t fallback, uint64_t least, uint64_t most) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t number, arguments.GetNumber(flag, fallback, most));
  if (number < least) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(flag), " is ", number, "; expected ", least, " to ", most));
  }
  return number;
}

absl::StatusOr<uint32_t> DimOf(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(
      const uint64_t bytes,
      ParseBytes(arguments.Get("--block-bytes", FormatBytes(replay::kContentBytesMax))));
  const uint64_t dim = bytes / replay::kContentChannelBytes;
  if (bytes % replay::kContentChannelBytes != 0 || dim < replay::kContentDimMin ||
      dim > replay::kContentDimMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--block-bytes is ", FormatBytes(bytes), "; expected a multiple of ",
                     replay::kContentChannelBytes, " from 8KiB to 64KiB"));
  }
  return static_cast<uint32_t>(dim);
}

// Fills in which daemons take part, and how requests are spread over them.
absl::Status PlanDaemons(const Arguments& arguments, Plan& plan) {
  for (const std::string_view flag : {"--route", "--route-seed"}) {
    if (arguments.Has(flag) && !arguments.Has(kDaemonsFlag)) {
      return absl::InvalidArgumentError(absl::StrCat(ToAbsl(flag), " needs --daemons"));
    }
  }
  CAIRN_ASSIGN_OR_RETURN(plan.addresses, ReplayAddressesOf(arguments));
  const std::string name = arguments.Get("--route", kRouteDefault);
  const std::optional<replay::Route> route = replay::RouteNamed(name);
  if (!route.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--route is '", name, "'; expected random or sticky"));
  }
  plan.route = *route;
  CAIRN_ASSIGN_OR_RETURN(plan.route_seed,
                         NumberFrom(arguments, "--route-seed", kRouteSeed, 0, UINT64_MAX));
  return absl::OkStatus();
}

absl::StatusOr<Plan> PlanOf(const Arguments& arguments) {
  Plan plan;
  CAIRN_ASSIGN_OR_RETURN(plan.requests_max,
                         NumberFrom(arguments, "--requests", UINT64_MAX, 1, UINT64_MAX));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t tokens, NumberFrom(arguments, "--block-tokens",
                                                           replay::kTraceBlockTokens, 1, 1U << 20));
  plan.block_tokens = static_cast<uint32_t>(tokens);
  CAIRN_ASSIGN_OR_RETURN(plan.dim, DimOf(arguments));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t parallel,
                         NumberFrom(arguments, "--parallel", 1, 1, kConnectionsMax));
  plan.options.parallel = static_cast<uint32_t>(parallel);
  CAIRN_ASSIGN_OR_RETURN(const uint64_t deadline_ms,
                         NumberFrom(arguments, "--deadline-ms", kDeadlineMs, 1, 60000));
  plan.options.deadline = absl::Milliseconds(static_cast<int64_t>(deadline_ms));
  if (arguments.Has("--rate") && (!absl::SimpleAtod(arguments.Get("--rate"), &plan.options.rate) ||
                                  !(plan.options.rate > 0 && plan.options.rate <= kRateMax))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--rate is '", arguments.Get("--rate"), "'; expected a number over 0, up to ", kRateMax));
  }
  CAIRN_RETURN_IF_ERROR(PlanDaemons(arguments, plan));
  plan.options.sends_hints = arguments.Has("--hints");
  plan.tenant = arguments.Get("--tenant", "default");
  plan.space_name = arguments.Get("--space-name");
  if (!arguments.Has("--space-name")) {
    plan.space_name = absl::StrCat("run-", absl::ToUnixNanos(absl::Now()));
  }
  return plan;
}

absl::StatusOr<replay::Trace> Load(const std::string& path, const Plan& plan) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, replay::kTraceBytesMax));
  absl::StatusOr<replay::Trace> trace =
      replay::ParseTrace(text, plan.block_tokens, plan.requests_max);
  return trace.ok() ? std::move(trace)
                    : absl::StatusOr<replay::Trace>(Annotate(trace.status(), path));
}

// Installs the side object that the space's recipe needs at all daemons: the file, or a profile
// mined from the content.
absl::Status InstallSideObject(const Arguments& arguments, const Content& content,
                               const codecs::Recipe& recipe,
                               const std::vector<ReplayDaemon>& daemons) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration timeout, arguments.timeout());
  std::vector<std::byte> bytes;
  if (arguments.Has("--profile")) {
    CAIRN_ASSIGN_OR_RETURN(const std::string file,
                           ReadFile(arguments.Get("--profile"), proto::kSideObjectBytesMax));
    const auto content_bytes = std::as_bytes(std::span(file.data(), file.size()));
    bytes.assign(content_bytes.begin(), content_bytes.end());
  } else if (recipe.NeedsProfile()) {
    CAIRN_ASSIGN_OR_RETURN(bytes, content.MineProfile(recipe));
  } else if (recipe.NeedsBank()) {
    return absl::InvalidArgumentError("this recipe needs a bank: give one with --profile FILE");
  } else {
    return absl::OkStatus();
  }
  const SideObjectKind kind = proto::KindOf(bytes).value_or(SideObjectKind::kProfile);
  for (const ReplayDaemon& daemon : daemons) {
    CAIRN_RETURN_IF_ERROR(daemon.space->PutSideObject(0, kind, bytes, timeout).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ReplayDaemon>> OpenDaemons(const Arguments& arguments, const Plan& plan,
                                                      const Content& content) {
  ConnectOptions options;
  CAIRN_ASSIGN_OR_RETURN(options, ConnectOptionsOf(arguments, plan.tenant));
  options.connections = static_cast<int>(plan.options.parallel);
  options.region_bytes = kRegionBytes;
  return OpenReplayDaemons(plan.addresses, options, content.Identity(plan.tenant, plan.space_name),
                           arguments.Get("--recipe"));
}

std::string PythonOf(const Arguments& arguments) {
  return arguments.Has(kPythonFlag) ? arguments.Get(kPythonFlag) : DefaultPython();
}

// Set by the signal handler.
volatile std::sig_atomic_t is_interrupted = 0;

// Prints "replay, 34 % hit, 0 wrong bytes [███   ] 120 of 1000 (12 %)". An interrupt stops the
// replay, and the results so far are reported. A second interrupt ends the process.
std::vector<replay::Tally> PlayWithProgress(const Arguments& arguments, replay::Player& player,
                                            uint64_t requests) {
  struct sigaction action {};
  action.sa_handler = [](int) { is_interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  Progress progress(arguments.shows_progress());
  return player.Play([&](const replay::PlayProgress& now) {
    progress.Update(absl::StrCat("replay, ", Percent(now.hit_blocks, now.blocks), " hit, ",
                                 now.wrong_bytes, " wrong bytes"),
                    now.requests, requests);
    return is_interrupted == 0;
  });
}

absl::Status Judge(const replay::Report& report) {
  if (report.tally.wrong_bytes != 0) {
    return absl::DataLossError(absl::StrCat(report.tally.wrong_bytes, " wrong bytes came back"));
  }
  for (const replay::DaemonFigures& daemon : report.daemons) {
    const auto unavailable = daemon.tally.errors.find("match UNAVAILABLE");
    if (unavailable != daemon.tally.errors.end() && unavailable->second == daemon.tally.requests) {
      return absl::UnavailableError(
          report.daemons.size() == 1
              ? "the daemon answered no requests"
              : absl::StrCat("the daemon at ", daemon.address, " answered no requests"));
    }
  }
  return absl::OkStatus();
}

// Returns the report of a replay that has not begun.
replay::Report ReportOf(const std::string& trace_name, const replay::Trace& trace, const Plan& plan,
                        const Content& content, const std::string& recipe) {
  replay::Report report;
  report.trace_name = trace_name;
  report.trace_ms = trace.requests.back().time_ms - trace.requests.front().time_ms;
  report.distinct_blocks = trace.blocks.size();
  report.ceiling = replay::CeilingOf(trace);
  report.recipe = recipe;
  report.tenant = plan.tenant;
  report.space_name = plan.space_name;
  report.block_bytes = content.block_bytes();
  report.options = plan.options;
  return report;
}

// Plays the trace, and fills in what follows from it.
void PlayInto(const Arguments& arguments, const Plan& plan, const replay::Trace& trace,
              const Content& content, const std::vector<ReplayDaemon>& daemons,
              replay::Report& report) {
  std::vector<replay::PlayTarget> targets;
  for (const ReplayDaemon& daemon : daemons) {
    targets.push_back({daemon.client.get(), daemon.space.get()});
  }
  replay::Player player(
      trace, report.ceiling, content, std::move(targets),
      RoutesOf(trace, plan.route, static_cast<uint32_t>(daemons.size()), plan.route_seed),
      plan.options);
  const std::map<std::string, uint64_t> evicted_before = EvictedForIndex(arguments, daemons);
  const absl::Time started = MonotonicNow();
  std::vector<replay::Tally> tallies = PlayWithProgress(arguments, player, trace.requests.size());
  report.elapsed = MonotonicNow() - started;
  report.tally = tallies[0];
  for (size_t i = 0; i < daemons.size(); ++i) {
    if (i > 0) report.tally += tallies[i];
    const ClientCounters counters = daemons[i].client->counters();
    report.get_bytes += counters.get_bytes;
    report.put_bytes += counters.put_bytes;
    replay::TallyWindow sum = tallies[i].Sum();
    report.daemons.push_back({.address = daemons[i].address,
                              .tally = std::move(tallies[i]),
                              .sum = std::move(sum),
                              .get_bytes = counters.get_bytes,
                              .put_bytes = counters.put_bytes});
  }
  report.sum = report.tally.Sum();
  report.evicted_for_index = EvictedForIndex(arguments, daemons);
  for (auto& [tier, blocks] : report.evicted_for_index) {
    const auto before = evicted_before.find(tier);
    blocks -= before == evicted_before.end() ? 0 : std::min(before->second, blocks);
  }
}

absl::Status RunReplay(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(Plan plan, PlanOf(arguments));
  if (arguments.Has("--html")) {  // checked before the replay, which may take hours
    CAIRN_RETURN_IF_ERROR(CheckPython(PythonOf(arguments)));
  }
  const std::string& trace_name = arguments.positional()[0];
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration timeout, arguments.timeout());
  CAIRN_ASSIGN_OR_RETURN(const replay::Trace trace, Load(trace_name, plan));
  const Content content(plan.dim);
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ReplayDaemon> daemons,
                         OpenDaemons(arguments, plan, content));
  const std::string recipe_name = daemons[0].space->recipe();
  codecs::Recipe recipe;
  CAIRN_RETURN_IF_ERROR(FromCodec(codecs::ParsePolicyRecipe(recipe_name, &recipe), recipe_name));
  plan.options.is_lossless = recipe.IsLossless();
  CAIRN_RETURN_IF_ERROR(InstallSideObject(arguments, content, recipe, daemons));

  replay::Report report = ReportOf(trace_name, trace, plan, content, recipe_name);
  PlayInto(arguments, plan, trace, content, daemons, report);
  report.tiers = TiersOf(daemons, timeout);
  if (!arguments.Has("--space-name")) {
    for (const ReplayDaemon& daemon : daemons) {
      // Otherwise the blocks stay until they are evicted.
      std::ignore = daemon.space->Invalidate(timeout);
    }
  }
  arguments.is_json() ? replay::PrintJson(report) : replay::PrintText(report);
  if (arguments.Has("--html")) {
    CAIRN_RETURN_IF_ERROR(RunModule(PythonOf(arguments), "cairn.pages.replay",
                                    {arguments.Get("--html")}, replay::PageInputOf(report)));
  }
  return Judge(report);
}

}  // namespace

const Command kReplay{
    .name = "replay",
    .operands = "TRACE",
    .summary = "Replays a trace of requests: hit rates, latencies, wrong bytes",
    .examples =
        "  cairnctl replay trace.jsonl --block-bytes 16KiB --parallel 4 --html replay.html\n"
        "  cairnctl replay trace.jsonl --daemons 127.0.0.1:50151,127.0.0.1:50251\n",
    .details =
        "TRACE has a request per line, in Mooncake's format: {\"timestamp\": MS,\n"
        "\"input_length\": TOKENS, \"output_length\": TOKENS, \"hash_ids\": [ID, …]}, with an id\n"
        "per block. Each request matches its blocks, gets and checks those that matched, and\n"
        "puts the rest. The content of a block follows from its key: for raw and exact each\n"
        "byte is compared; for other recipes checksums are verified and the error is\n"
        "measured, relative to the error of another block. docs/guides/sizing.md explains\n"
        "the results. --timeout limits connecting only. An interrupt ends the replay and\n"
        "reports the requests played so far.\n"
        "With --daemons, all calls of a request go to one daemon. If the daemons are members of\n"
        "one cluster, hits that a member read from another one count as the tier peer.\n",
    .flags = kReplayFlags,
    .operands_min = 1,
    .operands_max = 1,
    .run = RunReplay,
};

}  // namespace cairn::cli
