// SPDX-License-Identifier: Apache-2.0
#include "codecs/format/image_header.h"
#include "codecs/image/encode.h"

namespace cairn::codecs {
namespace {

// The spec that all sources share, with the slice asked for.
Error GatheredSpec(std::span<const ImageView> sources, const Slice& slice, ImageSpec* spec) {
  if (slice.IsEmpty()) return Error::kInvalidSlice;
  if (sources.empty()) return Error::kIncomplete;
  ImageSpec shared = sources.front().spec();
  shared.slice = slice;
  for (const ImageView& source : sources) {
    ImageSpec other = source.spec();
    other.slice = slice;
    if (other != shared) return Error::kMismatch;
  }
  *spec = shared;
  return Validate(shared);
}

// The first source that has the tiles of this layer and head, or null.
const ImageView* FindSource(std::span<const ImageView> sources, uint32_t layer, uint32_t head) {
  const Slice wanted{static_cast<uint16_t>(layer), 1, static_cast<uint16_t>(head), 1};
  for (const ImageView& source : sources) {
    if (source.spec().slice.Contains(wanted)) return &source;
  }
  return nullptr;
}

// Calls visit(view, index) for every tile of `slice` in the order of an image; kIncomplete where no
// source has it.
template <typename Visit>
Error ForEachTile(std::span<const ImageView> sources, const Slice& slice, Visit visit) {
  const uint32_t planes = PlaneCount(sources.front().spec().tile.kind);
  for (uint32_t i = 0; i < slice.layer_count; ++i) {
    for (uint32_t j = 0; j < slice.head_count; ++j) {
      const uint32_t layer = slice.layer_first + i;
      const uint32_t head = slice.head_first + j;
      const ImageView* source = FindSource(sources, layer, head);
      if (source == nullptr) return Error::kIncomplete;
      const uint32_t first =
          source->IndexOf({static_cast<uint16_t>(layer), static_cast<uint16_t>(head), 0});
      for (uint32_t plane = 0; plane < planes; ++plane) visit(*source, first + plane);
    }
  }
  return Error::kOk;
}

}  // namespace

Error GatheredBytes(std::span<const ImageView> sources, const Slice& slice, uint64_t* bytes) {
  ImageSpec spec;
  if (const Error error = GatheredSpec(sources, slice, &spec); error != Error::kOk) return error;
  uint64_t total = PrefixBytes(TileCount(spec.tile, spec.slice));
  const Error error = ForEachTile(sources, slice, [&](const ImageView& source, uint32_t index) {
    total += source.Tile(index).bytes;
  });
  if (error != Error::kOk) return error;
  *bytes = total;
  return Error::kOk;
}

Error Gather(std::span<const ImageView> sources, const Slice& slice, std::span<std::byte> target,
             size_t* bytes) {
  uint64_t total = 0;
  if (const Error error = GatheredBytes(sources, slice, &total); error != Error::kOk) return error;
  if (target.size() < total) return Error::kTargetTooSmall;
  ImageSpec spec = sources.front().spec();
  spec.slice = slice;
  ImageWriter writer(spec, target);
  const Error error = ForEachTile(sources, slice, [&](const ImageView& source, uint32_t index) {
    static_cast<void>(writer.Copy(source.Tile(index),
                                  source.TileContent(index)));  // there is room for all of them
  });
  if (error != Error::kOk) return error;
  *bytes = writer.Finish();
  return Error::kOk;
}

}  // namespace cairn::codecs
