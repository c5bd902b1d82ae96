// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes the source payload of a slice into an image. Also rearranges images without coding.
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
// - spec: the shape and position of the payload, and its recipe. The header stores
//   RecordedSpec(spec, inputs).
// - source: exactly SourceBytes(spec.tile, spec.slice, spec.tokens) bytes, in the order layer,
//   head, plane.
// - target: MaxImageBytes(spec) bytes always suffice. It may be as small as the resulting image. It
//   may not overlap source.
// - bytes: size of the image; set on kOk. The rest of target is unspecified.
// - inputs: the inputs that the recipe needs. Errors: kNoProfile, kNoBank if one is missing.
//
// Errors: those of Validate(spec); kSourceSize, also if the size of an input does not match the
// slice; kTargetTooSmall, with target unspecified. One overlap is allowed: the source may lie in
// the last MaxImageBytes() - RawPrefixBytes() bytes of the target, see RawPrefixBytes(). The same
// spec, source and inputs give the same bytes on every Backend. Every recipe stores opaque kinds
// raw.
Error Encode(const Backend& backend, const ImageSpec& spec, std::span<const std::byte> source,
             std::span<std::byte> target, size_t* bytes, const EncodeInputs& inputs = {});

// Returns the offset of the source elements in a `raw` image of the slice, if they are contiguous
// there. Such an image can be made around its source, without a copy. Returns 0 if they are not
// contiguous, because tiles are padded. REQUIRES: Validate(spec) is kOk.
[[nodiscard]] uint64_t RawPrefixBytes(const ImageSpec& spec);

// Like the Encode() above, for source elements that lie in the writer's memory with any strides.
//   source   has the spec's slice (else CheckTarget()'s error)
//   scratch  ScratchBytes(spec, source) (else kTargetTooSmall). Tiles that are not contiguous are
//            gathered there, one head at a time
Error Encode(const Backend& backend, const ImageSpec& spec, const TargetView& source,
             std::span<std::byte> scratch, std::span<std::byte> target, size_t* bytes,
             const EncodeInputs& inputs = {});
[[nodiscard]] uint64_t ScratchBytes(const ImageSpec& spec, const TargetView& source);

// Returns the spec that the image's header stores. This is `spec`, with one exception. With the
// recipe ott, a block that is not the first of its chain needs its parents. If inputs.parents do
// not cover the slice with images of ott, or some of them are of ott/local, ott becomes ott/local.
[[nodiscard]] ImageSpec RecordedSpec(const ImageSpec& spec, const EncodeInputs& inputs);

// Makes an image of `slice` from tiles of `sources`, with one copy. The sources are sub-slices of
// one image, or several images of one block. If two sources have the same tile, the first one is
// used. Tile bytes and their CRCs are copied unchecked.
//
// - sources: images of one block that differ only in their slices (else kMismatch).
// - slice: the sources' slices together cover it (else kIncomplete).
// - target: GatheredBytes() suffices (else kTargetTooSmall). It may not overlap any source.
//
// If the parts of a slice are encoded and then gathered, the bytes equal those of encoding the
// whole slice. Other errors: kInvalidSlice, kTooLarge (the gathered image would exceed a limit of
// Validate(ImageSpec)).
Error Gather(std::span<const ImageView> sources, const Slice& slice, std::span<std::byte> target,
             size_t* bytes);

// Sets *bytes to the size of the image that Gather() makes. Errors: those of Gather().
Error GatheredBytes(std::span<const ImageView> sources, const Slice& slice, uint64_t* bytes);

// An image of a slice whose tiles stay in their sources.
struct PlacedImage {
  std::span<std::byte> prefix;                   // header and directory
  std::span<std::span<const std::byte>> places;  // the tiles, in order
  uint64_t bytes = 0;                            // size of the image: prefix and tiles
  uint32_t crc32c = 0;                           // of the image, if no tile is damaged
};

// Does the same as Gather(), but copies and reads no tile: only header and directory are written.
// Tiles that are adjacent in memory have one place.
//
// - prefix: receives header and directory. GatheredPrefixBytes() suffice (else kTargetTooSmall).
// - places: receives the places of the tiles (else kTooLarge: there are more).
// - image: borrows the parts of `prefix` and `places` that were written, and sources; set on kOk.
//
// Other errors: those of Gather().
Error GatherInPlace(std::span<const ImageView> sources, const Slice& slice,
                    std::span<std::byte> prefix, std::span<std::span<const std::byte>> places,
                    PlacedImage* image);
// Returns the size of header and directory of an image of `slice` that is gathered from `source`.
// REQUIRES: the slice is not empty.
[[nodiscard]] uint64_t GatheredPrefixBytes(const ImagePrefix& source, const Slice& slice);

// A range of an image's bytes, and its offset in a reader's buffer.
struct ImagePart {
  uint64_t offset = 0;  // in the image
  uint64_t bytes = 0;
  uint64_t at = 0;  // in the reader's buffer
};

// Does the same as Gather() for one image, of which a reader has read only the header, the
// directory, and the parts with the tiles of `slice`. The result overwrites the parts in place.
//
// - source: header and directory. They may not overlap target.
// - parts: in ascending order of both offsets, and not overlapping. Each tile lies completely in
//   one of them (else kIncomplete).
// - target: contains the parts. The first part lies after the room for the header and directory of
//   an image of `slice` (else kTargetTooSmall).
//
// Other errors: kInvalidSlice.
Error GatherParts(const ImagePrefix& source, const Slice& slice, std::span<const ImagePart> parts,
                  std::span<std::byte> target, size_t* bytes);

}  // namespace cairn::codecs
