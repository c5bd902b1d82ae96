// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans of mining banks from a sample of a group's KV in device memory. The device makes the
// patterns, and the host adds the rest of the bank. The bank has the same bytes as that of
// codecs::MineBank() for the same tokens.
//
// Thread-safety: pure functions. They do not allocate, synchronize or throw.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/side/bank_shape.h"
#include "codecs/types/error.h"
#include "kernels/mine_records.h"
#include "kernels/mine_sample.h"

namespace cairn::kernels {

// A sample of a group, and the address at which to write its bank.
struct MineJob {
  // The sample. Tokens in holes of its page table are skipped, and so are tokens that cannot be
  // coded. A sample may therefore consist of several texts, one after another, with holes for the
  // first tokens of each text.
  MineSample sample;
  uint32_t patterns = 0;      // number of patterns of each head
  std::byte* bank = nullptr;  // at a multiple of 16: codecs::BankBytes() of BankShapeOf(). Kernels
                              // write the patterns; codecs::WriteBankFrame() writes the other bytes
};

struct MinePlan {
  uint32_t bytes = 0;
  uint64_t scratch_bytes = 0;
  std::array<uint32_t, kMineLists> counts{};  // number of heads, over all planes
};

// REQUIRES: the sample's kind is kKv or kLatent.
[[nodiscard]] codecs::BankShape BankShapeOf(const MineJob& job);

// Writes a plan for the job into `buffer`, at a multiple of 16; sets *plan on kOk. Errors:
// kInvalidShape (a tile without values; a count outside the limits of a bank or a sample; or a
// table, a stride, or the address of the bank is invalid), kTargetTooSmall (a page below page_count
// exceeds layer_bytes, a slot exceeds the table, or the plan exceeds `buffer`).
codecs::Error MakeMinePlan(const MineJob& job, std::span<std::byte> buffer, MinePlan* plan);

// Returns the size of a plan for `heads` heads, counted over all planes.
[[nodiscard]] uint64_t MinePlanBytes(uint32_t heads);

}  // namespace cairn::kernels
