// SPDX-License-Identifier: Apache-2.0
#include "service/upkeep/mining.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/status.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/image/settle.h"
#include "proto/block_key.h"
#include "proto/mine_request.h"
#include "service/limits.h"

namespace cairn {
namespace {

// The time of one slice in a round of upkeep. A slice may exceed it by one strip.
constexpr absl::Duration kSlice = absl::Milliseconds(5);
constexpr absl::Duration kLookEvery = absl::Seconds(1);
// The pause after a failed search, as a multiple of the search's duration.
constexpr int kRestPerGather = 20;
constexpr absl::Duration kGiveUpFor = absl::Seconds(10);
constexpr absl::Duration kTrialRestMax = absl::Minutes(10);  // for one target
constexpr uint64_t kTokensMin = 512;   // per head: the fewest tokens for a profile
constexpr uint64_t kTokensMax = 1024;  // per head: more would be better, but takes longer
constexpr uint64_t kPinnedShare = 8;   // the sample may pin this part of the tier
// A group is mined again when there are this many times the queries of its profile.
constexpr uint64_t kQueryGrowth = 8;
constexpr int kReplacedMax = 2;  // per group and process

// Returns true if the profile was mined with query statistics. A profile without them has the same
// step for all channels of K in a layer. So this also works for profiles of an earlier process.
bool KnowsQueries(const codecs::Profile& profile) {
  for (uint32_t layer = 0; layer < profile.layers(); ++layer) {
    const int16_t first = profile.Channel(0, {layer, 0}, 0).step_log;
    for (uint32_t head = 0; head < profile.heads(); ++head) {
      for (uint32_t channel = 0; channel < profile.Dim(0); ++channel) {
        if (profile.Channel(0, {layer, head}, channel).step_log != first) {
          return true;
        }
      }
    }
  }
  return false;
}

}  // namespace

codecs::Slice Mining::SliceOfHead(const codecs::GroupShape& shape, uint32_t head) {
  return {static_cast<uint16_t>(head / shape.heads), 1, static_cast<uint16_t>(head % shape.heads),
          1};
}

Mining::Mining(Spaces& spaces, BlockIndex& index, const Tiers& tiers,
               const codecs::Backend& backend)
    : spaces_(spaces),
      index_(index),
      tiers_(tiers),
      backend_(backend),
      review_(spaces, index, backend),
      slice_seconds_(LatencyBounds()) {}

void Mining::Rest::Begin(absl::Time now) {
  length = std::clamp(2 * length, kGiveUpFor, kTrialRestMax);
  until = now + length;
}

absl::Time Mining::RunSlice(absl::Time now) {
  if (!work_.has_value()) {
    if (targets_.empty()) {
      if (now < next_look_) {
        return std::min(next_look_, Review(now));
      }
      targets_ = FindTargets(now);
      next_look_ = now + kLookEvery;
      if (targets_.empty()) {
        return std::min(next_look_, Review(now));
      }
    }
    Work& begun = work_.emplace();
    begun.target = std::move(targets_.back());
    begun.recipe = begun.target.space->recipe();
    begun.refusals = tiers_.host().refusals();
    begun.blocks_to_skip = TrialOf(begun.target.space->id(), begun.target.group).blocks_to_skip;
    begun.is_replacing = !begun.target.space->coding().WantsProfile(begun.target.group);
    targets_.pop_back();
  }
  const StepTimer timer(slice_seconds_);
  const absl::Time until = MonotonicNow() + kSlice;
  if (work_->miner == nullptr) {
    if (!Gather(*work_, until)) {
      // Wait for more blocks. A large index must not be searched all the time.
      next_look_ = std::max(next_look_, now + kRestPerGather * work_->gathering);
      Trial& trial = TrialOf(work_->target.space->id(), work_->target.group);
      trial.blocks_to_skip = 0;
      if (work_->is_replacing) {
        trial.replacing_rest.Begin(now);
      }
      work_.reset();
    }
    return now;
  }
  bool is_done = false;
  const std::string_view reason = Proceed(*work_, until, &is_done);
  if (reason.empty() && !is_done) {
    return now;
  }
  if (!reason.empty()) {
    given_up_.Add();
    LogInfo(
        "upkeep", "gave up mining a profile",
        {{"space", work_->target.space->id()}, {"group", work_->target.group}, {"reason", reason}});
    next_look_ = now + kGiveUpFor;
    targets_.clear();
  }
  End(now, is_done);
  return now;
}

void Mining::End(absl::Time now, bool is_done) {
  Trial& trial = TrialOf(work_->target.space->id(), work_->target.group);
  trial.sample_blocks = work_->blocks.size();
  if (is_done) {
    trial.query_tokens = work_->query_tokens;
    trial.replaced += work_->is_replacing ? 1 : 0;
  } else if (work_->is_replacing) {
    trial.replacing_rest.Begin(now);
  } else if (work_->profile != nullptr) {
    TryAnotherSample(now, trial);
  }
  work_.reset();
}

void Mining::TryAnotherSample(absl::Time now, Trial& trial) {
  trial.blocks_to_skip += std::exchange(trial.sample_blocks, 0);
  trial.rest.Begin(now);
}

absl::Time Mining::Review(absl::Time now) {
  std::vector<ProfileReview::Withdrawn> withdrawn;
  const absl::Time next = review_.RunSlice(now, &withdrawn);
  for (const ProfileReview::Withdrawn& one : withdrawn) {
    TryAnotherSample(now, TrialOf(one.space_id, one.group));
    if (turns_ != nullptr) turns_->GaveUp(one.space_id, one.group, one.id);
  }
  return next;
}

std::vector<Mining::Target> Mining::FindTargets(absl::Time now) {
  std::vector<Target> targets;
  const std::vector<SpaceRef> spaces = spaces_.List();
  std::erase_if(trials_, [&](const auto& trial) {  // those of retired spaces
    return std::none_of(spaces.begin(), spaces.end(),
                        [&](const SpaceRef& space) { return space->id() == trial.first.first; });
  });
  for (const SpaceRef& space : spaces) {
    if (!space->recipe().NeedsProfile()) {
      continue;
    }
    const uint64_t there = index_.figures(space->id()).source_bytes;
    for (uint16_t group = 0; group < space->groups().size(); ++group) {
      if (IsTarget(space, group, there, now)) targets.push_back({space.Share(), group});
    }
  }
  return targets;
}

bool Mining::HasEnough(const SpaceEntry& space, uint16_t group, uint64_t source_bytes) {
  const codecs::GroupShape& shape = space.groups()[group];
  const uint64_t channels =
      uint64_t{shape.layers} * shape.heads * (uint64_t{shape.tile.k_dim} + shape.tile.v_dim);
  uint64_t token_bytes = 0;
  return channels <= limits::kMinedChannelsMax &&
         codecs::SourceBytes(shape.tile, codecs::WholeOf(shape), 1, &token_bytes) ==
             codecs::Error::kOk &&
         source_bytes / token_bytes >= kTokensMin &&
         codecs::Validate(proto::MineRequestOf(space.identity(), group, space.recipe())) ==
             codecs::Error::kOk;
}

bool Mining::IsTarget(const SpaceRef& space, uint16_t group, uint64_t source_bytes,
                      absl::Time now) {
  const bool can_mine = HasEnough(*space, group, source_bytes);
  const bool wants = space->coding().WantsProfile(group);
  const bool is_ours = turns_ == nullptr || turns_->IsOurs(space, group, {wants, can_mine}, now);
  return can_mine && is_ours &&
         (wants ? TrialOf(space->id(), group).rest.until <= now
                : WantsReplacing(*space, group, now));
}

bool Mining::WantsReplacing(const SpaceEntry& space, uint16_t group, absl::Time now) {
  const Trial& trial = TrialOf(space.id(), group);
  const uint64_t known = space.coding().query_tokens(group);
  if (known < std::max(kTokensMin, kQueryGrowth * trial.query_tokens) ||
      trial.replaced >= kReplacedMax || now < trial.replacing_rest.until) {
    return false;
  }
  const SideObjectRef mined = space.coding().MinedProfile(group);
  return mined.get() != nullptr && (trial.query_tokens > 0 || !KnowsQueries(*mined.profile()));
}

std::string_view Mining::ReasonToEnd(const Work& work) const {
  const SpaceCoding& coding = work.target.space->coding();
  const bool has_use = work.is_replacing ? coding.MinedProfile(work.target.group).get() != nullptr
                                         : coding.WantsProfile(work.target.group);
  if (!has_use || work.target.space->recipe() != work.recipe) {
    return "the space has no use for it any more";
  }
  if (tiers_.host().refusals() != work.refusals) {
    return "the tier is full";
  }
  const auto is_gone = [this](const SampleBlock& block) {
    return !index_.ArePublished(block.pins);
  };
  if (std::any_of(work.blocks.begin(), work.blocks.end(), is_gone) || is_gone(*work.judge)) {
    return "a block of the sample is gone";
  }
  return {};
}

// --- The sample ----------------------------------------------------------------------------------

bool Mining::Gather(Work& work, absl::Time until) {
  const uint64_t space_id = work.target.space->id();
  const absl::Time started = MonotonicNow();
  bool has_more = true;
  CopyPins pins;
  do {
    has_more = index_.Walk(space_id, &work.cursor, &pins);
    // The images of a block are adjacent.
    for (size_t first = 0, end = 0; first < pins.size(); first = end) {
      const proto::BlockKey key = pins[first].facts().key;
      CopyPins of_block;
      for (; end < pins.size() && pins[end].facts().key == key; ++end) {
        if (pins[end].facts().group == work.target.group && pins[end].copy().recipe.IsLossless()) {
          of_block.push_back(std::move(pins[end]));
        }
      }
      if (!of_block.empty()) {
        Take(work, std::move(of_block));
      }
    }
  } while (has_more && !work.judge.has_value() && MonotonicNow() < until);
  work.gathering += MonotonicNow() - started;
  if (has_more && !work.judge.has_value()) {
    return true;
  }
  if (!work.judge.has_value() && !work.blocks.empty()) {
    work.judge = std::move(work.blocks.back());
    work.blocks.pop_back();
    work.tokens -= work.judge->tokens;
  }
  if (work.tokens < kTokensMin) {
    return false;
  }
  codecs::MineRequest request =
      proto::MineRequestOf(work.target.space->identity(), work.target.group, work.recipe);
  // Use the statistics only if every head has some. Otherwise heads without queries would seem
  // unused.
  QuerySquares::Snapshot squares = work.target.space->coding().query_squares(work.target.group);
  if (squares.tokens > 0) {
    request.query_squares = std::move(squares.means);
    work.query_tokens = squares.tokens;
  }
  work.miner = std::make_unique<codecs::ProfileMiner>(std::move(request));
  return true;
}

void Mining::Take(Work& work, CopyPins pins) {
  // A block that moved to another slot may be seen twice.
  const bool is_known = std::any_of(work.blocks.begin(), work.blocks.end(), [&](const auto& block) {
    return block.pins[0].facts().key == pins[0].facts().key;
  });
  uint64_t bytes = 0;
  for (const CopyPin& pin : pins) {
    bytes += pin.copy().image_bytes;
  }
  if (is_known || work.judge.has_value() ||
      work.pinned_bytes + bytes > tiers_.host().capacity_bytes() / kPinnedShare) {
    return;
  }
  SampleBlock block;
  block.first_position = pins[0].facts().first_position;
  block.tokens = pins[0].facts().tokens;
  for (const CopyPin& pin : pins) {
    // Damaged images are reported by the gets and checks that find them.
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
  if (work.blocks_to_skip > 0) {
    --work.blocks_to_skip;
    return;
  }
  work.pinned_bytes += bytes;
  block.pins = std::move(pins);
  if (work.tokens >= kTokensMax) {
    work.judge = std::move(block);
    return;
  }
  work.tokens += block.tokens;
  work.blocks.push_back(std::move(block));
}

const codecs::ImageView* Mining::ViewOf(const SampleBlock& block, const codecs::Slice& slice) {
  const auto found = std::find_if(
      block.views.begin(), block.views.end(),
      [&](const codecs::ImageView& view) { return view.spec().slice.Contains(slice); });
  return found == block.views.end() ? nullptr : &*found;
}

void Mining::Report(MetricSink& sink) const {
  sink.AddCounter("cairn_upkeep_mined_total", "Profiles mined from blocks of a space.", {},
                  mined_.Value());
  sink.AddCounter("cairn_upkeep_mined_again_total",
                  "Profiles that replaced a mined one with fewer query statistics.", {},
                  replaced_.Value());
  sink.AddCounter("cairn_upkeep_mining_given_up_total",
                  "Profiles begun but not finished: a block of the sample was deleted or damaged, "
                  "the tier was full, a block became larger than with exact, the profile could not "
                  "be stored, or it was no longer needed.",
                  {}, given_up_.Value());
  review_.Report(sink);
  const MetricLabel mine[] = {{"step", "mine"}};
  sink.AddHistogram("cairn_upkeep_step_seconds",
                    "Time of each step of upkeep; of mining, of each slice.", mine,
                    slice_seconds_.Snapshot());
}

// --- Profiles ------------------------------------------------------------------------------------
// Makes a profile from a sample, tests it and installs it.

std::string_view Mining::Proceed(Work& work, absl::Time until, bool* is_done) {
  if (const std::string_view reason = ReasonToEnd(work); !reason.empty()) {
    return reason;
  }
  const codecs::GroupShape& shape = work.target.space->groups()[work.target.group];
  const uint32_t heads = uint32_t{shape.layers} * shape.heads;
  do {
    if (work.miner->NeedsPass()) {
      if (!Show(work).ok()) {
        return "a tile of the sample is damaged";
      }
    } else if (work.head < heads) {
      if (!Judge(work).ok()) {
        return "a tile of the sample is damaged";
      }
    } else if (work.profile_bytes > work.exact_bytes) {
      return "a block that it is not made of is larger with it than exact";
    } else {
      *is_done = Install(work).ok();
      return *is_done ? "" : "the profile cannot be kept";
    }
  } while (MonotonicNow() < until);
  return {};
}

absl::Status Mining::DecodeHead(Work& work, const SampleBlock& block, const codecs::Slice& slice) {
  const codecs::GroupShape& shape = work.target.space->groups()[work.target.group];
  uint64_t bytes = 0;
  CAIRN_CHECK(codecs::SourceBytes(shape.tile, slice, block.tokens, &bytes) == codecs::Error::kOk);
  work.source.resize(bytes);
  const codecs::ImageView& view = *ViewOf(block, slice);
  codecs::Error error = codecs::VerifyTiles(view, slice);
  if (error == codecs::Error::kOk) {
    error = codecs::Decode(backend_, view, slice, work.source);
  }
  return error == codecs::Error::kOk ? absl::OkStatus()
                                     : absl::DataLossError(ToAbsl(codecs::Name(error)));
}

absl::Status Mining::Show(Work& work) {
  const SampleBlock& block = work.blocks[work.block];
  const codecs::GroupShape& shape = work.target.space->groups()[work.target.group];
  const codecs::Slice slice = SliceOfHead(shape, work.head);
  if (work.strip == 0) {
    CAIRN_RETURN_IF_ERROR(DecodeHead(work, block, slice));
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

absl::Status Mining::Judge(Work& work) {
  if (work.profile == nullptr) {
    std::vector<std::byte> bytes;
    CAIRN_CHECK(work.miner->Write(&bytes) == codecs::Error::kOk);
    CAIRN_ASSIGN_OR_RETURN(work.profile, SideObject::Parse(proto::SideObjectKind::kProfile, bytes));
  }
  const codecs::GroupShape& shape = work.target.space->groups()[work.target.group];
  const codecs::Slice slice = SliceOfHead(shape, work.head);
  CAIRN_RETURN_IF_ERROR(DecodeHead(work, *work.judge, slice));
  codecs::ImageSpec spec = ViewOf(*work.judge, slice)->spec();
  spec.slice = slice;
  const codecs::DecodeInputs inputs = work.profile->content().inputs();
  for (uint64_t* sum : {&work.exact_bytes, &work.profile_bytes}) {
    const codecs::Error error =
        sum == &work.exact_bytes
            ? codecs::SetRecipe("exact", {}, {}, &spec)
            : codecs::SetRecipe(work.recipe, inputs, work.profile->id(), &spec);
    uint64_t bytes_max = 0;
    CAIRN_CHECK(error == codecs::Error::kOk &&
                codecs::MaxImageBytes(spec, &bytes_max) == codecs::Error::kOk);
    work.image.resize(bytes_max);
    size_t bytes = 0;
    CAIRN_CHECK(codecs::Encode(backend_, spec, work.source, work.image, &bytes,
                               codecs::EncodeWith(inputs)) == codecs::Error::kOk);
    *sum += bytes;
  }
  ++work.head;
  return absl::OkStatus();
}

absl::Status Mining::Install(const Work& work) {
  const std::span<const std::byte> bytes = work.profile->bytes();
  SpaceEntry& space = *work.target.space;
  CAIRN_ASSIGN_OR_RETURN(const SpaceCoding::Installed installed,
                         space.coding().Install(work.target.group, proto::SideObjectKind::kProfile,
                                                bytes, SideObjectOrigin::kMined));
  mined_.Add();
  replaced_.Add(work.is_replacing ? 1 : 0);
  if (turns_ != nullptr) turns_->Mined(space.id(), static_cast<uint16_t>(work.target.group));
  LogInfo("upkeep", work.is_replacing ? "mined a profile again" : "mined a profile",
          {{"space", space.id()},
           {"group", work.target.group},
           {"tokens", work.tokens},
           {"query_tokens", work.query_tokens},
           {"bytes", bytes.size()},
           {"id", proto::Hex(std::as_bytes(std::span(installed.id)).first(4))}});
  return absl::OkStatus();
}

}  // namespace cairn
