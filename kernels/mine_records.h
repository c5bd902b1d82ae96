// SPDX-License-Identifier: Apache-2.0
#pragma once
// The records of a plan that kernels read to mine a bank: a MineHeader, planes, heads.
//
// Thread-safety: values. Free of the standard library but for integers.

#include <cstdint>

#include "kernels/records.h"

namespace cairn::kernels {

inline constexpr uint32_t kMineDimMax = 1024;      // of K, V or a latent
inline constexpr uint32_t kCentresBeside = 32;     // in scratch, a lane each
inline constexpr uint32_t kMinePatternsMax = 256;  // of a head

// Kernels that mine, each with a list of heads.
enum class MineList : uint8_t { kPatterns, kCount };
inline constexpr uint32_t kMineLists = static_cast<uint32_t>(MineList::kCount);

// A head of a plane. Of scratch it has, each at a multiple of 16: centres in fp32, those of a
// channel side by side in groups of kCentresBeside, channels filled up to a multiple of kNormSums;
// of tokens their squared distance from their centre in fp32; and its number, a u16.
struct alignas(16) MineTask {
  uint8_t* source;                           // its layer and head in page 0, token 0; only read
  uint8_t* patterns;                         // in the bank
  uint64_t centres_at, left_at, nearest_at;  // bytes from the start of scratch
  uint32_t plane;                            // its PlaneRecord
};

struct alignas(16) MineHeader {
  TaskList lists[kMineLists];
  uint32_t planes_at, tasks_at;  // bytes from the header; multiples of 16
};

// Arguments of every kernel that mines.
struct MineArgs {
  const uint8_t* plan;  // on the device
  uint8_t* scratch;
  uint32_t* status;  // a word: 0, or the largest Fault there was
  uint32_t list;
};

}  // namespace cairn::kernels
