// SPDX-License-Identifier: Apache-2.0
#include "service/index/match.h"

#include <algorithm>

#include "base/check.h"
#include "service/index/cover.h"
#include "service/limits.h"

namespace cairn {
namespace {

// Returns the number of visits for examining a block for one group.
size_t WorkOf(absl::Span<const ImageRef> refs) { return 1 + refs.size(); }

absl::Span<const ImageRef> RefsOf(const IndexParts& parts, const Block* block, ImageRefs* scratch) {
  return block == nullptr ? absl::Span<const ImageRef>() : parts.records.RefsOf(*block, scratch);
}

// Makes room for `count` more elements. Allocates rarely.
template <typename T>
void ReserveMore(std::vector<T>& values, size_t count) {
  if (values.capacity() - values.size() < count) {
    values.reserve(std::max(2 * values.capacity(), values.size() + count));
  }
}

}  // namespace

size_t FirstNeeded(const WantedGroup& wanted, size_t block_count) {
  size_t needed = block_count;
  if (wanted.rule == WantedGroup::Rule::kWindow) {
    needed = std::min<size_t>(block_count, wanted.window_blocks);
  } else if (wanted.rule == WantedGroup::Rule::kLast) {
    needed = std::min<size_t>(block_count, 1);
  }
  return block_count - needed;
}

size_t BlocksAsked(const MatchQuery& query) {
  return query.token_limit == 0
             ? query.keys.size()
             : std::min<size_t>(query.keys.size(), query.token_limit / query.tokens_per_block);
}

// --- Look ----------------------------------------------------------------------------------------

MatchScan::MatchScan(const MatchQuery& query)
    : query_(query),
      group_count_(query.wanted.size()),
      asked_(BlocksAsked(query)),
      needs_every_(std::all_of(
          query.wanted.begin(), query.wanted.end(),
          [](const WantedGroup& wanted) { return wanted.rule == WantedGroup::Rule::kEvery; })),
      leasable_(asked_) {
  refs_.reserve(codecs::kImagesPerBlockMax);
  places_.reserve(codecs::kImagesPerBlockMax);
}

MatchScan::~MatchScan() { CAIRN_CHECK(released_ == held_.size(), "a match leaves pins behind"); }

void MatchScan::Reserve() {
  ReserveMore(blocks_, limits::kVisitsPerHoldMax);
  ReserveMore(seen_, limits::kVisitsPerHoldMax);
  if (query_.wants_lease) {
    ReserveMore(held_, limits::kVisitsPerHoldMax);
  }
}

bool MatchScan::Look(IndexParts& parts, uint64_t lease_bytes_free, Visits& visits) {
  Block* block = nullptr;
  absl::Span<const ImageRef> refs;
  bool is_found = false;
  while (seen_.size() < asked_ * group_count_ && work_ < limits::kMatchWorkMax) {
    const size_t i = seen_.size() / group_count_, g = seen_.size() % group_count_;
    if (!is_found) {
      block = parts.chains.FindUnexpired({query_.space_id, query_.keys[i]});
      refs = RefsOf(parts, block, &refs_);
      is_found = true;
    }
    if (!visits.Take(WorkOf(refs))) {
      return false;
    }
    work_ += WorkOf(refs);
    const WantedGroup& wanted = query_.wanted[g];
    const bool is_complete =
        block != nullptr && FindCover(refs, wanted.group, wanted.slice, &places_);
    if (!is_complete) {
      places_.clear();
      if (wanted.rule == WantedGroup::Rule::kEvery) {
        break;
      }
    }
    See(parts, block, lease_bytes_free);
    if (g + 1 == group_count_) {
      blocks_.push_back(block);
      is_found = false;
      if (needs_every_ && leasable_ < blocks_.size()) {
        break;
      }
    }
  }
  // Drop the results of a block that was not examined completely.
  seen_.resize(blocks_.size() * group_count_);
  return true;
}

void MatchScan::See(IndexParts& parts, Block* block, uint64_t lease_bytes_free) {
  const size_t index = seen_.size();
  const bool is_complete = !places_.empty();
  Seen seen;
  if (index >= group_count_) {
    const Seen& before = seen_[index - group_count_];
    seen.run = before.run;
    seen.lease_bytes_upto = before.lease_bytes_upto;
  }
  seen.run = is_complete ? seen.run + 1 : 0;
  uint64_t lease_bytes = 0;
  for (const uint8_t place : places_) {
    const RestStore::Brief best = parts.records.BriefOf(*block, place);
    seen.image_bytes += best.image_bytes;
    seen.tier = Slower(seen.tier, best.tier);
    lease_bytes += best.lease_bytes;
  }
  seen.lease_bytes_upto += lease_bytes;
  seen.expires_unix_s = block == nullptr ? 0 : block->expires_unix_s;
  seen_.push_back(seen);
  if (!query_.wants_lease) {
    return;
  }
  if (query_.wanted[index % group_count_].rule == WantedGroup::Rule::kEvery) {
    every_bytes_ += lease_bytes;
    if (every_bytes_ > lease_bytes_free) {
      leasable_ = std::min(leasable_, index / group_count_);
    }
  }
  if (is_complete && block->is_resting() && parts.records.is_full_of_awake()) {
    leasable_ = std::min(leasable_, index / group_count_);
  }
  if (is_complete && index / group_count_ < leasable_) {
    const ImageRefs& images = parts.records.Wake(block);
    for (const uint8_t place : places_) {
      Image* image = images[place].image;
      parts.tiers.Pin(image);
      held_.push_back({image, static_cast<uint32_t>(index), false});
    }
  }
}

// --- Plan ----------------------------------------------------------------------------------------

bool MatchScan::IsComplete(size_t block_count) const {
  for (size_t g = 0; g < group_count_; ++g) {
    const Seen& last = seen_[(block_count - 1) * group_count_ + g];
    if (last.run < block_count - FirstNeeded(query_.wanted[g], block_count)) {
      return false;
    }
  }
  return true;
}

uint64_t MatchScan::LeaseBytes(size_t block_count) const {
  uint64_t bytes = 0;
  for (size_t g = 0; g < group_count_; ++g) {
    const size_t first = FirstNeeded(query_.wanted[g], block_count);
    bytes += seen_[(block_count - 1) * group_count_ + g].lease_bytes_upto;
    bytes -= first == 0 ? 0 : seen_[(first - 1) * group_count_ + g].lease_bytes_upto;
  }
  return bytes;
}

void MatchScan::Plan(uint64_t lease_bytes_free) {
  is_shortened_ = false;
  is_leased_ = false;
  next_held_ = 0;
  for (block_count_ = seen_.size() / group_count_; block_count_ > 0; --block_count_) {
    if (!IsComplete(block_count_)) {
      continue;
    }
    if (!query_.wants_lease ||
        (block_count_ <= leasable_ && LeaseBytes(block_count_) <= lease_bytes_free)) {
      break;
    }
    is_shortened_ = true;
  }
  // Allocate before the lock is taken.
  leased_.reserve(held_.size());
}

bool MatchScan::IsNeeded(size_t index) const {
  const size_t i = index / group_count_;
  return i < block_count_ && i >= FirstNeeded(query_.wanted[index % group_count_], block_count_);
}

// --- Lease, release, touch
// ------------------------------------------------------------------------

bool MatchScan::Lease(IndexParts& parts, uint64_t lease_bytes_max, Visits& visits) {
  for (; next_held_ < held_.size(); ++next_held_) {
    if (!visits.Take()) {
      return false;
    }
    Held& held = held_[next_held_];
    if (!IsNeeded(held.seen)) {
      continue;
    }
    const size_t block = held.seen / group_count_;
    if (held.image->block == nullptr) {
      seen_.resize(block * group_count_);
      return true;
    }
    if (held.is_leased) {
      continue;
    }
    const uint64_t leased_before = parts.tiers.leased_bytes();
    parts.tiers.LeasePin(held.image);
    if (parts.tiers.IsLeasedPast(lease_bytes_max)) {
      parts.tiers.LeaseUnpin(held.image);
      leasable_ = block;
      return true;
    }
    held.is_leased = true;
    leased_bytes_ += parts.tiers.leased_bytes() - leased_before;
  }
  is_leased_ = true;
  return true;
}

void MatchScan::Abandon() {
  block_count_ = 0;
  is_shortened_ = true;
}

bool MatchScan::ReleasePins(IndexParts& parts, Visits& visits) {
  for (; released_ < held_.size(); ++released_) {
    if (!visits.Take()) {
      return false;
    }
    const Held& held = held_[released_];
    if (held.is_leased && IsNeeded(held.seen)) {
      leased_.push_back(held.image);
    } else if (held.is_leased) {
      parts.tiers.LeaseUnpin(held.image);
    }
    parts.tiers.Unpin(held.image);
  }
  return true;
}

bool MatchScan::Touch(IndexParts& parts, absl::Time now, Visits& visits) {
  for (; touched_ < block_count_; ++touched_) {
    if (!visits.Take()) {
      return false;
    }
    const size_t i = block_count_ - 1 - touched_;
    Block* block = blocks_[i];
    if (block != nullptr && block->is_linked &&
        block->name == BlockName{query_.space_id, query_.keys[i]}) {
      parts.tiers.Touch(block, now, TierSet::Use::kMatch);
    }
  }
  return true;
}

MatchAnswer MatchScan::Answer() const {
  MatchAnswer answer;
  answer.token_count = uint64_t{block_count_} * query_.tokens_per_block;
  answer.is_shortened_by_pins = is_shortened_;
  answer.blocks.resize(block_count_);
  for (size_t index = 0; index < block_count_ * group_count_; ++index) {
    if (IsNeeded(index)) {
      BlockMatch& block = answer.blocks[index / group_count_];
      block.image_bytes += seen_[index].image_bytes;
      block.tier = Slower(block.tier, seen_[index].tier);
      block.expires_unix_s = seen_[index].expires_unix_s;
    }
  }
  return answer;
}

// --- What is missing -----------------------------------------------------------------------------

bool MissingScan::Look(const IndexParts& parts, Visits& visits) {
  const size_t asked = BlocksAsked(query_);
  for (; left_ > 0 && work_ < limits::kMatchWorkMax; --left_, group_ = 0) {
    const Block* block = nullptr;
    absl::Span<const ImageRef> refs;
    ImageRefs scratch;
    bool is_found = false;
    for (; group_ < query_.wanted.size(); ++group_) {
      const WantedGroup& wanted = query_.wanted[group_];
      if (left_ <= FirstNeeded(wanted, asked)) {
        if (!visits.Take()) {
          return false;
        }
        continue;
      }
      if (!is_found) {
        block = parts.chains.FindUnexpired({query_.space_id, query_.keys[left_ - 1]});
        refs = RefsOf(parts, block, &scratch);
        is_found = true;
      }
      if (!visits.Take(WorkOf(refs))) {
        return false;
      }
      work_ += WorkOf(refs);
      if (block == nullptr || !FindCover(refs, wanted.group, wanted.slice, nullptr)) {
        missing_ = left_ - 1;
        return true;
      }
    }
  }
  return true;
}

}  // namespace cairn
