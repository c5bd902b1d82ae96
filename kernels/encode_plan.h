// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans of images to encode. The device writes the tiles to their final places in the image. The
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

// A slice of a block that lies on the device, or an image of it, and where the new image is to go
// there.
struct EncodeJob {
  const codecs::ImageSpec* spec = nullptr;
  PagedView source = {};  // of spec->slice, without holes; only read
  // In place of a source: an image to code anew, which is only read. Its spec is *spec but for the
  // recipe, and what becomes of it is what the CPU makes of it, without other inputs:
  // - of raw, of kivi, ott, logquant or patternkv to fewer bits: codecs::Demote()
  // - of cairn to a higher level: codecs::DemoteSteps(), by the profile of `side`
  // - of logquant to the same recipe: codecs::Thin() for chain_tokens
  // exact is decoded first, into pages, and encoded from there.
  const StoredImage* stored = nullptr;
  std::byte* slots = nullptr;  // at a multiple of 16: SlotBytes(*spec), in any state afterwards
  std::byte* image = nullptr;  // at a multiple of 16: codecs::MaxImageBytes(*spec). Kernels write
                               // tiles, and leave header and directory to WritePrefix()
  // As codecs::EncodeInputs has them: scores, states, magnitudes and parents on the device, numbers
  // at multiples of their size.
  uint64_t chain_tokens = 0;
  const float* token_scores = nullptr;
  const uint8_t* token_states = nullptr;
  const float* query_magnitudes = nullptr;
  std::span<const StoredImage> parents = {};
  codecs::DecodeInputs side = {};          // what the spec names, parsed on the host
  const std::byte* side_object = nullptr;  // its bytes on the device, at a multiple of 16
};

struct EncodePlan {
  uint32_t bytes = 0;
  uint32_t image_count = 0;
  uint32_t tile_count = 0;                         // of all images
  std::array<uint32_t, kEncodeLists> counts = {};  // of items, images or tiles
};

// Returns the spec that the header of the job's image stores: codecs::RecordedSpec() of its spec
// and parents. It differs from the job's spec only if `ott` lacks a parent or the stored image was
// raw.
[[nodiscard]] codecs::ImageSpec RecordedSpec(const EncodeJob& job);

// Bytes of the slots of all tiles, in the order of the directory, each at a multiple of 16: the
// tile raw, and what its recipe's kernel keeps besides.
// REQUIRES: Validate(spec) is kOk.
[[nodiscard]] uint64_t SlotBytes(const codecs::ImageSpec& spec);

// Writes a plan for jobs into `buffer`, at a multiple of 16; *plan is set on kOk. Results are in
// the order of jobs and, of a job, of its directory. Errors as MakeDecodePlan(), and those of
// Validate(spec). Of a stored image: kMismatch, its spec differs in more than the recipe;
// kNotDemotable, none of those ways.
codecs::Error MakeEncodePlan(std::span<const EncodeJob> jobs, std::span<std::byte> buffer,
                             EncodePlan* plan);

// A buffer of so many bytes suffices for every plan.
[[nodiscard]] uint64_t EncodePlanBytesMax();

// Writes header and directory of the image whose tiles a job's kernels wrote.
//   spec         RecordedSpec() of the job
//   results      of all tiles of the spec, in the order of the directory
//   prefix       PrefixBytes(tiles) at least, else kTargetTooSmall
//   image_bytes  of the whole image; set on kOk
// kBadDirectory: results are none that kernels write for an image without a fault.
codecs::Error WritePrefix(const codecs::ImageSpec& spec, std::span<const TileResult> results,
                          std::span<std::byte> prefix, uint64_t* image_bytes);

}  // namespace cairn::kernels
