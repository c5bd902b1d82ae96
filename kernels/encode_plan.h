// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans of tiles to encode, and what becomes of them: the device writes tiles into slots, the host
// learns their bytes, rows and CRCs, and makes directories of them.
//
// Thread-safety: pure functions. Nothing allocates, synchronizes or throws.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/format/image_spec.h"
#include "codecs/types/error.h"
#include "kernels/plan.h"
#include "kernels/records.h"
#include "kernels/target.h"

namespace cairn::kernels {

// A slice of a block that lies on the device, and room for its tiles there.
struct EncodeJob {
  const codecs::ImageSpec* spec = nullptr;
  PagedView source;            // of spec->slice, without holes; only read
  std::byte* slots = nullptr;  // on the device, at a multiple of 16: SlotBytes(*spec)
};

struct EncodePlan {
  uint32_t bytes = 0;
  uint32_t tile_count = 0;  // of all jobs
};

// Kernels encode kivi:8, kivi:4 and kivi:2 of bf16, fp16 and fp32. The host encodes the others.
[[nodiscard]] bool IsEncodable(const codecs::ImageSpec& spec);

// Bytes of the slots of all tiles, raw, each at a multiple of 16, in the order of the directory.
// REQUIRES: Validate(spec) is kOk.
[[nodiscard]] uint64_t SlotBytes(const codecs::ImageSpec& spec);
// Where tile `index` starts among them.
[[nodiscard]] uint64_t SlotOffset(const codecs::ImageSpec& spec, uint32_t index);

// Writes a plan for jobs into `buffer`, at a multiple of 16; *plan is set on kOk. Results are in
// the order of jobs and, of a job, of its directory. Errors as MakeDecodePlan(), and those of
// Validate(spec).
codecs::Error MakeEncodePlan(std::span<const EncodeJob> jobs, std::span<std::byte> buffer,
                             EncodePlan* plan);

// A buffer of so many bytes suffices for every plan.
[[nodiscard]] uint64_t EncodePlanBytesMax();

// Writes header and directory of the image that a job's tiles make: tile i goes from its slot to
// where ParseImagePrefix() of this says that it lies.
//   results      of all tiles of the spec, in the order of the directory
//   prefix       PrefixBytes(tiles) at least, else kTargetTooSmall
//   image_bytes  of the whole image; set on kOk
// kTargetTooSmall: a tile's table has a page that is none, or a hole. kBadDirectory: results are
// none that a kernel writes.
codecs::Error WritePrefix(const codecs::ImageSpec& spec, std::span<const TileResult> results,
                          std::span<std::byte> prefix, uint64_t* image_bytes);

}  // namespace cairn::kernels
