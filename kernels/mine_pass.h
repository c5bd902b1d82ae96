// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans of passes over a sample in device memory, from which a profile is mined. The device
// computes the sums, and the host computes the profile from them (codecs/mine/profile_miner.h). The
// profile has the same bytes as if ProfileMiner had read the same strips:
//
//   while (miner.NeedsPass()) {
//     job.pass = miner.pass();
//     MakeMinePassPlan(job, buffer, &plan);   // launch it, and copy the sums to the host
//     miner.Add(SumsOf(job, plan, sums));
//     miner.EndPass();
//   }
//
// Thread-safety: pure functions. They do not allocate, synchronize or throw.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/mine/profile_pass.h"
#include "codecs/side/profile.h"
#include "codecs/types/error.h"
#include "kernels/mine_pass_records.h"
#include "kernels/mine_sample.h"

namespace cairn::kernels {

// Consecutive tokens of a text. They are divided into strips of 128 tokens; the last strip may be
// shorter.
struct SampleRun {
  uint32_t token_first = 0;  // index in the sample
  uint32_t tokens = 0;
  uint64_t first_position = 0;  // position of the first token in its text
  uint32_t part = 0;            // part of the sample: below codecs::kSampleParts
};

struct MinePassJob {
  // The sample. Tokens outside all runs are ignored. A token of a run that lies in a hole of the
  // page table counts as a token that cannot be coded.
  MineSample sample;
  std::span<const SampleRun> runs;
  codecs::RotaryPairs pairs;  // channels that RoPE rotates, from the miner
  std::span<const uint64_t> turns;
  codecs::ProfilePass pass;
};

struct MinePassPlan {
  uint32_t bytes = 0;
  uint64_t sums_bytes = 0;
  std::array<uint32_t, kPassLists> counts{};  // tasks of each list
  std::array<PassPlane, 2> sums{};            // offsets of the parts of the sums
};

// Writes a plan for the job into `buffer`, at a multiple of 16; sets *plan on kOk. Errors:
// kInvalidShape (as for CheckSample(); or runs, turns, channels or columns do not fit the sample or
// the pass), kTooLarge (the plan needs more than 2^32 bytes), kTargetTooSmall (as for
// CheckSample(); or the plan exceeds `buffer`).
codecs::Error MakeMinePassPlan(const MinePassJob& job, std::span<std::byte> buffer,
                               MinePassPlan* plan);

// Returns the size of that plan.
[[nodiscard]] uint64_t MinePassPlanBytes(const MinePassJob& job);

// Returns a view of the sums of a launch, after they were copied to the host. Borrows them.
// REQUIRES: sums has plan.sums_bytes, at a multiple of 16.
[[nodiscard]] codecs::PassSums SumsOf(const MinePassJob& job, const MinePassPlan& plan,
                                      std::span<const std::byte> sums);

}  // namespace cairn::kernels
