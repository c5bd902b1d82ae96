// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans of decoding: the tasks of the kernels for a batch of images. The host makes a plan from
// headers and directories alone. It is one buffer without pointers into itself, so it is built in
// host memory and copied to the device as it is.
//
// Thread-safety: pure functions. Nothing allocates, synchronizes or throws.

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

// Part of an image that lies on the device, and where it is to go.
struct DecodeJob {
  const codecs::ImagePrefix* prefix = nullptr;  // parsed on the host
  const std::byte* image = nullptr;             // on the device, at a multiple of 16
  codecs::Slice slice;                          // inside the image's
  PagedView target;                             // of the slice
  codecs::DecodeInputs side = {};               // what the recipe needs, parsed on the host
  const std::byte* side_object = nullptr;       // its bytes on the device, at a multiple of 16
};

struct DecodePlan {
  uint32_t bytes = 0;
  uint32_t image_count = 0;
  std::array<uint32_t, kDecodeLists> counts{};  // of tasks
};

// Chooses whether kernels check the CRCs of tiles. Bytes that were copied under their CRC, or that
// the host has checked, need no second check.
enum class Verify : uint8_t { kNo, kYes };

// Writes a plan for jobs into `buffer`, at a multiple of 16; *plan is set on kOk.
// kTooLarge: more than kPlanImagesMax images, kPlanTasksMax tasks or kPlanProfilesMax profiles.
// kNoBank, kNoProfile: none, or one for other images. kInvalidSlice; kInvalidShape:
// a view's tables or strides, or the place of a job's bytes; kTargetTooSmall: a page below
// page_count reaches past layer_bytes, a slot past the table, or the plan past `buffer`.
codecs::Error MakeDecodePlan(std::span<const DecodeJob> jobs, Verify verify,
                             std::span<std::byte> buffer, DecodePlan* plan);

// A buffer of so many bytes suffices for every plan.
[[nodiscard]] uint64_t DecodePlanBytesMax();

}  // namespace cairn::kernels
