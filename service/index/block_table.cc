// SPDX-License-Identifier: Apache-2.0
// Blocks.
#include "service/index/block_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "codecs/types/shape.h"
#include "service/index/cover.h"
#include "service/limits.h"

namespace cairn {
namespace {

// A match and the get after it, or two slices of one put, are one use. Uses are known to the
// second.
constexpr absl::Duration kReuseMin = absl::Seconds(2);

}  // namespace

static_assert(sizeof(AwakeBlock) + 4 * (sizeof(Image) + 2 * sizeof(Copy)) <=
                  limits::kIndexBytesAwake,
              "a block with four images");

BlockTable::BlockTable(std::span<CopyTier* const> tiers, uint64_t blocks_max, uint64_t images_max,
                       const Clock& clock, EventLog& events, uint64_t awake_bytes_max)
    : events_(events),
      clock_(clock),
      blocks_max_(blocks_max),
      images_max_(images_max),
      awake_bytes_max_(awake_bytes_max) {
  CAIRN_CHECK(blocks_max > 0 && images_max > 0 &&
              codecs::AllRecipes().size() + std::size(kRecipeFamilies) <=
                  figures_by_recipe_.size());
  for (CopyTier* tier : tiers) {
    InTier& in = At(tier->id());
    in.exists = true;
    in.traits = tier->traits();
    if (tier->id() != TierId::kHost && in.traits.may_hold_last) {
      in.lease_bytes_max = tier->capacity_bytes() / 100 * limits::kPinnedPercentMax;
    }
    if (in.traits.is_lasting) {
      CAIRN_CHECK(!lasting_.has_value(), "one lasting tier");
      lasting_ = tier->id();
      lasting_tier_ = tier;
      lasting_image_bytes_max_ = tier->image_bytes_max();
    }
    if (in.traits.is_leaf_first) {
      const uint64_t most = std::max(limits::BlocksMax(tier->capacity_bytes()),
                                     awake_bytes_max / limits::kIndexBytesAwake);
      for (Order& order : in.orders) {
        order.recency = std::make_unique<Recency>(IndexOf(tier->id()), std::min(blocks_max, most));
      }
    }
  }
}

absl::StatusOr<std::optional<uint64_t>> BlockTable::Check(const BlockClaim& claim) const {
  const Block* block = FindKnown(claim.name);
  if (block == nullptr || !block->has_place()) {
    CAIRN_RETURN_IF_ERROR(CheckPlaceInChain(claim));
    return std::nullopt;
  }
  if (block->first_position != claim.first_position) {
    return absl::InvalidArgumentError(absl::StrCat("first_position is ", claim.first_position,
                                                   ": the block is stored with ",
                                                   block->first_position));
  }
  const Block* parent = ParentOf(*block);
  if (claim.parent != proto::BlockKey{} && parent != nullptr && claim.parent != parent->name.key) {
    return absl::InvalidArgumentError("parent differs from the stored block's");
  }
  ImageRefs scratch;
  const absl::Span<const ImageRef> refs = RefsOf(*block, &scratch);
  ImagePlaces places;
  if (FindCover(refs, claim.group, claim.slice, &places)) {
    uint64_t bytes = 0;
    for (const uint8_t place : places) {
      bytes += BriefOf(*block, place).image_bytes;
    }
    return bytes;
  }
  if (refs.size() >= codecs::kImagesPerBlockMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the block has its ", codecs::kImagesPerBlockMax, " images"));
  }
  return std::nullopt;
}

absl::Status BlockTable::MakeRoom(Block* block, absl::Time now) {
  Visits settling, visits;
  PropagateOrphans(settling);  // what is left of it is for the next
  MakeRoomForAwake(block->name);
  if (is_full_of_awake()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("index: blocks in memory or in use take all ", awake_bytes_max_,
                     " bytes of their limit, and all are pinned or ancestors of the new block"));
  }
  for (;;) {  // ends: each turn evicts a block
    const bool is_of_images = figures_.image_count >= images_max_;
    if (!is_of_images && (block->is_linked || figures_.block_count < blocks_max_)) {
      return absl::OkStatus();
    }
    if (block->is_linked) {
      Touch(block, now);  // the last to go
    }
    if (!EvictAnywhere(is_of_images ? EvictionReason::kImages : EvictionReason::kBlocks,
                       block->name, visits)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "index: ", is_of_images ? images_max_ : blocks_max_, is_of_images ? " images" : " blocks",
          " are stored, and all are pinned or ancestors of the new block"));
    }
  }
}

void BlockTable::MakeRoomForAwake(const BlockName& newcomer) {
  Visits visits;
  while (awake_bytes() > awake_bytes_max_ / 100 * limits::kAwakePercentBusy) {
    bool has_evicted = false;
    // With copies on a device nothing is lost.
    for (const TierId tier : {TierId::kGpu, TierId::kHost}) {
      Eviction eviction = {
          .tier = tier, .reason = EvictionReason::kIndex, .newcomer = &newcomer, .since = uses_};
      Block* block = visits.Take() ? OldestUnheld(eviction, visits) : nullptr;
      if (block != nullptr) {
        EvictFrom(block, tier, EvictionReason::kIndex);
        has_evicted = true;
        break;
      }
    }
    if (!has_evicted) {
      return;
    }
    Rest();
  }
}

absl::StatusOr<Image*> BlockTable::Add(NewImage image, absl::Time now) {
  if (At(image.copy.extent.tier()).is_out) {
    return absl::UnavailableError(
        absl::StrCat(ToAbsl(Name(image.copy.extent.tier())), " tier: its device is out"));
  }
  Block* block = ReservePut(image.claim);
  if (const absl::Status status = MakeRoom(block, now); !status.ok()) {
    EndReservation(block);
    return status;
  }
  if (!block->is_linked) {
    LinkBlock(block, now);
  }
  Image* linked = LinkImage(block, {.space_id = image.claim.name.space_id,
                                    .key = image.claim.name.key,
                                    .first_position = image.claim.first_position,
                                    .tokens = image.claim.tokens,
                                    .group = image.claim.group,
                                    .slice = image.claim.slice,
                                    .expires_unix_s = image.expires_unix_s,
                                    .source_bytes = image.source_bytes});
  if (image.expires_unix_s != 0) {
    expiring_count_ += block->expires_unix_s == 0 ? 1 : 0;
    block->expires_unix_s = block->expires_unix_s == 0
                                ? image.expires_unix_s
                                : std::min(block->expires_unix_s, image.expires_unix_s);
  }
  LinkCopy(linked, std::move(image.copy));
  if (image.is_encode_pending) {
    SetPending(linked);
  }
  EndReservation(block);
  return linked;
}

void BlockTable::SetPending(Image* image) {
  if (image->is_encode_pending) {
    return;
  }
  for (ImageQueue* queue : {&uncopied_, &clean_}) {
    queue->RemoveIfThere(image);
  }
  pending_.PushBack(image);
  RefreshQueues(image);
}

void BlockTable::ClearPending(Image* image) {
  pending_.RemoveIfThere(image);
  RefreshQueues(image);
}

void BlockTable::Touch(Block* block, absl::Time now) {
  const absl::Duration unused = now - absl::FromUnixSeconds(block->used_at_s);
  if (block->is_linked && unused >= kReuseMin) {
    reuse_seconds_.Observe(unused);
  }
  block->last_use = ++uses_;
  block->used_at_s =
      static_cast<uint32_t>(std::clamp<int64_t>(absl::ToUnixSeconds(now), 0, UINT32_MAX));
  block->is_used = true;
  if (block->has_let_go) {
    WantAgain(block);
  }
}

Block* BlockTable::AtSlot(uint32_t slot) {
  Block* block = blocks_.At(slot);
  return block->is_linked ? block : nullptr;
}

const Block* BlockTable::AtSlot(uint32_t slot) const {
  const Block* block = blocks_.At(slot);
  return block->is_linked ? block : nullptr;
}

IndexFigures BlockTable::figures(uint64_t space_id) const {
  const auto found = figures_by_space_.find(space_id);
  return found == figures_by_space_.end() ? IndexFigures{} : found->second;
}

}  // namespace cairn
