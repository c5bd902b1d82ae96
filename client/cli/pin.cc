// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"

namespace cairn::cli {
namespace {

// A lease of a round outlives the round after it.
constexpr absl::Duration kRound = absl::Seconds(1);
constexpr uint64_t kSecondsMax = uint64_t{1} << 30;
constexpr size_t kKeysMax = 65536;

constexpr Flag kFlags[] = {
    kSpaceFlag,
    {"--tokens", "FILE", "token ids of the prefix, separated by spaces or commas, or a JSON array"},
    {"--for", "SECONDS", "end after this time [never]"},
};

absl::StatusOr<std::vector<uint32_t>> ReadTokens(const std::string& path) {
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file) {
    return absl::NotFoundError(absl::StrCat("--tokens: ", path, " cannot be read"));
  }
  std::vector<uint32_t> tokens;
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \t\r\n,[]"), absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(word, &tokens.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("--tokens: '", word, "' in ", path,
                                                     " is not a token id (0 to ", UINT32_MAX, ")"));
    }
  }
  return tokens;
}

absl::StatusOr<std::vector<BlockKey>> KeysOf(const Arguments& arguments, const Space& space) {
  if (arguments.Has("--tokens") == !arguments.positional().empty()) {
    return absl::InvalidArgumentError(
        "name the prefix with --tokens or with the keys of its blocks");
  }
  if (!arguments.Has("--tokens")) {
    return ParseKeys(arguments.positional());
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens, ReadTokens(arguments.Get("--tokens")));
  std::vector<BlockKey> keys = space.DeriveChain(tokens);
  if (keys.empty() || keys.size() > kKeysMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tokens: ", tokens.size(), " tokens make ", keys.size(), " blocks of ",
                     space.identity().tokens_per_block, " tokens, expected 1 to ", kKeysMax));
  }
  return keys;
}

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

absl::Status Run(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t seconds,
                         arguments.GetNumber("--for", kSecondsMax, kSecondsMax));
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration timeout, arguments.timeout());
  CAIRN_ASSIGN_OR_RETURN(const OpenedSpace opened, OpenChosen(arguments));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, KeysOf(arguments, *opened.space));
  const absl::Time end = MonotonicNow() + absl::Seconds(seconds);
  LeaseToken lease{};
  std::optional<Held> shown;
  bool is_away = false;
  while (MonotonicNow() < end) {  // or the user ends it, and the session with it
    // What lies on a drive comes into memory; the blocks that are put later are pinned then.
    const absl::Status asked = opened.space->Prefetch({.keys = keys, .timeout = timeout}).status();
    const absl::StatusOr<MatchResult> match =
        asked.ok() ? opened.space->Match({.keys = keys, .timeout = timeout}) : asked;
    if (match.ok()) {
      // In this order: nothing is without a lease in between.
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
    .flags = kFlags,
    .operands_min = 0,
    .operands_max = kKeysMax,
    .run = Run,
};

}  // namespace cairn::cli
