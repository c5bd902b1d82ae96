// SPDX-License-Identifier: Apache-2.0
// What `cairnctl replay` would hit with a host tier of any size, in seconds and without its memory:
// the daemon's index, arena and eviction run as they are, but no byte of an image is moved.
//
//   cairn_replay_simulate [--hints] TRACE IMAGE_BYTES HOST_BYTES…
//   cairn_replay_simulate conversation_trace.jsonl 64MiB 256GiB 512GiB 1TiB
//   cairn_replay_simulate --members 16 [--populations 4] [--plain-copies] TRACE IMAGE_BYTES
//   HOST_BYTES…
//
// With --members, HOST_BYTES is of all daemons of a cluster together. Requests go to random ones,
// which read from the others what these have, as long as a prefix goes on, and keep copies of it.
// Every member knows what the others have. --populations plays the trace so often at once, of
// different users, who share its first block. --plain-copies: copies are blocks like any other, as
// if each had been used twice.
//
// IMAGE_BYTES is of a block's image as the recipe leaves it. Blocks of 512 tokens, requests one
// after another. An image is a page or a few of the arena here, and the arena has room for as many
// as the host tier would have; pages are never touched. No SSD tier: what that does depends on time
// and on its drives.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "base/units.h"
#include "client/cli/replay/content.h"
#include "client/cli/replay/trace.h"
#include "service/index/block_index.h"
#include "service/limits.h"
#include "service/memory/arena.h"
#include "service/tier/tiers.h"

namespace cairn {
namespace {

using replay::Trace;
using replay::TraceRequest;

constexpr uint64_t kPageBytes = 4_KiB;
constexpr uint64_t kSpace = 1, kSession = 1;
constexpr char kTenant[] = "simulated";
constexpr codecs::Slice kWhole = {0, 1, 0, 1};

struct Simulated {
  uint64_t hit_blocks = 0, hit_tokens = 0;
  uint64_t fetched_blocks = 0;  // of the hits, from other members
};

struct Settings {
  bool sends_hints = false, has_plain_copies = false;
  uint32_t members = 1, populations = 1;
};

class Simulation {
 public:
  // REQUIRES: an image fits.
  static absl::StatusOr<std::unique_ptr<Simulation>> Make(uint64_t host_bytes,
                                                          uint64_t image_bytes) {
    const uint64_t images = host_bytes / RoundedExtentBytes(image_bytes);
    uint64_t unit_bytes = kPageBytes;
    while (images * unit_bytes < limits::kHostBytesMin) {
      unit_bytes *= 2;  // ends: there is an image
    }
    CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<HostTier> host,
                           HostTier::Make({.capacity_bytes = images * unit_bytes,
                                           .staging_bytes = kPageBytes,
                                           .fault_in = false}));
    return std::unique_ptr<Simulation>(new Simulation(std::move(host), host_bytes, unit_bytes));
  }

  // As the player of `cairnctl replay` does: match, get, put the rest. `others` are read from.
  // Returns the blocks that are found, here and elsewhere.
  std::pair<uint64_t, uint64_t> PlayRequest(const std::vector<proto::BlockKey>& keys,
                                            const replay::TurnEnd* end,
                                            const std::vector<std::unique_ptr<Simulation>>& others,
                                            bool has_plain_copies) {
    const uint64_t own = Use(keys);
    uint64_t hits = own;
    // As RemoteBlocks does: the longest prefix, up to three times.
    for (int part = 0; part < 3 && hits < keys.size(); ++part) {
      const uint64_t found = Fetch(keys, hits, others, has_plain_copies);
      if (found == hits) break;
      hits = found;
    }
    bool has_room = true;
    for (uint64_t i = hits; i < keys.size() && has_room; ++i) {
      has_room = Put(keys, i, /*is_fetched=*/false);
    }
    if (end != nullptr && end->goes_on) {
      index_.SetHints(kSpace, kTenant, keys, 1, limits::kHintSecondsMax).IgnoreError();
    } else if (end != nullptr) {
      const auto own_keys = absl::MakeConstSpan(keys).subspan(end->used_later);
      index_.SetHints(kSpace, kTenant, own_keys, 0, 0).IgnoreError();
    }
    while (host_.EvictToWatermark()) {  // ends: what it evicts is gone
    }
    return {hits, hits - own};
  }

 private:
  Simulation(std::unique_ptr<HostTier> host, uint64_t host_bytes, uint64_t unit_bytes)
      : unit_bytes_(unit_bytes),
        host_(*host),
        tiers_(std::move(host)),
        index_({.blocks_max = limits::BlocksMax(host_bytes),
                .images_max = limits::ImagesMax(limits::BlocksMax(host_bytes)),
                .lease_bytes_max = host_.capacity_bytes() / 100 * limits::kPinnedPercentMax},
               tiers_, RealClock::Get()) {}

  // Matches and gets. Returns the number of blocks.
  uint64_t Use(const std::vector<proto::BlockKey>& keys) {
    const auto match = index_.Match({.space_id = kSpace,
                                     .tokens_per_block = replay::kContentTokens,
                                     .keys = keys,
                                     .wanted = {{.group = 0, .slice = kWhole}},
                                     .wants_lease = true,
                                     .session_id = kSession,
                                     .tenant = kTenant});
    CAIRN_CHECK_OK(match);
    const uint64_t hits = match->blocks.size();
    for (uint64_t i = 0; i < hits; ++i) {
      CAIRN_CHECK(!index_.Lookup({kSpace, keys[i]}, 0, kWhole).empty());
    }
    if (match->lease.has_value()) {
      index_.Release(kTenant, {*match->lease});
    }
    return hits;
  }

  uint64_t Peek(const std::vector<proto::BlockKey>& keys) {
    return index_
        .Peek({.space_id = kSpace,
               .tokens_per_block = replay::kContentTokens,
               .keys = keys,
               .wanted = {{.group = 0, .slice = kWhole}},
               .tenant = kTenant})
        .blocks.size();
  }

  // Fetches what one other member has of the blocks from `first` on. Returns where the prefix ends
  // then.
  uint64_t Fetch(const std::vector<proto::BlockKey>& keys, uint64_t first,
                 const std::vector<std::unique_ptr<Simulation>>& others, bool has_plain_copies) {
    const std::vector<proto::BlockKey> rest(keys.begin() + static_cast<ptrdiff_t>(first),
                                            keys.end());
    Simulation* best = nullptr;
    uint64_t most = 0;
    for (const auto& other : others) {
      const uint64_t found = other.get() == this ? 0 : other->Peek(rest);
      if (found > most) {
        best = other.get();
        most = found;
      }
    }
    if (best == nullptr) return first;
    best->Use(rest);
    uint64_t next = first;
    for (; next < first + most; ++next) {
      if (!Put(keys, next, !has_plain_copies)) return next;
      CAIRN_CHECK(!index_.Lookup({kSpace, keys[next]}, 0, kWhole).empty());
    }
    // Own blocks may follow.
    const std::vector<proto::BlockKey> after(keys.begin() + static_cast<ptrdiff_t>(next),
                                             keys.end());
    return after.empty() ? next : next + Use(after);
  }

  bool Put(const std::vector<proto::BlockKey>& keys, uint64_t at, bool is_fetched) {
    const proto::BlockKey parent = at == 0 ? proto::BlockKey{} : keys[at - 1];
    const BlockClaim claim = {.name = {kSpace, keys[at]},
                              .parent = parent,
                              .first_position = at * replay::kContentTokens,
                              .tokens = replay::kContentTokens,
                              .group = 0,
                              .slice = kWhole};
    const absl::StatusOr<PutReservation> expected = index_.ReservePut(claim);
    CAIRN_CHECK_OK(expected);
    absl::StatusOr<Extent> extent = host_.Allocate(unit_bytes_, &claim.name);
    if (!extent.ok()) {
      return false;
    }
    NewImage image = {.claim = claim,
                      .source_bytes = unit_bytes_,
                      .copy = {.recipe = codecs::AllRecipes().front(),
                               .extent = *std::move(extent),
                               .side_object = {}},
                      .is_fetched = is_fetched};
    return index_.Publish(std::move(image)).ok();
  }

  const uint64_t unit_bytes_;  // of an image in the arena
  HostTier& host_;
  Tiers tiers_;
  BlockIndex index_;
};

std::vector<proto::BlockKey> KeysOf(const Trace& trace, const TraceRequest& request,
                                    uint32_t population) {
  std::vector<proto::BlockKey> keys;
  proto::BlockKey parent{};
  for (const replay::BlockNumber block : trace.ChainOf(request)) {
    // Users of all populations have the first block.
    const uint64_t of_population = keys.empty() ? 0 : uint64_t{population} << 40;
    parent = replay::Content::KeyOf({}, parent, trace.blocks[block].hash_id + of_population);
    keys.push_back(parent);
  }
  return keys;
}

absl::StatusOr<Simulated> Play(const Trace& trace, const Settings& settings, uint64_t host_bytes,
                               uint64_t image_bytes) {
  std::vector<std::unique_ptr<Simulation>> members;
  for (uint32_t i = 0; i < settings.members; ++i) {
    CAIRN_ASSIGN_OR_RETURN(members.emplace_back(),
                           Simulation::Make(host_bytes / settings.members, image_bytes));
  }
  const std::vector<replay::TurnEnd> ends =
      settings.sends_hints ? replay::TurnEndsOf(trace) : std::vector<replay::TurnEnd>();
  Simulated result;
  std::mt19937_64 random(1);
  const size_t count = trace.requests.size();
  for (size_t i = 0; i < count; ++i) {
    for (uint32_t population = 0; population < settings.populations; ++population) {
      const size_t at = (i + population * count / settings.populations) % count;
      const std::vector<proto::BlockKey> keys = KeysOf(trace, trace.requests[at], population);
      Simulation& member = *members[members.size() == 1 ? 0 : random() % members.size()];
      if (keys.empty()) continue;
      const auto [hits, fetched] = member.PlayRequest(keys, ends.empty() ? nullptr : &ends[at],
                                                      members, settings.has_plain_copies);
      result.hit_blocks += hits;
      result.fetched_blocks += fetched;
      result.hit_tokens += trace.TokensOf(trace.requests[at], hits);
    }
  }
  return result;
}

absl::Status Simulate(std::vector<std::string> words) {
  Settings settings;
  while (!words.empty() && words[0].starts_with("--")) {
    size_t taken = 1;
    if (words[0] == "--hints") {
      settings.sends_hints = true;
    } else if (words[0] == "--plain-copies") {
      settings.has_plain_copies = true;
    } else {
      uint32_t* const number = words[0] == "--members"       ? &settings.members
                               : words[0] == "--populations" ? &settings.populations
                                                             : nullptr;
      if (number == nullptr || words.size() < 2 || !absl::SimpleAtoi(words[1], number) ||
          *number == 0 || *number > 1000) {
        return absl::InvalidArgumentError(words[0] + ": unknown, or not a number from 1 to 1000");
      }
      taken = 2;
    }
    words.erase(words.begin(), words.begin() + static_cast<ptrdiff_t>(taken));
  }
  if (words.size() < 3) {
    return absl::InvalidArgumentError(
        "usage: cairn_replay_simulate [--hints] [--members N [--populations N] [--plain-copies]] "
        "TRACE IMAGE_BYTES HOST_BYTES…");
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadFile(words[0], replay::kTraceBytesMax));
  CAIRN_ASSIGN_OR_RETURN(const Trace trace, replay::ParseTrace(text, replay::kTraceBlockTokens));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t image_bytes, ParseBytes(words[1]));
  if (image_bytes == 0 || image_bytes > codecs::kImageBytesMax * codecs::kImagesPerBlockMax) {
    return absl::InvalidArgumentError("IMAGE_BYTES is 0 or more than a block can have");
  }
  replay::Ceiling ceiling = replay::CeilingOf(trace);
  for (uint64_t* sum :
       {&ceiling.block_count, &ceiling.token_count, &ceiling.hit_blocks, &ceiling.hit_tokens}) {
    *sum *= settings.populations;
  }
  const auto print = [&](const std::string& name, uint64_t images, const Simulated& hits) {
    const auto percent = [](uint64_t part, uint64_t whole) {
      return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
    };
    absl::PrintF("%-10s %12d %9.2f %% %9.2f %%", name, images,
                 percent(hits.hit_blocks, ceiling.block_count),
                 percent(hits.hit_tokens, ceiling.token_count));
    if (settings.members > 1) {
      absl::PrintF(" %9.2f %%", percent(hits.fetched_blocks, ceiling.block_count));
    }
    absl::PrintF("\n");
  };
  absl::PrintF("%-10s %12s %11s %11s%s\n", "HOST TIER", "BLOCKS", "OF BLOCKS", "OF TOKENS",
               settings.members > 1 ? "     FETCHED" : "");
  for (size_t i = 2; i < words.size(); ++i) {
    CAIRN_ASSIGN_OR_RETURN(const uint64_t host_bytes, ParseBytes(words[i]));
    const uint64_t images = host_bytes / RoundedExtentBytes(image_bytes);
    if (images < settings.members) {
      return absl::InvalidArgumentError(words[i] + " holds no image");
    }
    CAIRN_ASSIGN_OR_RETURN(const Simulated simulated,
                           Play(trace, settings, host_bytes, image_bytes));
    print(words[i], images, simulated);
  }
  print("unbounded", trace.blocks.size() * settings.populations,
        {.hit_blocks = ceiling.hit_blocks, .hit_tokens = ceiling.hit_tokens});
  return absl::OkStatus();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  const absl::Status status = cairn::Simulate({argv + 1, argv + argc});
  if (!status.ok()) {
    absl::FPrintF(stderr, "cairn_replay_simulate: %s\n", status.message());
    return 1;
  }
  return 0;
}
