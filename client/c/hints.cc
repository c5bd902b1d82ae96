// SPDX-License-Identifier: Apache-2.0
// The C ABI: why blocks are stored or not, and hints.
#include <cstdint>

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
