// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/image.h"

#include <algorithm>
#include <iterator>

#include "codecs/format/image_header.h"
#include "codecs/format/recipe_fields.h"
#include "codecs/forms/form.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

// Checks magic, version and flags, and that the header is complete.
Error CheckStart(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) return Error::kTruncated;
  const std::byte* base = bytes.data();
  if (Load<uint32_t>(base + header::kMagic) != kImageMagic) return Error::kBadMagic;
  if (Load<uint16_t>(base + header::kVersion) != kImageVersion) return Error::kBadVersion;
  if (Load<uint16_t>(base + header::kHeaderBytesField) != kHeaderBytes) return Error::kBadHeader;
  if (Load<uint32_t>(base + header::kFlags) != 0) return Error::kBadFlags;
  return Error::kOk;
}

// Loads the recipe, and checks that the bytes after the side objects are zero.
Error LoadCoding(const std::byte* base, ImageSpec* spec) {
  const std::span<const std::byte, kRecipeFieldsBytes> fields(base + header::kRecipeId,
                                                              kRecipeFieldsBytes);
  if (const Error error = LoadRecipe(fields, &spec->recipe); error != Error::kOk) return error;
  const size_t end = header::kSideObjects + spec->side_object_count * sizeof(Digest);
  return IsZero(base + end, kHeaderBytes - end) ? Error::kOk : Error::kBadPadding;
}

Error LoadSpec(const std::byte* base, ImageSpec* spec) {
  spec->space = Load<Digest>(base + header::kSpace);
  spec->key = Load<Digest>(base + header::kKey);
  spec->group = Load<uint16_t>(base + header::kGroup);
  spec->tile = {Load<GroupKind>(base + header::kKind), Load<DType>(base + header::kDType),
                Load<uint32_t>(base + header::kKDim), Load<uint32_t>(base + header::kVDim)};
  spec->slice = {
      Load<uint16_t>(base + header::kLayerFirst), Load<uint16_t>(base + header::kLayerCount),
      Load<uint16_t>(base + header::kHeadFirst), Load<uint16_t>(base + header::kHeadCount)};
  if (!IsZero(base + header::kUnitLayers, 4)) return Error::kUnknownUnit;
  spec->tokens = Load<uint16_t>(base + header::kTokens);
  spec->first_position = Load<uint64_t>(base + header::kFirstPosition);
  spec->domain = Load<Domain>(base + header::kDomain);
  spec->side_object_count = Load<uint8_t>(base + header::kSideObjectCount);
  if (spec->side_object_count > kSideObjectsMax) return Error::kBadHeader;
  for (size_t i = 0; i < spec->side_object_count; ++i) {
    spec->side_objects[i] = Load<Digest>(base + header::kSideObjects + i * sizeof(Digest));
  }
  if (const Error error = LoadCoding(base, spec); error != Error::kOk) return error;
  return Validate(*spec) == Error::kOk ? Error::kOk : Error::kBadHeader;
}

// Checks that every entry is the one that its form computes, that tiles are consecutive, and that
// the last tile ends the image.
Error CheckDirectory(const ImageSpec& spec, const std::byte* entries, uint32_t tile_count,
                     uint64_t image_bytes) {
  uint64_t offset = PrefixBytes(tile_count);
  const Tiling tiling = TilingOf(spec);
  for (uint32_t i = 0; i < tile_count; ++i, entries += kDirectoryEntryBytes) {
    const auto layout = LayoutOf(GeometryOf(spec, tiling.AreaOf(i).plane_first), spec.recipe,
                                 Load<uint16_t>(entries + directory::kForm),
                                 Load<uint16_t>(entries + directory::kRows),
                                 Load<uint32_t>(entries + directory::kBytes));
    if (!layout.has_value() || Load<uint32_t>(entries + directory::kBytes) != layout->bytes ||
        uint64_t{Load<uint32_t>(entries + directory::kOffset)} * kSectionAlignment != offset) {
      return Error::kBadDirectory;
    }
    offset += layout->bytes;
  }
  return offset == image_bytes ? Error::kOk : Error::kBadDirectory;
}

}  // namespace

Error PeekImageBytes(std::span<const std::byte> bytes, uint64_t* image_bytes) {
  if (const Error error = CheckStart(bytes); error != Error::kOk) return error;
  const auto stated = Load<uint64_t>(bytes.data() + header::kImageBytes);
  if (stated < kHeaderBytes || stated > kImageBytesMax) return Error::kBadHeader;
  *image_bytes = stated;
  return Error::kOk;
}

uint32_t PeekDirectoryCrc(std::span<const std::byte> header) {
  return Load<uint32_t>(header.data() + header::kCrc);
}

Error ParseImagePrefix(std::span<const std::byte> bytes, ImagePrefix* prefix) {
  ImagePrefix parsed;
  if (const Error error = PeekImageBytes(bytes, &parsed.image_bytes_); error != Error::kOk) {
    return error;
  }
  const std::byte* base = parsed.base_ = bytes.data();
  if (const Error error = LoadSpec(base, &parsed.spec_); error != Error::kOk) return error;
  parsed.tile_count_ = Load<uint32_t>(base + header::kTileCount);
  if (parsed.tile_count_ != TilingOf(parsed.spec_).count()) {
    return Error::kBadHeader;
  }
  const uint64_t prefix_bytes = PrefixBytes(parsed.tile_count_);
  if (prefix_bytes > parsed.image_bytes_) return Error::kBadHeader;
  if (prefix_bytes > bytes.size()) return Error::kTruncated;
  parsed.directory_crc_ = Load<uint32_t>(base + header::kCrc);
  if (PrefixCrc(bytes.first(prefix_bytes)) != parsed.directory_crc_) return Error::kBadChecksum;
  if (const Error error = CheckDirectory(parsed.spec_, base + kHeaderBytes, parsed.tile_count_,
                                         parsed.image_bytes_);
      error != Error::kOk) {
    return error;
  }
  *prefix = parsed;
  return Error::kOk;
}

Error ParseImage(std::span<const std::byte> bytes, ImageView* view) {
  uint64_t image_bytes = 0;
  if (const Error error = PeekImageBytes(bytes, &image_bytes); error != Error::kOk) return error;
  if (image_bytes > bytes.size()) return Error::kTruncated;
  ImageView parsed;
  if (const Error error = ParseImagePrefix(bytes, &parsed); error != Error::kOk) return error;
  parsed.bytes_ = bytes.first(image_bytes);
  *view = parsed;
  return Error::kOk;
}

Error PeekPrefixBytes(std::span<const std::byte> bytes, uint64_t* prefix_bytes) {
  if (const Error error = CheckStart(bytes); error != Error::kOk) return error;
  const auto tile_count = Load<uint32_t>(bytes.data() + header::kTileCount);
  if (tile_count > kTilesMax) return Error::kBadHeader;
  *prefix_bytes = PrefixBytes(tile_count);
  return Error::kOk;
}

Error ParseSharedImage(std::span<const std::byte> prefix, std::span<const std::byte> bytes,
                       ImageView* view) {
  ImageView parsed;
  if (const Error error = ParseImagePrefix(prefix, &parsed); error != Error::kOk) return error;
  if (parsed.image_bytes() > bytes.size()) return Error::kTruncated;
  parsed.bytes_ = bytes.first(parsed.image_bytes());
  parsed.is_shared_ = true;
  *view = parsed;
  return Error::kOk;
}

Error ParseSharedImage(std::span<const std::byte> prefix, std::span<const SharedPart> parts,
                       ImageView* view) {
  ImageView parsed;
  if (const Error error = ParseImagePrefix(prefix, &parsed); error != Error::kOk) return error;
  uint64_t end = PrefixBytes(parsed.tile_count());
  if (prefix.size() != end || parts.empty()) return Error::kTruncated;
  for (const SharedPart& part : parts) {
    if (part.offset != end || part.bytes.empty() ||
        part.bytes.size() > parsed.image_bytes() - end) {
      return Error::kTruncated;
    }
    end += part.bytes.size();
  }
  if (end != parsed.image_bytes()) return Error::kTruncated;
  auto part = parts.begin();
  for (uint32_t i = 0; i < parsed.tile_count(); ++i) {
    // The directory has the tiles in order, and the last one ends where the last part does.
    const TileEntry tile = parsed.Tile(i);
    while (part != parts.end() && tile.offset >= part->offset + part->bytes.size()) ++part;
    if (part == parts.end() || tile.bytes > part->offset + part->bytes.size() - tile.offset)
      return Error::kIncomplete;
  }
  parsed.parts_ = parts;
  parsed.is_shared_ = true;
  *view = parsed;
  return Error::kOk;
}

TileEntry ImagePrefix::Tile(uint32_t index) const {
  const std::byte* entry = base_ + PrefixBytes(index);
  return {uint64_t{Load<uint32_t>(entry + directory::kOffset)} * kSectionAlignment,
          Load<uint32_t>(entry + directory::kBytes), Load<uint32_t>(entry + directory::kCrc),
          Load<uint16_t>(entry + directory::kRows), Load<uint16_t>(entry + directory::kForm)};
}

std::span<const std::byte> ImageView::TileContent(uint32_t index) const {
  const TileEntry entry = Tile(index);
  return parts_.empty() ? bytes_.subspan(entry.offset, entry.bytes)
                        : InParts(entry.offset, entry.bytes);
}

// REQUIRES: the bytes lie in one part.
std::span<const std::byte> ImageView::InParts(uint64_t offset, uint64_t bytes) const {
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), offset,
                       [](uint64_t value, const SharedPart& part) { return value < part.offset; });
  const SharedPart& part = *std::prev(after);
  return part.bytes.subspan(offset - part.offset, bytes);
}

TileId ImagePrefix::IdOf(uint32_t index) const {
  const TileArea area = tiling().AreaOf(index);
  return {area.slice.layer_first, area.slice.head_first, area.plane_first};
}

}  // namespace cairn::codecs
