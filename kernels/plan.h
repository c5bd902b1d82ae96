// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans of decoding: the tasks of the kernels for a batch of images. The host makes a plan from
// headers and directories alone. A plan is one buffer without pointers into itself. So it can be
// built in host memory and copied to the device unchanged.
//
// Thread-safety: pure functions. They do not allocate, synchronize or throw.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/image/image.h"
#include "codecs/side/decode_inputs.h"
#include "codecs/types/error.h"
#include "codecs/types/shape.h"
#include "kernels/records.h"
#include "kernels/target.h"

namespace cairn::kernels {

inline constexpr uint32_t kPlanImagesMax = 64;
inline constexpr uint32_t kPlanTasksMax = 32768;
inline constexpr uint32_t kPlanProfilesMax = 4;

// Part of an image on the device, and its target.
struct DecodeJob {
  const codecs::ImagePrefix* prefix = nullptr;  // parsed on the host
  const std::byte* image = nullptr;             // on the device, at a multiple of 16
  codecs::Slice slice;                          // inside the image's slice
  PagedView target;                             // view of the slice
  codecs::DecodeInputs side = {};               // the side object that the recipe needs, parsed on
                                                // the host
  const std::byte* side_object = nullptr;       // the side object's bytes on the device, at a
                                                // multiple of 16
};

struct DecodePlan {
  uint32_t bytes = 0;
  uint32_t image_count = 0;
  std::array<uint32_t, kDecodeLists> counts{};  // tasks of each list
};

// Whether kernels check the CRCs of tiles. This is unnecessary if the host has checked them, or if
// the bytes were checked when they were copied.
enum class Verify : uint8_t { kNo, kYes };

// Writes a plan for jobs into `buffer`, at a multiple of 16; sets *plan on kOk. Errors: kTooLarge
// (more than kPlanImagesMax images, kPlanTasksMax tasks or kPlanProfilesMax profiles), kNoBank,
// kNoProfile (it is missing, or belongs to other images), kInvalidSlice, kInvalidShape (a table, a
// stride or an address of a job is invalid), kTargetTooSmall (a page below page_count exceeds
// layer_bytes, a slot exceeds the table, or the plan exceeds `buffer`).
codecs::Error MakeDecodePlan(std::span<const DecodeJob> jobs, Verify verify,
                             std::span<std::byte> buffer, DecodePlan* plan);

// Returns a buffer size that suffices for every plan.
[[nodiscard]] uint64_t DecodePlanBytesMax();

}  // namespace cairn::kernels
