// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans of attention over encoded images, at one layer. The host makes a plan from headers and
// directories alone. Kernels read coded tiles in place; nothing is decoded to memory. A plan does
// not depend on the values of queries. It stays valid while images, addresses and counts stay the
// same, that is, for all tokens that a sequence decodes between two blocks.
//
// Thread-safety: pure functions. They do not allocate, synchronize or throw.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "codecs/image/image.h"
#include "codecs/side/decode_inputs.h"
#include "codecs/types/error.h"
#include "kernels/attend_records.h"
#include "kernels/target.h"

namespace cairn::kernels {

inline constexpr uint32_t kAttendJobsMax = 256;
inline constexpr uint32_t kAttendImagesMax = 8192;  // limit for all jobs together
inline constexpr uint32_t kAttendPartsMax = 131072;
inline constexpr uint32_t kAttendWorksWanted = 512;  // enough to keep a device of 132 processors
                                                     // busy

// An image of a sequence, on the device.
struct AttendImage {
  const codecs::ImagePrefix* prefix = nullptr;  // parsed on the host
  const std::byte* image = nullptr;             // on the device, at a multiple of 16
  codecs::DecodeInputs side = {};               // the side object that the recipe needs, parsed on
                                                // the host
  const std::byte* side_object = nullptr;       // the side object's bytes on the device, at a
                                                // multiple of 16
};

// Attention of some query tokens of a sequence at one layer. It covers images, and a tail: tokens
// that are not encoded yet, in pages of the engine's cache. Queries have the images' dtype.
struct AttendJob {
  std::span<const AttendImage> images;      // images of one shape, in any order
  codecs::TileShape tile;                   // of the images and of the tail: kKv or kLatent
  uint16_t layer = 0;                       // index in the images' group
  uint16_t head_first = 0, head_count = 1;  // KV heads
  uint32_t query_heads = 0;                 // a multiple of head_count: head h reads KV head h /
                                            // (query_heads / head_count) of those heads
  uint32_t query_tokens = 1;                // several for a speculative draft
  uint32_t v_dim = 0;                       // only for latents, whose V is the first channels of K
  float scale = 1;                          // scale of the scores; positive
  const std::byte* queries = nullptr;  // on the device: [query_tokens][query_heads][k_dim], at a
                                       // multiple of 16; after RoPE, like K
  // Outputs are on the device, at multiples of 4:
  float* outputs = nullptr;              // [query_tokens][query_heads][v_dim]
  float* log_sums = nullptr;             // [query_tokens][query_heads]
  PagedView tail;                        // view of the layer and heads; ignored without tail tokens
  uint32_t tail_tokens_max = 0;          // up to 65535
  const int32_t* tail_tokens = nullptr;  // number of tail tokens, on the device, at a multiple of
                                         // 4; null: tail_tokens_max
  bool tail_ends_with_queries = false;   // the query tokens are the last tail tokens; each reads
                                         // only tokens up to itself
};

struct AttendPlan {
  uint32_t bytes = 0;
  // Status words of all jobs in order. A job has a word for each image, and one for a tail, whether
  // or not the job has a tail.
  uint32_t status_count = 0;
  uint64_t scratch_bytes = 0;
  std::array<uint32_t, kAttendLists> counts{};  // work items of each list
};

// Returns why images of the spec must be decoded before attention. Empty if they need not be
// decoded. Static storage.
[[nodiscard]] std::string_view WhyDecodeFirst(const codecs::ImageSpec& spec);

// Writes a plan for jobs into `buffer`, at a multiple of 16; sets *plan on kOk.
//   works_wanted  approximate number of work items into which the jobs are divided; at least 1
// Errors: kUnknownRecipe (WhyDecodeFirst() of an image has the reason), kTooLarge (more jobs,
// images or parts than a plan can hold), kInvalidSlice (an image lacks the layer or a head),
// kInvalidShape (an image has another shape than the job; K or V is wider than kAttendDimMax; or a
// count of heads or tokens, or an address, is invalid). kNoBank, kNoProfile and kTargetTooSmall
// have the same meaning as for MakeDecodePlan().
codecs::Error MakeAttendPlan(std::span<const AttendJob> jobs, uint32_t works_wanted,
                             std::span<std::byte> buffer, AttendPlan* plan);

// Returns the size of that plan, or 0 if it cannot be made.
[[nodiscard]] uint64_t AttendPlanBytes(std::span<const AttendJob> jobs, uint32_t works_wanted);

}  // namespace cairn::kernels
