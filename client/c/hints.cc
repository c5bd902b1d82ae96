// SPDX-License-Identifier: Apache-2.0
// The C ABI: why blocks are stored or not, which members have them, and hints.
#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/c/cairn.h"
#include "client/c/convert.h"
#include "client/c/guard.h"
#include "client/c/handles.h"

using cairn::ExplainedBlock;
using cairn::c::CheckPointer;
using cairn::c::Guard;
using cairn::c::Keys;
using cairn::c::Timeout;

namespace {

absl::Status CheckKeyArray(const cairn_space* space, const cairn_key* keys, size_t key_count) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("space", space));
  return CheckPointer("keys", keys, key_count);
}

cairn_block_fate FateOf(const ExplainedBlock& block) {
  cairn_block_fate fate{};
  fate.state = static_cast<int32_t>(block.state);
  fate.reason = static_cast<int32_t>(block.reason);
  for (const cairn::Tier tier : block.tiers) {
    fate.tiers |= 1U << static_cast<uint32_t>(tier);
  }
  fate.missing_group = block.missing_group;
  fate.removed_ms = static_cast<uint64_t>(absl::ToInt64Milliseconds(block.removed_ago));
  return fate;
}

cairn_member_blocks FromMember(const cairn::MemberBlocks& member) {
  cairn_member_blocks filled{};
  cairn::c::CopyText(member.member, filled.member);
  cairn::c::CopyText(member.failure, filled.failure);
  filled.block_count = member.block_count;
  for (const cairn::TierBlocks& one : member.tiers) {
    const auto tier = static_cast<size_t>(one.tier);
    if (tier < std::size(filled.tier_counts)) filled.tier_counts[tier] = one.block_count;
  }
  filled.is_self = member.is_self ? 1 : 0;
  filled.is_draining = member.is_draining ? 1 : 0;
  return filled;
}

}  // namespace

int cairn_explain(cairn_space* space, const cairn_key* keys, size_t key_count, uint32_t timeout_ms,
                  cairn_block_fate* fates, uint64_t* recorded_ms) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckKeyArray(space, keys, key_count));
    CAIRN_RETURN_IF_ERROR(CheckPointer("fates", fates, key_count));
    CAIRN_ASSIGN_OR_RETURN(const cairn::ExplainResult result,
                           space->space->Explain(Keys(keys, key_count), Timeout(timeout_ms)));
    for (const ExplainedBlock& block : result.blocks) {
      *fates++ = FateOf(block);
    }
    if (recorded_ms != nullptr) {
      *recorded_ms = static_cast<uint64_t>(absl::ToInt64Milliseconds(result.recorded));
    }
    return absl::OkStatus();
  });
}

int cairn_where(cairn_space* space, const cairn_key* keys, size_t key_count, uint32_t timeout_ms,
                cairn_member_blocks* members, size_t member_max, size_t* member_count,
                uint32_t* unasked_count) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckKeyArray(space, keys, key_count));
    CAIRN_RETURN_IF_ERROR(CheckPointer("members", members));
    CAIRN_RETURN_IF_ERROR(CheckPointer("member_count", member_count));
    if (member_max < CAIRN_WHERE_MEMBERS_MAX) {
      return absl::InvalidArgumentError(absl::StrCat("member_max is ", member_max, "; it must be ",
                                                     CAIRN_WHERE_MEMBERS_MAX, " or more"));
    }
    CAIRN_ASSIGN_OR_RETURN(const cairn::WhereResult result,
                           space->space->Where(Keys(keys, key_count), Timeout(timeout_ms)));
    // A newer daemon may ask more members than this header knows.
    *member_count = std::min(result.members.size(), member_max);
    for (size_t i = 0; i < *member_count; ++i) members[i] = FromMember(result.members[i]);
    if (unasked_count != nullptr) {
      *unasked_count =
          result.unasked_count + static_cast<uint32_t>(result.members.size() - *member_count);
    }
    return absl::OkStatus();
  });
}

int cairn_retain(cairn_space* space, const cairn_key* keys, size_t key_count, uint32_t seconds,
                 uint32_t priority, uint32_t timeout_ms, uint32_t* stored_count) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckKeyArray(space, keys, key_count));
    CAIRN_ASSIGN_OR_RETURN(const uint32_t stored,
                           space->space->Retain(Keys(keys, key_count), absl::Seconds(seconds),
                                                priority, Timeout(timeout_ms)));
    if (stored_count != nullptr) {
      *stored_count = stored;
    }
    return absl::OkStatus();
  });
}

int cairn_demote(cairn_space* space, const cairn_key* keys, size_t key_count,
                 uint32_t after_seconds, uint32_t timeout_ms, uint32_t* stored_count) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckKeyArray(space, keys, key_count));
    CAIRN_ASSIGN_OR_RETURN(const uint32_t stored,
                           space->space->Demote(Keys(keys, key_count), absl::Seconds(after_seconds),
                                                Timeout(timeout_ms)));
    if (stored_count != nullptr) {
      *stored_count = stored;
    }
    return absl::OkStatus();
  });
}
