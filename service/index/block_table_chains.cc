// SPDX-License-Identifier: Apache-2.0
// Chains: who follows whom, what is on its way, and which chains are broken.
#include <algorithm>

#include "base/check.h"
#include "service/index/block_table.h"

namespace cairn {
namespace {

// Far below what could overflow when a block's tokens are added.
constexpr uint64_t kFirstPositionMax = uint64_t{1} << 48;

bool IsNone(const proto::BlockKey& key) { return key == proto::BlockKey{}; }

void JoinCircle(Block* parent, Block* child) {
  if (parent->first_child == nullptr) {
    parent->first_child = child->next_sibling = child->previous_sibling = child;
  } else {  // the last of them
    child->next_sibling = parent->first_child;
    child->previous_sibling = parent->first_child->previous_sibling;
    child->previous_sibling->next_sibling = child;
    child->next_sibling->previous_sibling = child;
  }
  ++parent->follower_count;
}

void LeaveCircle(Block* parent, Block* child) {
  CAIRN_CHECK(parent->follower_count > 0);
  --parent->follower_count;
  if (parent->first_child == child) {
    parent->first_child = parent->follower_count == 0 ? nullptr : child->next_sibling;
  }
  child->previous_sibling->next_sibling = child->next_sibling;
  child->next_sibling->previous_sibling = child->previous_sibling;
  child->next_sibling = child->previous_sibling = nullptr;
}

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

// --- Names ---------------------------------------------------------------------------------------

Block* BlockTable::FindKnown(const BlockName& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : *found;
}

Block* BlockTable::Find(const BlockName& name) const {
  Block* block = FindKnown(name);
  return block != nullptr && block->is_linked ? block : nullptr;
}

bool BlockTable::IsExpired(const Block& block) const {
  return block.expires_unix_s != 0 && absl::ToUnixSeconds(clock_.Now()) >= block.expires_unix_s;
}

Block* BlockTable::FindFresh(const BlockName& name) const {
  Block* block = Find(name);
  return block != nullptr && !IsExpired(*block) ? block : nullptr;
}

void BlockTable::DropExpired(Block* block) {
  if (IsExpired(*block)) {
    UnlinkBlock(block);
    ++expired_total_;
  }
}

Block* BlockTable::Know(const BlockName& name) {
  if (Block* block = FindKnown(name); block != nullptr) {
    return block;
  }
  Block* block = blocks_.Take();
  block->is_linked = false;
  block->name = name;
  block->first_position = block->tokens = 0;
  block->parent = block->first_child = block->next_sibling = block->previous_sibling = nullptr;
  block->follower_count = block->child_count = block->child_put_count = block->put_count = 0;
  block->is_cut = true;
  block->unsettled = block->search = 0;
  block->in = {};
  block->images.clear();
  by_name_.insert(block);
  return block;
}

void BlockTable::ForgetIfUnused(Block* block) {
  if (!block->has_place() && block->follower_count == 0) {
    by_name_.erase(block);
    blocks_.Return(block);
  }
}

// --- Places --------------------------------------------------------------------------------------

void BlockTable::TakePlace(Block* block, const BlockClaim& claim) {
  block->first_position = claim.first_position;
  block->tokens = claim.tokens;
  if (!IsNone(claim.parent)) {
    Block* parent = Know({claim.name.space_id, claim.parent});
    if (!parent->has_place()) {
      parent->first_position = claim.first_position;
    }
    block->parent = parent;
    JoinCircle(parent, block);
  }
  SetCut(block, block->parent != nullptr && block->parent->is_cut);
}

void BlockTable::LosePlace(Block* block) {
  if (Block* parent = block->parent; parent != nullptr) {
    LeaveCircle(parent, block);
    SetUnsettled(parent, std::min(parent->unsettled, parent->follower_count));
    block->parent = nullptr;
    ForgetIfUnused(parent);
  }
  block->first_position = block->end_position();
  block->tokens = 0;
  SetCut(block, true);
  ForgetIfUnused(block);
}

Block* BlockTable::Expect(const BlockClaim& claim) {
  Block* block = Know(claim.name);
  if (!block->has_place()) {
    TakePlace(block, claim);
  }
  Block* parent = block->parent;
  if (block->put_count++ == 0 && parent != nullptr && parent->child_put_count++ == 0) {
    RefreshHeld(parent);
  }
  return block;
}

void BlockTable::EndExpect(Block* block) {
  CAIRN_CHECK(block->put_count > 0);
  Block* parent = block->parent;
  if (--block->put_count > 0) {
    return;
  }
  if (parent != nullptr && --parent->child_put_count == 0) {
    RefreshHeld(parent);
  }
  if (!block->has_place()) {
    LosePlace(block);
  }
}

// --- Blocks that are there -----------------------------------------------------------------------

void BlockTable::LinkBlock(Block* block, absl::Time now) {
  CAIRN_CHECK(!block->is_linked && block->has_place());
  block->is_linked = true;
  Touch(block, now);
  ++figures_.block_count;
  ++figures_by_space_[block->name.space_id].block_count;
  if (block->parent != nullptr) {
    ++block->parent->child_count;
  }
}

void BlockTable::RemoveBlock(Block* block) {
  CAIRN_CHECK(block->is_linked && block->images.empty());
  block->is_linked = false;
  expiring_count_ -= block->expires_unix_s != 0 ? 1 : 0;
  block->expires_unix_s = 0;
  block->has_let_go = false;
  if (block->parent != nullptr) {
    --block->parent->child_count;
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
  if (child.parent != nullptr) {
    child.parent->in[IndexOf(tier)].child_count += static_cast<uint32_t>(sign);  // wraps
    Requeue(child.parent, tier);
  }
}

void BlockTable::Requeue(Block* block, TierId tier) {
  InTier& in_tier = At(tier);
  if (!in_tier.traits.is_leaf_first) {
    return;
  }
  Order& order = in_tier.orders[block->is_cut ? kCut : kWhole];
  const BlockInTier& in = block->in[IndexOf(tier)];
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

void BlockTable::SetCut(Block* block, bool is_cut) {
  if (block->is_cut == is_cut) {
    return;
  }
  for (const TierId tier : kReadOrder) {
    const BlockInTier& in = block->in[IndexOf(tier)];
    if (in.queue_index != BlockInTier::kNotQueued) {
      Order& order = At(tier).orders[block->is_cut ? kCut : kWhole];
      order.recency->Remove(block);
      order.held -= in.held_count > 0 ? 1 : 0;
    }
  }
  block->is_cut = is_cut;
  for (const TierId tier : kReadOrder) {
    Requeue(block, tier);
  }
  SetUnsettled(block, block->follower_count);
}

void BlockTable::SetUnsettled(Block* block, uint32_t count) {
  if (count > 0 && block->unsettled == 0) {
    block->unsettled_index = static_cast<uint32_t>(unsettled_.size());
    unsettled_.push_back(block);
  } else if (count == 0 && block->unsettled > 0) {
    unsettled_[block->unsettled_index] = unsettled_.back();
    unsettled_.back()->unsettled_index = block->unsettled_index;
    unsettled_.pop_back();
  }
  block->unsettled = count;
}

bool BlockTable::SettleCuts(Visits& visits) {
  while (!unsettled_.empty()) {  // ends: each child is looked at once a change above it
    if (!visits.Take()) {
      return false;
    }
    Block* block = unsettled_.back();
    Block* child = block->first_child;
    block->first_child = child->next_sibling;
    SetUnsettled(block, block->unsettled - 1);
    SetCut(child, block->is_cut);
  }
  return true;
}

}  // namespace cairn
