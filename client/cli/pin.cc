// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"
#include "client/cli/prefix.h"

namespace cairn::cli {
namespace {

// A lease must last longer than the next round.
constexpr absl::Duration kRound = absl::Seconds(1);
constexpr uint64_t kSecondsMax = uint64_t{1} << 30;
constexpr Flag kPinFlags[] = {
    kSpaceFlag,
    kTokensFlag,
    {"--for", "SECONDS", "end after this time [never]"},
};

struct Held {
  uint32_t blocks = 0, in_memory = 0;
  uint64_t bytes = 0;
  bool is_shortened = false;
  bool operator==(const Held&) const = default;
};

Held HeldOf(const MatchResult& match) {
  Held held{.blocks = match.block_count, .is_shortened = match.is_shortened_by_pins};
  for (const MatchedBlock& block : match.blocks) {
    held.bytes += block.image_bytes;
    held.in_memory += block.tier == Tier::kHost || block.tier == Tier::kGpu ? 1 : 0;
  }
  return held;
}

void Print(const Held& held, size_t wanted, bool is_json) {
  if (is_json) {
    JsonWriter(JsonWriter::Layout::kOneLine)
        .BeginObject()
        .Field("pinned", held.blocks)
        .Field("of", uint64_t{wanted})
        .Field("in_memory", held.in_memory)
        .Field("image_bytes", held.bytes)
        .Field("shortened_by_pins", held.is_shortened)
        .EndObject()
        .Print();
  } else {
    absl::PrintF("%d of %d blocks pinned, %d of them in memory, %s%s\n", held.blocks, wanted,
                 held.in_memory, FormatBytes(held.bytes),
                 held.is_shortened ? "; the limit for pins is reached" : "");
  }
  std::fflush(stdout);
}

absl::Status RunPin(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t seconds,
                         arguments.GetNumber("--for", kSecondsMax, kSecondsMax));
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration timeout, arguments.timeout());
  CAIRN_ASSIGN_OR_RETURN(const OpenedSpace opened, OpenChosen(arguments));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, PrefixOf(arguments, *opened.space));
  const absl::Time end = MonotonicNow() + absl::Seconds(seconds);
  LeaseToken lease{};
  std::optional<Held> shown;
  bool is_away = false;
  while (MonotonicNow() < end) {  // ends also when the user ends the session
    // Reads blocks on a drive into memory. Blocks that are put later are pinned in a later round.
    const absl::Status asked = opened.space->Prefetch({.keys = keys, .timeout = timeout}).status();
    const absl::StatusOr<MatchResult> match =
        asked.ok() ? opened.space->Match({.keys = keys, .timeout = timeout}) : asked;
    if (match.ok()) {
      // The old lease is released after the new one was taken, so the blocks are always leased.
      const LeaseToken before = std::exchange(lease, match->lease);
      if (before != LeaseToken{}) {
        opened.client->Release({&before, 1}, timeout).IgnoreError();
      }
      if (const Held held = HeldOf(*match); held != shown) {
        Print(held, keys.size(), arguments.is_json());
        shown = held;
      }
    } else if (!shown.has_value() || absl::IsInvalidArgument(match.status())) {
      return match.status();
    } else if (!is_away) {
      absl::FPrintF(stderr, "waiting for the daemon: %s\n", match.status().ToString());
    }
    is_away = !match.ok();
    absl::SleepFor(std::min(kRound, end - MonotonicNow()));
  }
  return absl::OkStatus();
}

}  // namespace

const Command kPin{
    .name = "pin",
    .operands = "[KEY …]",
    .summary = "Keeps a prefix, for example a system prompt, in memory while it runs",
    .examples =
        "  cairnctl pin --tokens prompt.txt --space default/qwen3-8b\n"
        "  cairnctl pin 3f9c…e1 77ab…04 --for 3600\n",
    .details =
        "Leases the blocks, and reads those that are on a drive into memory. Blocks of the\n"
        "prefix that are put later are pinned then. Pins continue after a restart of the\n"
        "daemon. Prints a line (with --json, an object) whenever the set of pinned blocks\n"
        "changes. Each tenant, and all tenants together, can pin only a share of a tier.\n",
    .flags = kPinFlags,
    .operands_min = 0,
    .operands_max = kPrefixKeysMax,
    .run = RunPin,
};

}  // namespace cairn::cli
