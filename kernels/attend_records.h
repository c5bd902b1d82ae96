// SPDX-License-Identifier: Apache-2.0
#pragma once
// The records of an attention plan that kernels read: an AttendHeader, queries, planes, parts, and
// work items by kernel.
//
// Thread-safety: values. Free of the standard library but for integers.

#include <cstdint>

#include "codecs/types/dtype.h"
#include "codecs/types/form_id.h"
#include "kernels/records.h"

namespace cairn::kernels {

inline constexpr uint32_t kAttendThreads = 128;    // threads of a block of the fast kernels
inline constexpr uint32_t kAttendRows = 16;        // query rows of a work item
inline constexpr uint32_t kAttendDim = 128;        // dim of AttendList::kAffine…, kFp8, kPlain…
inline constexpr uint32_t kAttendSmallDim = 64;    // dim of AttendList::kFp8Of64, kPlain64…
inline constexpr uint32_t kAttendKGroup = 128;     // tokens that share a (min, range), in the lists
                                                   // of kAttendDim
inline constexpr uint32_t kAttendVGroup = 64;      // channels that share a (min, range), also there
inline constexpr uint32_t kAttendNarrowDim = 128;  // largest dim of AttendList::kNarrow
inline constexpr uint32_t kAttendDimMax = 576;     // largest dim of K and V

// The attention kernels, each with a list of work items. The last one merges the results of the
// others.
enum class AttendList : uint8_t {
  kAffine8,  // tiles of K and V without rows, in codes of 8 bits with a (min, range)
  kAffine4,
  kAffine2,
  kFp8,        // tiles without rows, in bytes of E4M3 with a scale per token
  kFp8Of64,    // the same, for heads of 64
  kPlainBf16,  // source bits of heads of 128, in tiles, or in token rows that are a multiple of 16
               // bytes
  kPlainFp16,
  kPlain64Bf16,  // the same, for heads of 64
  kPlain64Fp16,
  kNarrow,  // source bits, codes with a (min, range), and fp8
  kWide,    // every supported form, and wider heads
  kMerge,
  kCount,
};
inline constexpr uint32_t kAttendLists = static_cast<uint32_t>(AttendList::kCount);
// Returns the list for bits 8, 4 or 2.
CAIRN_HD constexpr uint32_t AttendAffineList(uint32_t bits) {
  return static_cast<uint32_t>(bits == 8   ? AttendList::kAffine8
                               : bits == 4 ? AttendList::kAffine4
                                           : AttendList::kAffine2);
}
// Returns the list for heads of kAttendDim or kAttendSmallDim.
CAIRN_HD constexpr uint32_t AttendFp8List(uint32_t dim) {
  return static_cast<uint32_t>(dim == kAttendDim ? AttendList::kFp8 : AttendList::kFp8Of64);
}
// Returns the list for bf16 or fp16, and heads of kAttendDim or kAttendSmallDim.
CAIRN_HD constexpr uint32_t AttendPlainList(codecs::DType dtype, uint32_t dim) {
  const bool is_bf16 = dtype == codecs::DType::kBf16;
  if (dim == kAttendDim) {
    return static_cast<uint32_t>(is_bf16 ? AttendList::kPlainBf16 : AttendList::kPlainFp16);
  }
  return static_cast<uint32_t>(is_bf16 ? AttendList::kPlain64Bf16 : AttendList::kPlain64Fp16);
}
inline constexpr uint32_t kAttendPartLists = static_cast<uint32_t>(AttendList::kMerge);

// The queries of a sequence at a layer. Row r of a KV head is query token r / rows_of_token. Its
// query head is number r mod rows_of_token of the heads that read the KV head.
struct alignas(16) AttendQueries {
  const uint8_t* queries;      // [query token][query head][k_dim]
  float* outputs;              // [query token][query head][v_dim]
  float* log_sums;             // [query token][query head]
  const int32_t* tail_tokens;  // on the device; null: tail_tokens_max
  uint32_t tail_tokens_max;
  uint32_t query_heads, rows_of_token;
  uint32_t rows;  // rows of a KV head
  uint32_t k_dim, v_dim;
  float scale;
  codecs::DType dtype;
  bool is_causal;  // the tail ends with the query tokens; each reads only tokens up to itself
};

// Up to 128 tokens of a tile of K and a tile of V. Both have 128 channels, and either the standard
// groups (kAttendKGroup, kAttendVGroup) or a scale per token.
struct alignas(16) AffinePart {
  const uint8_t* image;
  uint32_t k_codes, k_params, v_codes, v_params;  // offsets from `image`; multiples of 16
  uint32_t tokens;
  uint32_t status;  // index of its status word
};

// Up to 128 tokens of a tile of K and a tile of V, or of a cache's pages. For latents, V is K's
// tile.
struct alignas(16) AttendPart {
  TileTask k, v;  // for a tail, target is its layer and head in page 0, token 0
  uint32_t status;
  codecs::FormId k_form, v_form;  // a supported form
  bool is_tail;
};

// A work item of a block: some parts for some rows. In AttendList::kMerge the parts are slots of
// scratch.
struct AttendWork {
  uint32_t part_first, part_count;  // range in the list's parts
  uint32_t slot;                    // slot of scratch that receives the result
  uint32_t row_first;               // first of up to kAttendRows rows
  uint16_t queries;                 // its AttendQueries
  uint16_t head;                    // KV head, counted from the KV head of the first query head
};

struct alignas(16) AttendHeader {
  TaskList lists[kAttendLists];  // lists of work items
  // Bytes from the header.
  uint32_t queries_at, planes_at, works_at;
  uint32_t parts_at[kAttendPartLists];  // AffinePart in the lists up to kFp8Of64, else AttendPart
  // A slot of scratch has kAttendRows outputs, each with the width of the widest output, and then
  // their log sums.
  uint32_t slot_floats;
};

// Arguments of every attention kernel.
struct AttendArgs {
  const uint8_t* plan;  // on the device
  float* scratch;
  uint32_t* status;  // words as AttendPlan counts them: 0, or the largest Fault
  uint32_t list;
};

}  // namespace cairn::kernels
