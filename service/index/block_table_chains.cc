// SPDX-License-Identifier: Apache-2.0
// Chains: which block follows which, which are expected, and which chains are broken.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "service/index/block_table.h"

namespace cairn {
namespace {

// Far below what could overflow the 48 bits of a position when a block's tokens are added.
constexpr uint64_t kFirstPositionMax = uint64_t{1} << 47;

bool IsNone(const proto::BlockKey& key) { return key == proto::BlockKey{}; }

}  // namespace

absl::Status BlockTable::CheckPlaceInChain(const BlockClaim& claim) const {
  if (claim.first_position > kFirstPositionMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("first_position is ", claim.first_position, ": at most ", kFirstPositionMax));
  }
  if (!IsNone(claim.parent)) {
    if (claim.parent == claim.name.key) {
      return absl::InvalidArgumentError("parent is the block itself");
    }
    if (claim.first_position == 0) {
      return absl::InvalidArgumentError("first_position is 0: such a block has no parent");
    }
    const Block* parent = FindKnown({claim.name.space_id, claim.parent});
    if (parent != nullptr && (parent->has_place() || parent->follower_count > 0) &&
        parent->end_position() != claim.first_position) {
      return absl::InvalidArgumentError(
          absl::StrCat("first_position is ", claim.first_position,
                       parent->has_place() ? ": the parent ends at "
                                           : ": other children of the parent start at ",
                       parent->end_position()));
    }
  }
  const Block* block = FindKnown(claim.name);
  if (block != nullptr && block->follower_count > 0 &&
      block->end_position() != claim.first_position + claim.tokens) {
    return absl::InvalidArgumentError(absl::StrCat("first_position is ", claim.first_position,
                                                   ": children of the block start at ",
                                                   block->end_position()));
  }
  return absl::OkStatus();
}

// --- Circles -------------------------------------------------------------------------------------

void BlockTable::JoinCircle(Block* parent, Block* child) {
  if (parent->first_child == kNoSlot) {
    parent->first_child = child->next_sibling = child->previous_sibling = child->slot;
  } else {  // the last of them
    Block* first = At(parent->first_child);
    child->next_sibling = first->slot;
    child->previous_sibling = first->previous_sibling;
    At(child->previous_sibling)->next_sibling = child->slot;
    first->previous_sibling = child->slot;
  }
  child->parent = parent->slot;
  ++parent->follower_count;
}

void BlockTable::LeaveCircle(Block* parent, Block* child) {
  CAIRN_CHECK(parent->follower_count > 0);
  --parent->follower_count;
  if (parent->first_child == child->slot) {
    parent->first_child = parent->follower_count == 0 ? kNoSlot : child->next_sibling;
  }
  At(child->previous_sibling)->next_sibling = child->next_sibling;
  At(child->next_sibling)->previous_sibling = child->previous_sibling;
  child->parent = child->next_sibling = child->previous_sibling = kNoSlot;
}

// --- Names ---------------------------------------------------------------------------------------

Block* BlockTable::Find(const BlockName& name) const {
  Block* block = FindKnown(name);
  return block != nullptr && block->is_linked ? block : nullptr;
}

bool BlockTable::IsExpired(const Block& block) const {
  return block.expires_unix_s != 0 && absl::ToUnixSeconds(clock_.Now()) >= block.expires_unix_s;
}

Block* BlockTable::FindUnexpired(const BlockName& name) const {
  Block* block = Find(name);
  return block != nullptr && !IsExpired(*block) ? block : nullptr;
}

void BlockTable::DropExpired(Block* block) {
  if (IsExpired(*block)) {
    UnlinkBlock(block);
    ++expired_total_;
  }
}

const Block* BlockTable::ParentOf(const Block& block) const {
  return block.parent == kNoSlot ? nullptr : blocks_.At(block.parent);
}

std::vector<BlockName> BlockTable::LeasedAfter(const BlockName& name, size_t count,
                                               Visits& visits) const {
  const auto is_leased = [](const ImageRef& ref) { return ref.image->lease_pins > 0; };
  std::vector<BlockName> names;
  const Block* block = Find(name);
  while (block != nullptr && names.size() < count) {  // ends: each turn adds one
    const Block* next = nullptr;
    uint32_t slot = block->first_child;
    for (uint32_t i = 0; i < block->follower_count && next == nullptr; ++i) {
      const Block* child = blocks_.At(slot);
      slot = child->next_sibling;
      const bool is_awake = child->is_awake();  // else nobody leases it
      if (!visits.Take(1 + (is_awake ? child->awake->images.size() : 0))) {
        return names;
      }
      if (is_awake &&
          std::any_of(child->awake->images.begin(), child->awake->images.end(), is_leased)) {
        next = child;
      }
    }
    if (next != nullptr) {
      names.push_back(next->name);
    }
    block = next;
  }
  return names;
}

Block* BlockTable::Know(const BlockName& name) {
  if (Block* block = FindKnown(name); block != nullptr) {
    return block;
  }
  Block* block = blocks_.Take();
  block->name = name;
  block->parent = block->first_child = block->next_sibling = block->previous_sibling = kNoSlot;
  block->follower_count = 0;
  block->first_position = 0;
  block->tokens = 0;
  block->is_linked = block->is_used = false;
  block->is_orphaned = true;
  block->resting_count = 0;
  block->awake = nullptr;
  names_.Add(block);
  return block;
}

void BlockTable::ForgetIfUnused(Block* block) {
  if (!block->has_place() && block->follower_count == 0) {
    if (block->is_awake()) {
      awake_.Return(std::exchange(block->awake, nullptr));
      --awake_count_;
    }
    names_.Remove(block);
    blocks_.Return(block);
  }
}

// --- Places --------------------------------------------------------------------------------------

void BlockTable::EnterChain(Block* block, const BlockClaim& claim) {
  block->first_position = claim.first_position;
  block->tokens = claim.tokens;
  if (!IsNone(claim.parent)) {
    Block* parent = Know({claim.name.space_id, claim.parent});
    if (!parent->has_place()) {
      parent->first_position = claim.first_position;
    }
    JoinCircle(parent, block);
    ++Awake(parent).followers_on_their_way;
  }
  const Block* parent = ParentOf(*block);
  SetCut(block, parent != nullptr && parent->is_orphaned);
}

void BlockTable::LosePlace(Block* block) {
  if (Block* parent = ParentOf(*block); parent != nullptr) {
    --Awake(parent).followers_on_their_way;
    LeaveCircle(parent, block);
    SetUnsettled(parent, std::min(parent->stale_children(), parent->follower_count));
    NoteIdle(parent);
    ForgetIfUnused(parent);
  }
  block->first_position = block->end_position();
  block->tokens = 0;
  SetCut(block, true);
  NoteIdle(block);
  ForgetIfUnused(block);
}

Block* BlockTable::ReservePut(const BlockClaim& claim) {
  Block* block = Know(claim.name);
  if (!block->has_place()) {
    EnterChain(block, claim);
  }
  Block* parent = ParentOf(*block);
  if (Awake(block).put_count++ == 0 && parent != nullptr && Awake(parent).child_put_count++ == 0) {
    RefreshHeld(parent);
  }
  return block;
}

void BlockTable::EndReservation(Block* block) {
  CAIRN_CHECK(block->put_count() > 0);
  Block* parent = ParentOf(*block);
  if (--block->awake->put_count > 0) {
    return;
  }
  NoteIdle(block);
  if (parent != nullptr && --parent->awake->child_put_count == 0) {
    RefreshHeld(parent);
    NoteIdle(parent);
  }
  if (!block->has_place()) {
    LosePlace(block);
  }
}

// --- Blocks that are there -----------------------------------------------------------------------

void BlockTable::LinkBlock(Block* block, absl::Time now) {
  CAIRN_CHECK(!block->is_linked && block->has_place());
  Touch(block, now);  // not linked yet, so no use again
  block->is_linked = true;
  ++figures_.block_count;
  ++figures_by_space_[block->name.space_id].block_count;
  if (Block* parent = ParentOf(*block); parent != nullptr) {
    --Awake(parent).followers_on_their_way;
  }
}

void BlockTable::RemoveBlock(Block* block) {
  CAIRN_CHECK(block->is_linked && block->is_awake() && block->awake->images.empty());
  block->is_linked = false;
  expiring_count_ -= block->expires_unix_s != 0 ? 1 : 0;
  block->expires_unix_s = 0;
  block->has_let_go = false;
  if (Block* parent = ParentOf(*block); parent != nullptr) {
    ++Awake(parent).followers_on_their_way;
  }
  --figures_.block_count;
  const auto figures = figures_by_space_.find(block->name.space_id);
  if (--figures->second.block_count == 0) {
    figures_by_space_.erase(figures);
  }
  if (!block->has_place()) {
    LosePlace(block);
  }
}

void BlockTable::CountChildIn(const Block& child, TierId tier, int sign) {
  Block* parent = At(child.parent);
  if (parent != nullptr && At(tier).traits.is_leaf_first) {
    Awake(parent).in[IndexOf(tier)].child_count += static_cast<uint32_t>(sign);  // wraps
    Requeue(parent, tier);
    NoteIdle(parent);
  }
}

void BlockTable::Requeue(Block* block, TierId tier) {
  InTier& in_tier = At(tier);
  if (!in_tier.traits.is_leaf_first || !block->is_awake()) {
    return;
  }
  Order& order = in_tier.orders[block->is_orphaned ? kOrphaned : kWhole];
  const BlockInTier& in = block->awake->in[IndexOf(tier)];
  const bool is_queued = in.queue_index != BlockInTier::kNotQueued;
  const bool is_leaf = in.copy_count > 0 && in.child_count == 0;
  if (is_leaf && !is_queued) {
    order.recency->Add(block);
    order.held += in.held_count > 0 ? 1 : 0;
  } else if (!is_leaf && is_queued) {
    order.recency->Remove(block);
    order.held -= in.held_count > 0 ? 1 : 0;
  }
}

// --- Broken chains -------------------------------------------------------------------------------

void BlockTable::SetCut(Block* block, bool is_orphaned) {
  if (block->is_orphaned == is_orphaned) {
    return;
  }
  for (const TierId tier : kReadOrder) {
    const BlockInTier in = block->in(IndexOf(tier));
    if (in.queue_index != BlockInTier::kNotQueued) {
      Order& order = At(tier).orders[block->is_orphaned ? kOrphaned : kWhole];
      order.recency->Remove(block);
      order.held -= in.held_count > 0 ? 1 : 0;
    }
  }
  block->is_orphaned = is_orphaned;
  for (const TierId tier : kReadOrder) {
    Requeue(block, tier);
  }
  SetUnsettled(block, block->follower_count);
}

void BlockTable::SetUnsettled(Block* block, uint32_t count) {
  if (count == block->stale_children()) {
    return;
  }
  AwakeBlock& awake = Awake(block);
  if (awake.stale_children == 0) {
    awake.stale_index = static_cast<uint32_t>(stale_parents_.size());
    stale_parents_.push_back(block);
  } else if (count == 0) {
    stale_parents_[awake.stale_index] = stale_parents_.back();
    stale_parents_.back()->awake->stale_index = awake.stale_index;
    stale_parents_.pop_back();
    NoteIdle(block);
  }
  awake.stale_children = count;
}

bool BlockTable::PropagateOrphans(Visits& visits) {
  while (!stale_parents_.empty()) {  // ends: each child is looked at once a change above it
    if (!visits.Take()) {
      return false;
    }
    Block* block = stale_parents_.back();
    Block* child = At(block->first_child);
    block->first_child = child->next_sibling;
    SetUnsettled(block, block->stale_children() - 1);
    SetCut(child, block->is_orphaned);
  }
  return true;
}

}  // namespace cairn
