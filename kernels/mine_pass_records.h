// SPDX-License-Identifier: Apache-2.0
#pragma once
// The records of a plan that kernels read in a pass over the sample of a profile: a MinePassHeader,
// planes, heads, strips, turns, channels, columns and ranges of columns. Kernels add to the sums,
// which consist of ExactMoments, HeadTokens, CodeCounts and ShrinkSums of
// codecs/side/profile_sums.h.
//
// Thread-safety: values. Uses only the integer types of the standard library.

#include <cstdint>

#include "codecs/side/profile_sums.h"
#include "kernels/records.h"

namespace cairn::kernels {

inline constexpr uint32_t kPassDimMax = 1024;       // largest dim of K, V or a latent
inline constexpr uint32_t kColumnsOfRangeMax = 16;  // columns that a block counts at once

// The kernels of a pass, each with a list of tasks.
enum class PassList : uint8_t {
  kMoments,  // a task is a head of a plane
  kCodes,    // a task is a range of columns of a head
  kCount
};
inline constexpr uint32_t kPassLists = static_cast<uint32_t>(PassList::kCount);

// Up to kTaskTokensMax consecutive tokens of a text.
struct alignas(16) SampleStrip {
  uint64_t first_position;  // position of the first token in its text
  uint32_t token_first;     // index in the sample
  uint16_t tokens;
  uint16_t part;  // part of the sample: below codecs::kSampleParts
};

// A range of columns that count the same tokens.
struct alignas(16) ColumnRange {
  uint32_t first, count;  // 1 to kColumnsOfRangeMax
  bool is_strided;
  bool has_shrink;
};

// A head of a plane.
struct alignas(16) MinePassTask {
  uint8_t* source;      // address of this layer and head in page 0, token 0; only read
  uint32_t plane;       // index of its PlaneRecord and PassPlane
  uint32_t number;      // index of the head: layer * heads + head
  uint64_t channel_at;  // offset of its first MinedChannel from the header
};

// Offsets of the sums of a plane. All are multiples of 16.
struct alignas(16) PassPlane {
  uint64_t moments_at, tokens_at;  // for all heads
  uint64_t codes_at, shrink_at;    // codes: for each column
};

// Two counts at the start of the sums: the tokens of V other than the first one of a text, and
// those of them that are rows because of a small norm.
struct alignas(16) NormCounts {
  uint64_t norms, small_norms;
};

struct alignas(16) MinePassHeader {
  TaskList lists[kPassLists];
  PassPlane sums[2];
  uint32_t planes_at, tasks_at, strips_at, turns_at, columns_at, ranges_at;  // offsets from the
                                                                             // header
  uint32_t strip_count, range_count;
};

// Arguments of every kernel of a pass.
struct MinePassArgs {
  const uint8_t* plan;  // on the device
  uint8_t* sums;        // must be zeroed before
  uint32_t* status;     // a word: 0, or the largest Fault
  uint32_t list;
};

}  // namespace cairn::kernels
