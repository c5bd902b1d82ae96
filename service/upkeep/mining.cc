// SPDX-License-Identifier: Apache-2.0
#include "service/upkeep/mining.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "codecs/image/decode.h"
#include "proto/block_key.h"
#include "service/limits.h"
#include "service/step_timer.h"

namespace cairn {
namespace {

// Of a round of upkeep, besides a strip that it ends with.
constexpr absl::Duration kSlice = absl::Milliseconds(5);
constexpr absl::Duration kLookEvery = absl::Seconds(1);
constexpr int kRestPerGather = 20;  // times what looking for blocks took in vain
constexpr absl::Duration kGiveUpFor = absl::Seconds(10);
constexpr uint64_t kTokensMin = 512;   // of every head: what a profile can be made of
constexpr uint64_t kTokensMax = 1024;  // more is better, but takes longer
constexpr uint64_t kPinnedShare = 8;   // one part in so many of the tier
// What profiles have besides the rate of the space's recipe, so that it can be changed.
constexpr uint16_t kUsualRates[] = {23, 30, 43};

// Turns of each pair; empty where K turns in no way that the space's identity says.
std::vector<uint64_t> TurnsOfGroup(const proto::GroupGeometry& group) {
  std::vector<uint64_t> turns;
  // Of a latent it is not said which channels turn.
  if (group.kind != proto::GroupGeometry::Kind::kKv ||
      group.rope.kind == proto::Rope::Kind::kNone) {
    return turns;
  }
  for (uint32_t pair = 0; pair < group.rope.rotary_dims / 2; ++pair) {
    turns.push_back(
        codecs::TurnsOf(group.rope.inverse_frequencies.empty()
                            ? std::pow(group.rope.base, -2.0 * pair / group.rope.rotary_dims)
                            : group.rope.inverse_frequencies[pair]));
  }
  return turns;
}

// Without query_squares.
codecs::MineRequest RequestOf(const SpaceEntry& space, uint16_t group,
                              const codecs::Recipe& recipe) {
  codecs::MineRequest request;
  request.group = space.groups()[group];
  request.turns = TurnsOfGroup(space.identity().groups[group]);
  request.rates.assign(std::begin(kUsualRates), std::end(kUsualRates));
  request.rates.push_back(recipe.bits);
  std::sort(request.rates.begin(), request.rates.end());
  request.rates.erase(std::unique(request.rates.begin(), request.rates.end()), request.rates.end());
  return request;
}

codecs::Slice SliceOfHead(const codecs::GroupShape& shape, uint32_t head) {
  return {static_cast<uint16_t>(head / shape.heads), 1, static_cast<uint16_t>(head % shape.heads),
          1};
}

}  // namespace

Mining::Mining(Spaces& spaces, BlockIndex& index, const HostTier& host,
               const codecs::Backend& backend)
    : spaces_(spaces),
      index_(index),
      host_(host),
      backend_(backend),
      slice_seconds_(LatencyBounds()) {}

absl::Time Mining::RunSlice(absl::Time now) {
  if (!work_.has_value()) {
    if (targets_.empty()) {
      if (now < next_look_) {
        return next_look_;
      }
      targets_ = FindTargets();
      next_look_ = now + kLookEvery;
      if (targets_.empty()) {
        return next_look_;
      }
    }
    Work& begun = work_.emplace();
    begun.target = targets_.back();
    begun.recipe = begun.target.space->recipe();
    begun.refusals = host_.refusals();
    targets_.pop_back();
  }
  const StepTimer timer(slice_seconds_);
  const absl::Time until = MonotonicNow() + kSlice;
  if (work_->miner == nullptr) {
    if (!Gather(*work_, until)) {
      // Until there are more; a large index is not gone through all the time.
      next_look_ = std::max(next_look_, now + kRestPerGather * work_->gathering);
      work_.reset();
    }
    return now;
  }
  std::string_view reason = ReasonToEnd(*work_);
  while (reason.empty() && work_->miner->NeedsPass() && MonotonicNow() < until) {
    reason = Show(*work_).ok() ? "" : "a tile of the sample is damaged";
  }
  if (reason.empty() && work_->miner->NeedsPass()) {
    return now;
  }
  if (reason.empty() && !Install(*work_).ok()) {
    reason = "the profile cannot be kept";
  }
  if (!reason.empty()) {
    given_up_.Add();
    LogInfo(
        "upkeep", "gave up mining a profile",
        {{"space", work_->target.space->id()}, {"group", work_->target.group}, {"reason", reason}});
    next_look_ = now + kGiveUpFor;
    targets_.clear();
  }
  work_.reset();
  return now;
}

std::vector<Mining::Target> Mining::FindTargets() const {
  std::vector<Target> targets;
  for (const SpaceEntry* space : spaces_.List()) {
    if (!space->recipe().NeedsProfile()) {
      continue;
    }
    const uint64_t there = index_.figures(space->id()).source_bytes;
    for (uint16_t group = 0; group < space->groups().size(); ++group) {
      const codecs::GroupShape& shape = space->groups()[group];
      const uint64_t channels =
          uint64_t{shape.layers} * shape.heads * (uint64_t{shape.tile.k_dim} + shape.tile.v_dim);
      uint64_t token_bytes = 0;
      if (channels <= limits::kMinedChannelsMax &&
          codecs::SourceBytes(shape.tile, codecs::WholeOf(shape), 1, &token_bytes) ==
              codecs::Error::kOk &&
          there / token_bytes >= kTokensMin &&
          codecs::Validate(RequestOf(*space, group, space->recipe())) == codecs::Error::kOk &&
          spaces_.WantsProfile(*space, group)) {
        targets.push_back({space, group});
      }
    }
  }
  return targets;
}

std::string_view Mining::ReasonToEnd(const Work& work) const {
  if (!spaces_.WantsProfile(*work.target.space, work.target.group) ||
      work.target.space->recipe() != work.recipe) {
    return "the space has no use for it any more";
  }
  if (host_.refusals() != work.refusals) {
    return "the tier is full";
  }
  for (const SampleBlock& block : work.blocks) {
    if (!index_.ArePublished(block.pins)) {
      return "a block of the sample is gone";
    }
  }
  return {};
}

// --- The sample ----------------------------------------------------------------------------------

bool Mining::Gather(Work& work, absl::Time until) {
  const uint64_t space_id = work.target.space->id();
  const absl::Time started = MonotonicNow();
  bool has_more = true;
  BlockIndex::Pins pins;
  do {
    has_more = index_.Walk(space_id, &work.cursor, &pins);
    // Images of a block come one after another.
    for (size_t first = 0, end = 0; first < pins.size(); first = end) {
      const proto::BlockKey key = pins[first].facts().key;
      BlockIndex::Pins of_block;
      for (; end < pins.size() && pins[end].facts().key == key; ++end) {
        if (pins[end].facts().group == work.target.group && pins[end].facts().recipe.IsLossless()) {
          of_block.push_back(std::move(pins[end]));
        }
      }
      if (!of_block.empty()) {
        Take(work, std::move(of_block));
      }
    }
  } while (has_more && work.tokens < kTokensMax && MonotonicNow() < until);
  work.gathering += MonotonicNow() - started;
  if (has_more && work.tokens < kTokensMax) {
    return true;
  }
  if (work.tokens < kTokensMin) {
    return false;
  }
  codecs::MineRequest request = RequestOf(*work.target.space, work.target.group, work.recipe);
  // Of some heads alone they would say that the others' queries are nothing.
  QuerySquares::Snapshot squares = spaces_.query_squares().Get(space_id, work.target.group);
  if (squares.tokens > 0) {
    request.query_squares = std::move(squares.means);
  }
  work.miner = std::make_unique<codecs::ProfileMiner>(std::move(request));
  return true;
}

void Mining::Take(Work& work, BlockIndex::Pins pins) {
  // A block that moved to another slot may be seen twice.
  const bool is_known = std::any_of(work.blocks.begin(), work.blocks.end(), [&](const auto& block) {
    return block.pins[0].facts().key == pins[0].facts().key;
  });
  uint64_t bytes = 0;
  for (const Pin& pin : pins) {
    bytes += pin.facts().image_bytes;
  }
  if (is_known || work.tokens >= kTokensMax ||
      work.pinned_bytes + bytes > host_.capacity_bytes() / kPinnedShare) {
    return;
  }
  SampleBlock block;
  block.first_position = pins[0].facts().first_position;
  block.tokens = pins[0].facts().tokens;
  for (const Pin& pin : pins) {
    // Memory that went bad is for those to report who serve it or check it.
    if (codecs::ParseImage(pin.bytes(), &block.views.emplace_back()) != codecs::Error::kOk) {
      return;
    }
  }
  const codecs::GroupShape& shape = work.target.space->groups()[work.target.group];
  for (uint32_t head = 0; head < uint32_t{shape.layers} * shape.heads; ++head) {
    if (ViewOf(block, SliceOfHead(shape, head)) == nullptr) {
      return;
    }
  }
  work.tokens += block.tokens;
  work.pinned_bytes += bytes;
  block.pins = std::move(pins);
  work.blocks.push_back(std::move(block));
}

const codecs::ImageView* Mining::ViewOf(const SampleBlock& block, const codecs::Slice& slice) {
  const auto found = std::find_if(
      block.views.begin(), block.views.end(),
      [&](const codecs::ImageView& view) { return view.spec().slice.Contains(slice); });
  return found == block.views.end() ? nullptr : &*found;
}

// --- The profile ---------------------------------------------------------------------------------

absl::Status Mining::Show(Work& work) {
  const SampleBlock& block = work.blocks[work.block];
  const codecs::GroupShape& shape = work.target.space->groups()[work.target.group];
  const codecs::Slice slice = SliceOfHead(shape, work.head);
  if (work.strip == 0) {
    uint64_t bytes = 0;
    CAIRN_CHECK(codecs::SourceBytes(shape.tile, slice, block.tokens, &bytes) == codecs::Error::kOk);
    work.source.resize(bytes);
    const codecs::ImageView& view = *ViewOf(block, slice);
    codecs::Error error = codecs::VerifyTiles(view, slice);
    if (error == codecs::Error::kOk) {
      error = codecs::Decode(backend_, view, slice, work.source);
    }
    if (error != codecs::Error::kOk) {
      return absl::DataLossError(ToAbsl(codecs::Name(error)));
    }
  }
  const uint32_t first = work.strip * codecs::kStripTokens;
  const uint32_t tokens = std::min(codecs::kStripTokens, block.tokens - first);
  std::span<const std::byte> tiles = work.source;
  for (uint32_t plane = 0; plane < codecs::PlaneCount(shape.tile.kind); ++plane) {
    const uint64_t row_bytes =
        codecs::TileBytes(shape.tile, codecs::PlaneAt(shape.tile.kind, plane), 1);
    work.miner->Add(
        {.at = {slice.layer_first, slice.head_first},
         .plane = plane,
         .part = static_cast<uint32_t>(work.block * codecs::kSampleParts / work.blocks.size()),
         .first_position = block.first_position + first,
         .tokens = tokens,
         .source = tiles.subspan(first * row_bytes, tokens * row_bytes)});
    tiles = tiles.subspan(block.tokens * row_bytes);
  }
  if (first + tokens < block.tokens) {
    ++work.strip;
    return absl::OkStatus();
  }
  work.strip = 0;
  if (++work.head == uint32_t{shape.layers} * shape.heads) {
    work.head = 0;
    if (++work.block == work.blocks.size()) {
      work.block = 0;
      work.miner->EndPass();
    }
  }
  return absl::OkStatus();
}

absl::Status Mining::Install(const Work& work) {
  std::vector<std::byte> bytes;
  CAIRN_CHECK(work.miner->Write(&bytes) == codecs::Error::kOk);
  const SpaceEntry& space = *work.target.space;
  CAIRN_ASSIGN_OR_RETURN(const Spaces::Installed installed,
                         spaces_.Install(space, work.target.group, proto::SideObjectKind::kProfile,
                                         bytes, SideObjectOrigin::kMined));
  mined_.Add();
  LogInfo("upkeep", "mined a profile",
          {{"space", space.id()},
           {"group", work.target.group},
           {"tokens", work.tokens},
           {"bytes", bytes.size()},
           {"id", proto::Hex(std::as_bytes(std::span(installed.id)).first(4))}});
  return absl::OkStatus();
}

void Mining::Report(MetricSink& sink) const {
  sink.AddCounter("cairn_upkeep_mined_total", "Profiles made of blocks that a space held.", {},
                  mined_.Value());
  sink.AddCounter("cairn_upkeep_mining_given_up_total",
                  "Profiles begun and not finished: a block of the sample went or was damaged, the "
                  "tier was full, the profile could not be kept, or nobody had a use for it.",
                  {}, given_up_.Value());
  const MetricLabel mine[] = {{"step", "mine"}};
  sink.AddHistogram("cairn_upkeep_step_seconds",
                    "Time of each step of upkeep; of mining, of each slice.", mine,
                    slice_seconds_.Snapshot());
}

}  // namespace cairn
