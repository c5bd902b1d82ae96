// SPDX-License-Identifier: Apache-2.0
#pragma once
// The records of a plan from which kernels mine a bank (codecs/side/bank_shape.h). A plan has a
// MineHeader, then a PlaneRecord for each plane, and a MineTask for each head.
//
// Thread-safety: values. Free of the standard library but for integers.

#include <cstdint>

#include "kernels/records.h"

namespace cairn::kernels {

inline constexpr uint32_t kMineDimMax = 1024;      // largest dim of K, V or a latent
inline constexpr uint32_t kCentresBeside = 32;     // centres that are adjacent in scratch, one per
                                                   // lane
inline constexpr uint32_t kMinePatternsMax = 256;  // largest number of patterns of a head

// The kernels that mine, each with a list of heads.
enum class MineList : uint8_t { kPatterns, kCount };
inline constexpr uint32_t kMineLists = static_cast<uint32_t>(MineList::kCount);

// A head of a plane. Its scratch has three parts, each at a multiple of 16. The first part has the
// centres in fp32. In this part, the values of a channel are adjacent for each group of
// kCentresBeside centres, and channels are padded to a multiple of kNormSums. The second part has
// the squared distance of each token from its centre, in fp32. The third part has the index of each
// token's centre, a u16.
struct alignas(16) MineTask {
  uint8_t* source;    // token 0 of page 0, at the task's layer and head; read-only
  uint8_t* patterns;  // in the bank
  uint64_t centres_at, left_at, nearest_at;  // offsets from the start of scratch
  uint32_t plane;                            // index of its PlaneRecord
};

struct alignas(16) MineHeader {
  TaskList lists[kMineLists];
  uint32_t planes_at, tasks_at;  // offsets from the header; multiples of 16
};

// Arguments of every kernel that mines.
struct MineArgs {
  const uint8_t* plan;  // on the device
  uint8_t* scratch;
  uint32_t* status;  // a word: 0, or the largest Fault
  uint32_t list;
};

}  // namespace cairn::kernels
