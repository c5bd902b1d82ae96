// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decodes an image, or part of it, into a source payload or into the reader's memory. Raw tiles and
// the strips of `exact` decode to their source bits. docs/recipes/ has the rules for `cairn`,
// `cairn-hot`, `patternkv` and `fp8`. All other recipes have one rule: a token among the tile's
// rows decodes to its source bits, and every other element to code * scale + min, rounded to the
// dtype.
//
// Thread-safety: Thread-safe. Nothing allocates, keeps a pointer or throws.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/backend/backend.h"
#include "codecs/image/image.h"
#include "codecs/image/inputs.h"
#include "codecs/types/error.h"
#include "codecs/types/target_view.h"

namespace cairn::codecs {

//   view parsed; in bounds whatever its tiles hold. If VerifyTiles(view, slice) and this return
//   kOk, the values are the encoded ones
//   slice   inside view.spec().slice (else kInvalidSlice)
//   target  at least SourceBytes(spec.tile, slice, spec.tokens) bytes (else kTargetTooSmall), any
//           alignment, no overlap with view. From 1 MiB on it is written past the caches where
//           whole cache lines allow it: a target at a multiple of 64 is fastest
//   inputs  what the recipe needs. Without its profile, kNoProfile; without its bank, kNoBank
// Errors also: kBadTile, with the target unspecified, if no encoder writes such a strip: only
// decoding an entropy-coded stream shows whether it ends as it must. The same image gives the same
// values, bit for bit, on every Backend.
Error Decode(const Backend& backend, const ImageView& view, const Slice& slice,
             std::span<std::byte> target, const DecodeInputs& inputs = {});

// Part of an image, and its target.
struct DecodeJob {
  const ImageView* view = nullptr;  // parsed
  Slice slice;                      // inside the image's slice
  TargetView target;                // view of the slice; targets of jobs do not overlap
  DecodeInputs inputs = {};
};

// Verifies and decodes the tiles of all jobs, tile by tile, several strips at once. A tile that is
// contiguous in its target is decoded there. All others are decoded into `scratch`, and their
// tokens are copied from there. The memory of a shared view may change meanwhile. Its tiles are
// therefore copied to the scratch first, and only the copy is verified and decoded. The caller must
// make sure that this memory belonged to the image until the end.
//   scratch  ScratchBytes(jobs)
//   failed   may be null; receives the job that an error belongs to
// All jobs are checked before a byte is written: kInvalidSlice, the errors of CheckTarget(),
// kTargetTooSmall (the scratch), kNoProfile, kNoBank. Later errors are those of VerifyTile() and
// Decode(), and the targets of all jobs are then unspecified. Threads may divide a long list of
// jobs: calls are independent.
Error DecodeAll(const Backend& backend, std::span<const DecodeJob> jobs,
                std::span<std::byte> scratch, size_t* failed = nullptr);

// Returns the size of the scratch: at most 256 KiB or one tile, and for shared views 512 KiB or one
// tile more. It is 0 if no view is shared and all tiles are contiguous in their targets.
[[nodiscard]] uint64_t ScratchBytes(std::span<const DecodeJob> jobs);

}  // namespace cairn::codecs
