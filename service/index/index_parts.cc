// SPDX-License-Identifier: Apache-2.0
#include "service/index/index_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "service/index/cover.h"

namespace cairn {
namespace {

CopyTier* LastingOf(std::span<CopyTier* const> tiers) {
  CopyTier* lasting = nullptr;
  for (CopyTier* tier : tiers) {
    if (tier->traits().is_lasting) {
      CAIRN_CHECK(lasting == nullptr, "one lasting tier");
      lasting = tier;
    }
  }
  return lasting;
}

uint32_t UnixSecondsOf(const Clock& clock) {
  return static_cast<uint32_t>(
      std::clamp<int64_t>(absl::ToUnixSeconds(clock.Now()), 0, UINT32_MAX));
}

}  // namespace

IndexParts::IndexParts(std::span<CopyTier* const> all, uint64_t blocks_max,
                       uint64_t awake_bytes_max, uint32_t removals_max, uint64_t hints_max,
                       const Clock& clock, EventLog& events)
    : records(LastingOf(all), awake_bytes_max),
      write_back(records),
      tiers(records, write_back, all, blocks_max, clock, events),
      chains(records, tiers, clock),
      removals(removals_max, UnixSecondsOf(clock)),
      hints(hints_max),
      clock_(clock) {}

absl::StatusOr<std::optional<uint64_t>> IndexParts::Check(const BlockClaim& claim) const {
  const Block* block = chains.FindKnown(claim.name);
  if (block == nullptr || !block->has_place()) {
    CAIRN_RETURN_IF_ERROR(chains.CheckPlace(claim));
    return std::nullopt;
  }
  if (block->first_position != claim.first_position) {
    return absl::InvalidArgumentError(absl::StrCat("first_position is ", claim.first_position,
                                                   ": the block is stored with ",
                                                   block->first_position));
  }
  const Block* parent = records.ParentOf(*block);
  if (claim.parent != proto::BlockKey{} && parent != nullptr && claim.parent != parent->name.key) {
    return absl::InvalidArgumentError("parent differs from the stored block's");
  }
  ImageRefs scratch;
  const absl::Span<const ImageRef> refs = records.RefsOf(*block, &scratch);
  ImagePlaces places;
  if (FindCover(refs, claim.group, claim.slice, &places)) {
    uint64_t bytes = 0;
    for (const uint8_t place : places) {
      bytes += records.BriefOf(*block, place).image_bytes;
    }
    return bytes;
  }
  if (refs.size() >= codecs::kImagesPerBlockMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the block has its ", codecs::kImagesPerBlockMax, " images"));
  }
  return std::nullopt;
}

Copy* IndexParts::FindCopy(TierId tier, const ImageFacts& image, uint64_t offset) {
  Block* block = chains.Find({image.space_id, image.key});
  return block == nullptr ? nullptr : tiers.FindCopy(block, tier, offset);
}

Image* IndexParts::Add(Block* block, NewImage image, absl::Time now) {
  const bool was_linked = block->is_linked;
  if (!was_linked) {
    chains.Link(block, now);
    block->rank = hints.RankOf(block->name) & 7U;  // the block is in no order yet
    block->is_fetched = image.is_fetched;
  } else if (!image.is_fetched) {
    tiers.NoteComputed(block);
  }
  if (records.SetNames(*block, std::move(image.names)) && was_linked) {
    tiers.EmitNamed(*block);
  }
  Image* linked = tiers.LinkImage(block, {.space_id = image.claim.name.space_id,
                                          .key = image.claim.name.key,
                                          .first_position = image.claim.first_position,
                                          .tokens = image.claim.tokens,
                                          .group = image.claim.group,
                                          .slice = image.claim.slice,
                                          .expires_unix_s = image.expires_unix_s,
                                          .source_bytes = image.source_bytes});
  chains.SetExpiry(block, image.expires_unix_s);
  tiers.LinkCopy(linked, std::move(image.copy));
  if (image.is_encode_pending) {
    write_back.SetPending(linked);
  }
  return linked;
}

void IndexParts::Unlink(Block* block, RemovalReason reason) {
  NoteRemoval(block->name, reason);
  tiers.UnlinkImages(block);
  chains.Unlink(block);
}

void IndexParts::Lose(Copy* copy) {
  Block* block = copy->image->block;
  tiers.Lose(copy);
  UnlinkIfEmpty(block, RemovalReason::kDamaged);
}

void IndexParts::UnlinkIfEmpty(Block* block, RemovalReason reason) {
  if (block->is_linked && block->is_awake() && block->awake->images.empty()) {
    NoteRemoval(block->name, reason);
    chains.Unlink(block);
  }
}

void IndexParts::EndHint(const BlockName& name, const Hint& hint) {
  Block* block = chains.Find(name);
  if (block == nullptr) {
    return;
  }
  if (block->rank != kFetchedRank) {  // a demotion raises none
    tiers.SetRank(block, hint.is_demotion() && block->may_demote ? kDemotedRank : kPlainRank);
  }
  block->may_demote = false;
}

void IndexParts::NoteRemoval(const BlockName& name, RemovalReason reason) {
  removals.Add(name, reason, UnixSecondsOf(clock_));
}

}  // namespace cairn
