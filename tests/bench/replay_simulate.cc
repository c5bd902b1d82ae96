// SPDX-License-Identifier: Apache-2.0
// What `cairnctl replay` would hit with a host tier of any size, in seconds and without its memory:
// the daemon's index, arena and eviction run as they are, but no byte of an image is moved.
//
//   cairn_replay_simulate [--hints] TRACE IMAGE_BYTES HOST_BYTES…
//   cairn_replay_simulate conversation_trace.jsonl 64MiB 256GiB 512GiB 1TiB
//
// IMAGE_BYTES is of a block's image as the recipe leaves it. Blocks of 512 tokens, requests one
// after another. An image is a page or a few of the arena here, and the arena has room for as many
// as the host tier would have; pages are never touched. No SSD tier: what that does depends on time
// and on its drives.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

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

  Simulated Play(const Trace& trace, bool sends_hints) {
    Simulated result;
    const std::vector<replay::TurnEnd> ends =
        sends_hints ? replay::TurnEndsOf(trace) : std::vector<replay::TurnEnd>();
    for (size_t i = 0; i < trace.requests.size(); ++i) {
      const TraceRequest& request = trace.requests[i];
      const uint64_t hits = PlayRequest(trace, request, ends.empty() ? nullptr : &ends[i]);
      result.hit_blocks += hits;
      result.hit_tokens += trace.TokensOf(request, hits);
      while (host_.EvictToWatermark()) {  // ends: what it evicts is gone
      }
    }
    return result;
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

  // As the player of `cairnctl replay` does: match, get, put the rest.
  uint64_t PlayRequest(const Trace& trace, const TraceRequest& request,
                       const replay::TurnEnd* end) {
    std::vector<proto::BlockKey> keys;
    proto::BlockKey parent{};
    for (const replay::BlockNumber block : trace.ChainOf(request)) {
      parent = replay::Content::KeyOf({}, parent, trace.blocks[block].hash_id);
      keys.push_back(parent);
    }
    if (keys.empty()) {
      return 0;
    }
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
    for (uint64_t i = hits; i < keys.size() && Put(keys, i); ++i) {
    }
    if (end != nullptr && end->goes_on) {
      index_.SetHints(kSpace, kTenant, keys, 1, limits::kHintSecondsMax).IgnoreError();
    } else if (end != nullptr) {
      const auto own = absl::MakeConstSpan(keys).subspan(end->used_later);
      index_.SetHints(kSpace, kTenant, own, 0, 0).IgnoreError();
    }
    return hits;
  }

  bool Put(const std::vector<proto::BlockKey>& keys, uint64_t at) {
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
                               .side_object = {}}};
    return index_.Publish(std::move(image)).ok();
  }

  const uint64_t unit_bytes_;  // of an image in the arena
  HostTier& host_;
  Tiers tiers_;
  BlockIndex index_;
};

absl::Status Simulate(std::vector<std::string> words) {
  const bool sends_hints = !words.empty() && words[0] == "--hints";
  if (sends_hints) {
    words.erase(words.begin());
  }
  if (words.size() < 3) {
    return absl::InvalidArgumentError(
        "usage: cairn_replay_simulate [--hints] TRACE IMAGE_BYTES HOST_BYTES…");
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadFile(words[0], replay::kTraceBytesMax));
  CAIRN_ASSIGN_OR_RETURN(const Trace trace, replay::ParseTrace(text, replay::kTraceBlockTokens));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t image_bytes, ParseBytes(words[1]));
  if (image_bytes == 0 || image_bytes > codecs::kImageBytesMax * codecs::kImagesPerBlockMax) {
    return absl::InvalidArgumentError("IMAGE_BYTES is 0 or more than a block can have");
  }
  const replay::Ceiling ceiling = replay::CeilingOf(trace);
  const auto print = [&](const std::string& name, uint64_t images, const Simulated& hits) {
    absl::PrintF(
        "%-10s %12d %9.2f %% %9.2f %%\n", name, images,
        100.0 * static_cast<double>(hits.hit_blocks) / static_cast<double>(ceiling.block_count),
        100.0 * static_cast<double>(hits.hit_tokens) / static_cast<double>(ceiling.token_count));
  };
  absl::PrintF("%-10s %12s %11s %11s\n", "HOST TIER", "BLOCKS", "OF BLOCKS", "OF TOKENS");
  for (size_t i = 2; i < words.size(); ++i) {
    CAIRN_ASSIGN_OR_RETURN(const uint64_t host_bytes, ParseBytes(words[i]));
    const uint64_t images = host_bytes / RoundedExtentBytes(image_bytes);
    if (images == 0) {
      return absl::InvalidArgumentError(words[i] + " holds no image");
    }
    CAIRN_ASSIGN_OR_RETURN(const auto simulation, Simulation::Make(host_bytes, image_bytes));
    print(words[i], images, simulation->Play(trace, sends_hints));
  }
  print("unbounded", trace.blocks.size(), {ceiling.hit_blocks, ceiling.hit_tokens});
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
