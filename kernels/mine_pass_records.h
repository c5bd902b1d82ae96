// SPDX-License-Identifier: Apache-2.0
#pragma once
// The records of a plan that kernels read in a pass over the sample of a profile: a MinePassHeader,
// planes, heads, strips, turns, channels, columns and ranges of them. Kernels add to sums, whose
// parts are ExactMoments, HeadTokens, CodeCounts and ShrinkSums of codecs/side/profile_sums.h.
//
// Thread-safety: values. Free of the standard library but for integers.

#include <cstdint>

#include "codecs/side/profile_sums.h"
#include "kernels/records.h"

namespace cairn::kernels {

inline constexpr uint32_t kPassDimMax = 1024;       // of K, V or a latent
inline constexpr uint32_t kColumnsOfRangeMax = 16;  // that a block counts at once

// Kernels that make a pass, each with a list of tasks.
enum class PassList : uint8_t {
  kMoments,  // heads of planes
  kCodes,    // ranges of columns of each
  kCount
};
inline constexpr uint32_t kPassLists = static_cast<uint32_t>(PassList::kCount);

// Up to kTaskTokensMax consecutive tokens of a text.
struct alignas(16) SampleStrip {
  uint64_t first_position;  // of its first token in its text
  uint32_t token_first;     // of the sample
  uint16_t tokens;
  uint16_t part;  // of the sample: below codecs::kSampleParts
};

// Some columns, all of the same tokens.
struct alignas(16) ColumnRange {
  uint32_t first, count;  // 1 to kColumnsOfRangeMax
  bool is_strided;
  bool has_shrink;
};

// A head of a plane.
struct alignas(16) MinePassTask {
  uint8_t* source;      // its layer and head in page 0, token 0; only read
  uint32_t plane;       // its PlaneRecord, and PassPlane
  uint32_t number;      // layer * heads + head
  uint64_t channel_at;  // its first MinedChannel, bytes from the header
};

// Where sums of a plane lie, bytes from their start, at multiples of 16.
struct alignas(16) PassPlane {
  uint64_t moments_at, tokens_at;  // of all heads
  uint64_t codes_at, shrink_at;    // codes of each column
};

// Of tokens of V past the first of a text, and of those that small norms make rows: at the start of
// the sums.
struct alignas(16) NormCounts {
  uint64_t norms, small_norms;
};

struct alignas(16) MinePassHeader {
  TaskList lists[kPassLists];
  PassPlane sums[2];
  uint32_t planes_at, tasks_at, strips_at, turns_at, columns_at, ranges_at;  // bytes from it
  uint32_t strip_count, range_count;
};

// Arguments of every kernel that makes a pass.
struct MinePassArgs {
  const uint8_t* plan;  // on the device
  uint8_t* sums;        // zeroed before
  uint32_t* status;     // a word: 0, or the largest Fault there was
  uint32_t list;
};

}  // namespace cairn::kernels
