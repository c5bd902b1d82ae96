// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans of passes over the sample of a profile that lies on the device. The device adds up, and the
// host comes to what the profile says (codecs/mine/profile_miner.h), whose bytes are those that
// ProfileMiner makes of the same strips:
//
//   while (miner.NeedsPass()) {
//     job.pass = miner.pass();
//     MakeMinePassPlan(job, buffer, &plan);   // launch it, and copy the sums to the host
//     miner.Add(SumsOf(job, plan, sums));
//     miner.EndPass();
//   }
//
// Thread-safety: pure functions. Nothing allocates, synchronizes or throws.

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

// Consecutive tokens of a text, of which strips are made: 128 tokens each, and what is left.
struct SampleRun {
  uint32_t token_first = 0;  // of the sample
  uint32_t tokens = 0;
  uint64_t first_position = 0;  // of its first token in its text
  uint32_t part = 0;            // of the sample: below codecs::kSampleParts
};

struct MinePassJob {
  // A hole of its table inside of a run is as tokens with a value that has no code. What no run has
  // is not looked at.
  MineSample sample;
  std::span<const SampleRun> runs;
  codecs::RotaryPairs pairs;  // of the miner
  std::span<const uint64_t> turns;
  codecs::ProfilePass pass;
};

struct MinePassPlan {
  uint32_t bytes = 0;
  uint64_t sums_bytes = 0;
  std::array<uint32_t, kPassLists> counts{};  // of tasks
  std::array<PassPlane, 2> sums{};            // where their parts are
};

// Writes a plan for the job into `buffer`, at a multiple of 16; *plan is set on kOk. kInvalidShape:
// as CheckSample(), or runs, turns, channels or columns that are not the sample's or no pass's.
// kTooLarge: more than 2^32 bytes of plan. kTargetTooSmall: as CheckSample(), or the plan reaches
// past `buffer`.
codecs::Error MakeMinePassPlan(const MinePassJob& job, std::span<std::byte> buffer,
                               MinePassPlan* plan);

// The bytes of its plan.
[[nodiscard]] uint64_t MinePassPlanBytes(const MinePassJob& job);

// What a launch left in sums, on the host. Borrows them.
// REQUIRES: sums has plan.sums_bytes, at a multiple of 16.
[[nodiscard]] codecs::PassSums SumsOf(const MinePassJob& job, const MinePassPlan& plan,
                                      std::span<const std::byte> sums);

}  // namespace cairn::kernels
