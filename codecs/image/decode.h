// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decodes an image, or part of it, into a source payload or into the reader's memory. Raw tiles and
// the strips of `exact` decode to their source elements. docs/recipes/ has the rules for `cairn`,
// `cairn-hot`, `patternkv` and `fp8`. All other recipes have one rule: a token that the tile stores
// as a row decodes to its source elements, and every other element decodes to code * scale + min,
// rounded to the dtype.
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

//   view    a parsed image. Its tiles may have any content: all accesses stay in bounds. If both
//           VerifyTiles(view, slice) and this function return kOk, the values are the encoded ones
//   slice   inside view.spec().slice (else kInvalidSlice)
//   target  at least SourceBytes(spec.tile, slice, spec.tokens) bytes (else kTargetTooSmall), at
//           any alignment, without overlap with view. If it has at least 1 MiB, it is written in
//           whole cache lines that bypass the caches, fastest if it is at a multiple of 64
//   inputs  the side object that the recipe needs (else kNoProfile, kNoBank)
// Other errors: kBadTile if no encoder writes such a strip. Only decoding shows whether an
// entropy-coded stream ends correctly. After an error the target is unspecified. The same image
// gives the same values, bit for bit, on every Backend.
Error Decode(const Backend& backend, const ImageView& view, const Slice& slice,
             std::span<std::byte> target, const DecodeInputs& inputs = {});

// Part of an image to decode, and its target.
struct DecodeJob {
  const ImageView* view = nullptr;  // parsed
  Slice slice;                      // inside the image's slice
  TargetView target;                // view of the slice; targets of jobs do not overlap
  DecodeInputs inputs = {};
};

// Verifies and decodes the tiles of all jobs, tile by tile, several strips at once. A tile that is
// contiguous in its target is decoded there. All others are decoded into `scratch`, and their
// tokens are copied from there. The memory of a shared view may change during the call. Its tiles
// are therefore copied to the scratch first, and only the copy is verified and decoded. Until the
// call returns, the caller must ensure that the memory of a shared view is not reused for anything
// but this image.
//   scratch  ScratchBytes(jobs)
//   failed   may be null; receives the index of the job that caused an error
// All jobs are checked before a byte is written. The errors of this check are kInvalidSlice, those
// of CheckTarget(), kTargetTooSmall (the scratch), kNoProfile and kNoBank. Later errors are those
// of VerifyTile() and Decode(), and the targets of all jobs are then unspecified. Calls are
// independent, so threads can divide a long list of jobs.
Error DecodeAll(const Backend& backend, std::span<const DecodeJob> jobs,
                std::span<std::byte> scratch, size_t* failed = nullptr);

// Returns the size of the scratch. It is at most 256 KiB or one tile, whichever is larger; if there
// are shared views, 512 KiB or one tile is added. It is 0 if no view is shared and all tiles are
// contiguous in their targets.
[[nodiscard]] uint64_t ScratchBytes(std::span<const DecodeJob> jobs);

}  // namespace cairn::codecs
