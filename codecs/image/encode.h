// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes the source payload of a slice into an image, and rearranges images without coding.
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

// Encodes a payload.
//
// - spec: what the payload is of, and its recipe. The header says RecordedSpec(spec, inputs).
// - source: exactly SourceBytes(spec.tile, spec.slice, spec.tokens) bytes.
//   Its order is layer, head, plane.
// - target: MaxImageBytes(spec) bytes always suffice. It may be as small as the image turns out to
//   be. It may not overlap source.
// - bytes: of the image; set on kOk. The rest of target is in any state.
// - inputs: what the recipe needs. Without its profile, kNoProfile; without its bank, kNoBank.
//
// Errors: those of Validate(spec); kSourceSize, also where an input has another number of values
// than the slice; kTargetTooSmall, with target in any state.
// The same spec, source and inputs give the same bytes on every Backend. Opaque kinds are kept raw
// under every recipe.
Error Encode(const Backend& backend, const ImageSpec& spec, std::span<const std::byte> source,
             std::span<std::byte> target, size_t* bytes, const EncodeInputs& inputs = {});

// The same of a slice where its writer keeps it.
//   source   of the spec's slice (else CheckTarget()'s error)
//   scratch  ScratchBytes(spec, source) (else kTargetTooSmall): tiles that do not lie as in a
//            payload are gathered there, a head at a time
Error Encode(const Backend& backend, const ImageSpec& spec, const TargetView& source,
             std::span<std::byte> scratch, std::span<std::byte> target, size_t* bytes,
             const EncodeInputs& inputs = {});
[[nodiscard]] uint64_t ScratchBytes(const ImageSpec& spec, const TargetView& source);

// The spec, but that ott is ott/local for a block that is not the first of its chain where
// inputs.parents do not have the slice in ott, or have some of it in ott/local.
[[nodiscard]] ImageSpec RecordedSpec(const ImageSpec& spec, const EncodeInputs& inputs);

// An image of `slice` made of tiles of `sources` by one copy: sub-slices of one image, or several
// images of one block put together. Where two sources have a tile, the first wins. Tile bytes and
// their CRCs are copied as they are, unchecked.
//
// - sources: images of one block that differ in nothing but their slices (else kMismatch).
// - slice: covered by their slices together (else kIncomplete).
// - target: GatheredBytes() suffices (else kTargetTooSmall). It may not overlap any source.
//
// A whole encode of `slice` and the gathering of encodes of its parts give the same bytes.
// Errors besides: kInvalidSlice, kTooLarge (the gathered image would pass a limit of
// Validate(ImageSpec)).
Error Gather(std::span<const ImageView> sources, const Slice& slice, std::span<std::byte> target,
             size_t* bytes);

// The bytes Gather() will write. Errors as Gather().
Error GatheredBytes(std::span<const ImageView> sources, const Slice& slice, uint64_t* bytes);

// A run of an image's bytes, and where a reader has put them.
struct ImagePart {
  uint64_t offset = 0;  // in the image
  uint64_t bytes = 0;
  uint64_t at = 0;  // in the reader's buffer
};

// Does what Gather() does for one image, of which only header, directory and the parts with the
// tiles of `slice` have been read. The result overwrites the parts in place.
//
// - source: header and directory. They may not overlap target.
// - parts: ascending by both offsets, and none overlaps the next. Together they have every tile,
//   each whole in one of them (else kIncomplete).
// - target: the parts lie in it, the first behind the header and directory of an image of `slice`
//   (else kTargetTooSmall).
//
// Errors besides: kInvalidSlice.
Error GatherParts(const ImagePrefix& source, const Slice& slice, std::span<const ImagePart> parts,
                  std::span<std::byte> target, size_t* bytes);

}  // namespace cairn::codecs
