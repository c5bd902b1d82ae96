// SPDX-License-Identifier: Apache-2.0
#include "service/index/chains.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace cairn {
namespace {

// So small that adding a block's tokens cannot overflow the 48 bits of a position.
constexpr uint64_t kFirstPositionMax = uint64_t{1} << 47;

bool IsNone(const proto::BlockKey& key) { return key == proto::BlockKey{}; }

}  // namespace

absl::Status Chains::CheckPlace(const BlockClaim& claim) const {
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

void Chains::JoinCircle(Block* parent, Block* child) {
  if (parent->first_child == kNoSlot) {
    parent->first_child = child->next_sibling = child->previous_sibling = child->slot;
  } else {  // the last follower
    Block* first = records_.At(parent->first_child);
    child->next_sibling = first->slot;
    child->previous_sibling = first->previous_sibling;
    records_.At(child->previous_sibling)->next_sibling = child->slot;
    first->previous_sibling = child->slot;
  }
  child->parent = parent->slot;
  ++parent->follower_count;
}

void Chains::LeaveCircle(Block* parent, Block* child) {
  CAIRN_CHECK(parent->follower_count > 0);
  --parent->follower_count;
  if (parent->first_child == child->slot) {
    parent->first_child = parent->follower_count == 0 ? kNoSlot : child->next_sibling;
  }
  records_.At(child->previous_sibling)->next_sibling = child->next_sibling;
  records_.At(child->next_sibling)->previous_sibling = child->previous_sibling;
  child->parent = child->next_sibling = child->previous_sibling = kNoSlot;
}

// --- Names ---------------------------------------------------------------------------------------

Block* Chains::Find(const BlockName& name) const {
  Block* block = FindKnown(name);
  return block != nullptr && block->is_linked ? block : nullptr;
}

bool Chains::IsExpired(const Block& block) const {
  return block.expires_unix_s != 0 && absl::ToUnixSeconds(clock_.Now()) >= block.expires_unix_s;
}

Block* Chains::FindUnexpired(const BlockName& name) const {
  Block* block = Find(name);
  return block != nullptr && !IsExpired(*block) ? block : nullptr;
}

void Chains::SetExpiry(Block* block, uint32_t unix_s) {
  if (unix_s == 0) {
    return;
  }
  expiring_count_ += block->expires_unix_s == 0 ? 1 : 0;
  block->expires_unix_s =
      block->expires_unix_s == 0 ? unix_s : std::min(block->expires_unix_s, unix_s);
}

Block* Chains::Know(const BlockName& name) {
  if (Block* block = FindKnown(name); block != nullptr) {
    return block;
  }
  Block* block = records_.TakeBlock();
  block->name = name;
  names_.Add(block);
  return block;
}

void Chains::ForgetIfUnused(Block* block) {
  if (!block->has_place() && block->follower_count == 0) {
    names_.Remove(block);
    records_.ReturnBlock(block);
  }
}

// --- Places --------------------------------------------------------------------------------------

void Chains::EnterChain(Block* block, const BlockClaim& claim) {
  block->first_position = claim.first_position;
  block->tokens = claim.tokens;
  if (!IsNone(claim.parent)) {
    Block* parent = Know({claim.name.space_id, claim.parent});
    if (!parent->has_place()) {
      parent->first_position = claim.first_position;
    }
    JoinCircle(parent, block);
    ++records_.Awake(parent).followers_on_their_way;
  }
  const Block* parent = records_.ParentOf(*block);
  SetOrphaned(block, parent != nullptr && parent->is_orphaned);
  records_.EnterRun(*block, claim.run);
}

void Chains::LosePlace(Block* block) {
  if (Block* parent = records_.ParentOf(*block); parent != nullptr) {
    --records_.Awake(parent).followers_on_their_way;
    LeaveCircle(parent, block);
    SetStaleChildren(parent, std::min(parent->stale_children(), parent->follower_count));
    records_.NoteIdle(parent);
    ForgetIfUnused(parent);
  }
  block->first_position = block->end_position();
  block->tokens = 0;
  SetOrphaned(block, true);
  records_.NoteIdle(block);
  ForgetIfUnused(block);
}

Block* Chains::ReservePut(const BlockClaim& claim) {
  Block* block = Know(claim.name);
  if (!block->has_place()) {
    EnterChain(block, claim);
  }
  Block* parent = records_.ParentOf(*block);
  if (records_.Awake(block).put_count++ == 0 && parent != nullptr &&
      records_.Awake(parent).child_put_count++ == 0) {
    tiers_.RefreshHeld(parent);
  }
  return block;
}

void Chains::EndReservation(Block* block) {
  CAIRN_CHECK(block->put_count() > 0);
  Block* parent = records_.ParentOf(*block);
  if (--block->awake->put_count > 0) {
    return;
  }
  records_.NoteIdle(block);
  if (parent != nullptr && --parent->awake->child_put_count == 0) {
    tiers_.RefreshHeld(parent);
    records_.NoteIdle(parent);
  }
  if (!block->has_place()) {
    LosePlace(block);
  }
}

// --- Blocks that are there -----------------------------------------------------------------------

void Chains::Link(Block* block, absl::Time now) {
  CAIRN_CHECK(!block->is_linked && block->has_place());
  tiers_.Touch(block, now);  // not linked yet, so this is not counted as a second use
  block->is_linked = true;
  tiers_.CountBlock(*block, true);
  if (Block* parent = records_.ParentOf(*block); parent != nullptr) {
    --records_.Awake(parent).followers_on_their_way;
  }
}

void Chains::Unlink(Block* block) {
  CAIRN_CHECK(block->is_linked && block->is_awake() && block->awake->images.empty());
  records_.ForgetNames(*block);
  block->is_linked = false;
  block->rank = kPlainRank;
  block->may_demote = false;
  block->is_fetched = false;
  expiring_count_ -= block->expires_unix_s != 0 ? 1 : 0;
  block->expires_unix_s = 0;
  if (Block* parent = records_.ParentOf(*block); parent != nullptr) {
    ++records_.Awake(parent).followers_on_their_way;
  }
  tiers_.CountBlock(*block, false);
  if (!block->has_place()) {
    LosePlace(block);
  }
}

std::vector<BlockName> Chains::LeasedAfter(const BlockName& name, size_t count,
                                           Visits& visits) const {
  const auto is_leased = [](const ImageRef& ref) { return ref.image->lease_pins > 0; };
  std::vector<BlockName> names;
  const Block* block = Find(name);
  while (block != nullptr && names.size() < count) {  // each iteration adds a name
    const Block* next = nullptr;
    uint32_t slot = block->first_child;
    for (uint32_t i = 0; i < block->follower_count && next == nullptr; ++i) {
      const Block* child = records_.At(slot);
      slot = child->next_sibling;
      const bool is_awake = child->is_awake();  // a block that is not awake is not leased
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

// --- Broken chains -------------------------------------------------------------------------------

void Chains::SetOrphaned(Block* block, bool is_orphaned) {
  if (block->is_orphaned != is_orphaned) {
    tiers_.SetOrphaned(block, is_orphaned);
    SetStaleChildren(block, block->follower_count);
  }
}

void Chains::SetStaleChildren(Block* block, uint32_t count) {
  if (count == block->stale_children()) {
    return;
  }
  AwakeBlock& awake = records_.Awake(block);
  if (awake.stale_children == 0) {
    awake.stale_index = static_cast<uint32_t>(stale_parents_.size());
    stale_parents_.push_back(block);
  } else if (count == 0) {
    stale_parents_[awake.stale_index] = stale_parents_.back();
    stale_parents_.back()->awake->stale_index = awake.stale_index;
    stale_parents_.pop_back();
    records_.NoteIdle(block);
  }
  awake.stale_children = count;
}

bool Chains::PropagateOrphans(Visits& visits) {
  while (!stale_parents_.empty()) {  // visits each child once per change
    if (!visits.Take()) {
      return false;
    }
    Block* block = stale_parents_.back();
    Block* child = records_.At(block->first_child);
    block->first_child = child->next_sibling;
    SetStaleChildren(block, block->stale_children() - 1);
    SetOrphaned(child, block->is_orphaned);
  }
  return true;
}

bool Chains::IsOrphaned(const BlockName& name) const {
  const Block* block = FindKnown(name);
  return block != nullptr && block->has_place() && block->is_orphaned;
}

bool Chains::IsBefore(const Block& block, const Block& follower, bool if_spent,
                      Visits& visits) const {
  if (follower.name.space_id != block.name.space_id) {
    return false;
  }
  for (const Block* before = records_.ParentOf(follower);
       before != nullptr && before->first_position >= block.first_position;
       before = records_.ParentOf(*before)) {
    if (before == &block) {
      return true;
    }
    if (!visits.Take()) {
      return if_spent;
    }
  }
  return false;
}

}  // namespace cairn
