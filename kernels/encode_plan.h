// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans of images to encode. The device writes the tiles to their final offsets in the image. The
// host then reads their sizes, rows and CRCs and writes header and directory.
//
// Thread-safety: pure functions. Nothing allocates, synchronizes or throws.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/format/image_spec.h"
#include "codecs/image/image.h"
#include "codecs/side/decode_inputs.h"
#include "codecs/types/error.h"
#include "kernels/plan.h"
#include "kernels/records.h"
#include "kernels/target.h"

namespace cairn::kernels {

// An image on the device.
struct StoredImage {
  const codecs::ImagePrefix* prefix = nullptr;  // parsed on the host
  const std::byte* image = nullptr;             // its verified bytes, at a multiple of 16
};

// A slice to encode, and the address of the new image on the device. The source is a slice of a
// block on the device, or a stored image of the slice.
struct EncodeJob {
  const codecs::ImageSpec* spec = nullptr;
  PagedView source = {};  // view of spec->slice, without holes; only read
  // If not null, an image to recode instead of a source. It is only read. Its spec is *spec except
  // for the recipe. The result equals the following result of the CPU:
  // - from raw to any recipe, or from kivi, ott, logquant or patternkv to fewer bits:
  //   codecs::Demote() without other inputs
  // - from cairn to a higher level: codecs::DemoteSteps(), with the profile of `side`
  // - from logquant to the same recipe: codecs::Thin() for chain_tokens
  // An image of exact must first be decoded into pages and encoded from there.
  const StoredImage* stored = nullptr;
  std::byte* slots = nullptr;  // at a multiple of 16: SlotBytes(*spec); the content afterwards is
                               // unspecified
  std::byte* image = nullptr;  // at a multiple of 16: codecs::MaxImageBytes(*spec). Kernels write
                               // the tiles; WritePrefix() writes header and directory
  // The members below are those of codecs::EncodeInputs, but scores, states, magnitudes and parents
  // are on the device. REQUIRES: numbers are at multiples of their size.
  uint64_t chain_tokens = 0;
  const float* token_scores = nullptr;
  const uint8_t* token_states = nullptr;
  const float* query_magnitudes = nullptr;
  std::span<const StoredImage> parents = {};
  codecs::DecodeInputs side = {};          // the side object that the spec names, parsed on the
                                           // host
  const std::byte* side_object = nullptr;  // the side object's bytes on the device, at a multiple
                                           // of 16
};

struct EncodePlan {
  uint32_t bytes = 0;
  uint32_t image_count = 0;
  uint32_t tile_count = 0;                         // number of tiles of all images
  std::array<uint32_t, kEncodeLists> counts = {};  // items, images or tiles
};

// Returns the spec that the header of the job's image stores: codecs::RecordedSpec() of its spec
// and parents. It equals the job's spec except in two cases: the recipe is `ott` and a parent is
// missing, or the stored image was raw.
[[nodiscard]] codecs::ImageSpec RecordedSpec(const EncodeJob& job);

// Returns the total size of the slots of all tiles. Slots are in the order of the directory, each
// at a multiple of 16. A slot holds the raw tile and the temporary data of its recipe's kernel.
// REQUIRES: Validate(spec) is kOk.
[[nodiscard]] uint64_t SlotBytes(const codecs::ImageSpec& spec);

// Writes a plan for jobs into `buffer`, at a multiple of 16; sets *plan on kOk. Results are in the
// order of jobs and, within a job, in the order of its directory. Errors: those of MakeDecodePlan()
// and Validate(spec). For a stored image: kMismatch (its spec differs in more than the recipe),
// kNotDemotable (not one of the conversions above).
codecs::Error MakeEncodePlan(std::span<const EncodeJob> jobs, std::span<std::byte> buffer,
                             EncodePlan* plan);

// Returns a buffer size that suffices for every plan.
[[nodiscard]] uint64_t EncodePlanBytesMax();

// Writes the header and directory of an image whose tiles a job's kernels have written.
//   spec         RecordedSpec() of the job
//   results      one per tile of the spec, in the order of the directory
//   prefix       at least PrefixBytes(tiles), else kTargetTooSmall
//   image_bytes  size of the whole image; set on kOk
// Errors: kBadDirectory if kernels cannot have written these results for an image without a fault.
codecs::Error WritePrefix(const codecs::ImageSpec& spec, std::span<const TileResult> results,
                          std::span<std::byte> prefix, uint64_t* image_bytes);

}  // namespace cairn::kernels
