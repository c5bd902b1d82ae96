// SPDX-License-Identifier: Apache-2.0
#include "codecs/checksum/checksum.h"
#include "codecs/format/image_header.h"
#include "codecs/image/crc_join.h"
#include "codecs/image/encode.h"

namespace cairn::codecs {
namespace {

// Computes the spec that all sources share, with the requested slice.
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

// Returns the first source that has the slice, or null.
const ImageView* FindSource(std::span<const ImageView> sources, const Slice& slice) {
  for (const ImageView& source : sources) {
    if (source.spec().slice.Contains(slice)) return &source;
  }
  return nullptr;
}

// Calls visit(view, index) for every tile of an image of this spec, in order. Returns kIncomplete
// if no source has a tile.
template <typename Visit>
Error ForEachTile(std::span<const ImageView> sources, const ImageSpec& spec, Visit visit) {
  const Tiling tiling = TilingOf(spec);
  return tiling.ForEach(spec.slice, [&](uint32_t index) {
    const TileArea area = tiling.AreaOf(index);
    const ImageView* source = FindSource(sources, area.slice);
    if (source == nullptr) return Error::kIncomplete;
    visit(*source,
          source->IndexOf({area.slice.layer_first, area.slice.head_first, area.plane_first}));
    return Error::kOk;
  });
}

}  // namespace

Error GatheredBytes(std::span<const ImageView> sources, const Slice& slice, uint64_t* bytes) {
  ImageSpec spec;
  if (const Error error = GatheredSpec(sources, slice, &spec); error != Error::kOk) return error;
  uint64_t total = PrefixBytes(TilingOf(spec).count());
  const Error error = ForEachTile(sources, spec, [&](const ImageView& source, uint32_t index) {
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
  const Error error = ForEachTile(sources, spec, [&](const ImageView& source, uint32_t index) {
    static_cast<void>(writer.Copy(source.Tile(index),
                                  source.TileContent(index)));  // there is room for all of them
  });
  if (error != Error::kOk) return error;
  *bytes = writer.Finish();
  return Error::kOk;
}

uint64_t GatheredPrefixBytes(const ImagePrefix& source, const Slice& slice) {
  ImageSpec spec = source.spec();
  spec.slice = slice;
  return PrefixBytes(TilingOf(spec).count());
}

Error GatherInPlace(std::span<const ImageView> sources, const Slice& slice,
                    std::span<std::byte> prefix, std::span<std::span<const std::byte>> places,
                    PlacedImage* image) {
  ImageSpec spec;
  if (const Error error = GatheredSpec(sources, slice, &spec); error != Error::kOk) return error;
  const uint64_t prefix_bytes = PrefixBytes(TilingOf(spec).count());
  if (prefix.size() < prefix_bytes) return Error::kTargetTooSmall;
  ImageWriter writer(spec, prefix.first(prefix_bytes));
  CrcJoin tiles;
  size_t count = 0;
  bool fits = true;
  const Error error = ForEachTile(sources, spec, [&](const ImageView& source, uint32_t index) {
    const TileEntry tile = source.Tile(index);
    const std::span<const std::byte> content = source.TileContent(index);
    std::span<const std::byte>* last = count == 0 ? nullptr : &places[count - 1];
    if (last != nullptr && last->data() + last->size() == content.data()) {
      *last = {last->data(), last->size() + content.size()};
    } else if (fits = fits && count < places.size(); fits) {
      places[count++] = content;
    }
    tiles.Append(tile.crc, tile.bytes);
    writer.Commit(tile.bytes, tile.crc, tile.rows, tile.form);
  });
  if (error != Error::kOk) return error;
  if (!fits) return Error::kTooLarge;
  const uint64_t bytes = writer.Finish();
  CrcJoin join;
  join.Append(Crc32c(prefix.first(prefix_bytes)), prefix_bytes);
  join.Append(tiles.crc(), bytes - prefix_bytes);
  *image = {prefix.first(prefix_bytes), places.first(count), bytes, join.crc()};
  return Error::kOk;
}

Error GatherParts(const ImagePrefix& source, const Slice& slice, std::span<const ImagePart> parts,
                  std::span<std::byte> target, size_t* bytes) {
  if (slice.IsEmpty() || !source.spec().slice.Contains(slice)) return Error::kInvalidSlice;
  ImageSpec spec = source.spec();
  spec.slice = slice;
  uint64_t end = PrefixBytes(TilingOf(spec).count());  // end of the part that may be overwritten
  for (const ImagePart& part : parts) {
    if (part.at < end || part.at > target.size() || part.bytes > target.size() - part.at) {
      return Error::kTargetTooSmall;
    }
    end = part.at + part.bytes;
  }
  // Each tile moves to a lower offset, after the tiles that have already moved.
  ImageWriter writer(spec, target);
  auto part = parts.begin();
  const Error error = source.tiling().ForEach(slice, [&](uint32_t index) {
    const TileEntry tile = source.Tile(index);
    while (part != parts.end() && tile.offset >= part->offset + part->bytes) ++part;
    if (part == parts.end() || tile.offset < part->offset ||
        tile.bytes > part->offset + part->bytes - tile.offset) {
      return Error::kIncomplete;
    }
    return writer.Copy(tile, target.subspan(part->at + tile.offset - part->offset, tile.bytes));
  });
  if (error != Error::kOk) return error;
  *bytes = writer.Finish();
  return Error::kOk;
}

}  // namespace cairn::codecs
