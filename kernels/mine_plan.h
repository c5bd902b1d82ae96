// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans of banks to mine from a sample of a group's KV on the device. The device makes the
// patterns, and the host adds the rest of the bank. The bank's bytes equal those that
// codecs::MineBank() makes of the same tokens.
//
// Thread-safety: pure functions. Nothing allocates, synchronizes or throws.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/side/bank_shape.h"
#include "codecs/types/error.h"
#include "kernels/mine_records.h"
#include "kernels/mine_sample.h"

namespace cairn::kernels {

// A sample of a group, and where its bank is to go.
struct MineJob {
  // Holes of its table are left out, as are tokens with a value that has no code: so texts may lie
  // behind one another, and the first tokens of each be left out.
  MineSample sample;
  uint32_t patterns = 0;      // of each head
  std::byte* bank = nullptr;  // at a multiple of 16: codecs::BankBytes() of BankShapeOf(). Kernels
                              // write patterns, and leave all else to codecs::WriteBankFrame()
};

struct MinePlan {
  uint32_t bytes = 0;
  uint64_t scratch_bytes = 0;
  std::array<uint32_t, kMineLists> counts{};  // of heads, of all planes
};

// REQUIRES: the sample is of kKv or kLatent.
[[nodiscard]] codecs::BankShape BankShapeOf(const MineJob& job);

// Writes a plan for the job into `buffer`, at a multiple of 16; *plan is set on kOk. kInvalidShape:
// a tile without values, numbers that no bank or no sample has, a view's tables or strides, or the
// place of the bank. kTargetTooSmall: a page below page_count reaches past layer_bytes, a slot past
// the table, or the plan past `buffer`.
codecs::Error MakeMinePlan(const MineJob& job, std::span<std::byte> buffer, MinePlan* plan);

// The bytes of a plan of so many heads of all planes.
[[nodiscard]] uint64_t MinePlanBytes(uint32_t heads);

}  // namespace cairn::kernels
