// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decodes an image, or part of it, into source payload or to where a reader keeps it. Raw tiles and
// tiles in strips give their source bits; of `cairn`, `cairn-hot`, `patternkv` and `fp8`, their
// pages in docs/recipes/ have the rule. Of the others one rule holds: a token among the tile's rows
// is its source bits; any other element is code * scale + min, rounded to the dtype.
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

//   view    parsed; in bounds whatever its tiles hold. Values are those that were encoded if
//           VerifyTiles(view, slice) and this are kOk
//   slice   inside view.spec().slice (else kInvalidSlice)
//   target  at least SourceBytes(spec.tile, slice, spec.tokens) bytes (else kTargetTooSmall), any
//           alignment, no overlap with view. From 1 MiB on it is written past the caches where
//           whole cache lines allow it: a target at a multiple of 64 is fastest
//   inputs  what the recipe needs. Without its profile, kNoProfile; without its bank, kNoBank
// kBadTile: a tile in strips is none that an encoder writes, and the target in any state. Only
// decoding an entropy-coded stream shows whether it ends as it must.
// Same image gives the same values, bit for bit, on every Backend.
Error Decode(const Backend& backend, const ImageView& view, const Slice& slice,
             std::span<std::byte> target, const DecodeInputs& inputs = {});

// Part of an image, and where it is to go.
struct DecodeJob {
  const ImageView* view = nullptr;  // parsed
  Slice slice;                      // inside the image's
  TargetView target;                // of the slice; targets of jobs do not overlap
  DecodeInputs inputs = {};
};

// Verifies and decodes the tiles of all jobs, tile by tile, several strips at once. Tiles that lie
// in their target as in a payload are decoded there; others on `scratch`, from which their tokens
// are copied. Tiles of a view that is shared are copied to the scratch before they are looked at,
// and nothing else of them is read: they may change meanwhile, and what is verified is what is
// decoded. Whether they were those of the image until the end is the caller's to know.
//   scratch  ScratchBytes(jobs)
//   failed   may be null: the job that an error is of
// All jobs are checked before a byte is written: kInvalidSlice, CheckTarget()'s, kTargetTooSmall
// (the scratch), kNoProfile, kNoBank. After that the errors are VerifyTile()'s and Decode()'s, and
// targets of all jobs are in any state. Threads may share a long list of jobs: calls do not know of
// each other.
Error DecodeAll(const Backend& backend, std::span<const DecodeJob> jobs,
                std::span<std::byte> scratch, size_t* failed = nullptr);

// At most 256 KiB, or one tile; 512 KiB more, or one tile, where a view is shared. 0 where none is
// and all tiles lie in their targets as in a payload.
[[nodiscard]] uint64_t ScratchBytes(std::span<const DecodeJob> jobs);

}  // namespace cairn::codecs
