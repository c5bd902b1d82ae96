// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans of attention over encoded images, at one layer. The host makes them from headers and
// directories alone. Kernels read coded tiles in place; nothing is decoded to memory. A plan stays
// valid for any queries as long as images, places and counts stay the same: for all tokens that a
// sequence decodes between two blocks.
//
// Thread-safety: pure functions. Nothing allocates, synchronizes or throws.

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
inline constexpr uint32_t kAttendImagesMax = 8192;  // of all jobs
inline constexpr uint32_t kAttendPartsMax = 131072;
inline constexpr uint32_t kAttendWorksWanted = 512;  // that keep a device of 132 processors busy

// An image of a sequence, on the device.
struct AttendImage {
  const codecs::ImagePrefix* prefix = nullptr;  // parsed on the host
  const std::byte* image = nullptr;             // on the device, at a multiple of 16
  codecs::DecodeInputs side = {};               // what the recipe needs, parsed on the host
  const std::byte* side_object = nullptr;       // its bytes on the device, at a multiple of 16
};

// What some query tokens of a sequence attend to at a layer: images, and a raw tail that lies in
// pages of the engine's cache. Elements of queries are of the images' dtype.
struct AttendJob {
  std::span<const AttendImage> images;      // of one shape; in any order
  codecs::TileShape tile;                   // theirs, and that of the tail: kKv or kLatent
  uint16_t layer = 0;                       // of the images' group
  uint16_t head_first = 0, head_count = 1;  // KV heads
  uint32_t query_heads = 0;                 // a multiple of head_count: head h reads KV head
                                            // h / (query_heads / head_count) of those
  uint32_t query_tokens = 1;                // that ask at once, as a draft's do
  uint32_t v_dim = 0;  // of latents, whose V is the first channels of K; else not read
  float scale = 1;     // of scores; positive
  const std::byte* queries = nullptr;  // on the device: [query_tokens][query_heads][k_dim], at a
                                       // multiple of 16; after RoPE, as K is
  // On the device, at multiples of 4.
  float* outputs = nullptr;              // [query_tokens][query_heads][v_dim]
  float* log_sums = nullptr;             // [query_tokens][query_heads]
  PagedView tail;                        // of the layer and heads; unused without tail tokens
  uint32_t tail_tokens_max = 0;          // up to 65535
  const int32_t* tail_tokens = nullptr;  // on the device, at a multiple of 4: how many there are;
                                         // null: the most
  bool tail_ends_with_queries = false;   // query token i sees that far: no token of those behind
};

struct AttendPlan {
  uint32_t bytes = 0;
  // Job by job: of its images in their order, then of its tail, also where it has none.
  uint32_t status_count = 0;
  uint64_t scratch_bytes = 0;
  std::array<uint32_t, kAttendLists> counts{};  // of works
};

// Why images of the spec are not attended to as they are; empty where they are. Static storage.
[[nodiscard]] std::string_view WhyDecodeFirst(const codecs::ImageSpec& spec);

// Writes a plan for jobs into `buffer`, at a multiple of 16; *plan is set on kOk.
//   works_wanted  into about how many pieces the work is cut, whatever the jobs; 1 and more
// kUnknownRecipe: WhyDecodeFirst() of an image says why. kTooLarge: more jobs, images or parts than
// a plan has. kInvalidSlice: an image lacks the layer or a head. kInvalidShape: an image of another
// shape than the job's; K or V wider than kAttendDimMax; counts of heads or tokens; places.
// kNoBank, kNoProfile, kTargetTooSmall as MakeDecodePlan().
codecs::Error MakeAttendPlan(std::span<const AttendJob> jobs, uint32_t works_wanted,
                             std::span<std::byte> buffer, AttendPlan* plan);

// The bytes of that plan; 0 where there is none.
[[nodiscard]] uint64_t AttendPlanBytes(std::span<const AttendJob> jobs, uint32_t works_wanted);

}  // namespace cairn::kernels
