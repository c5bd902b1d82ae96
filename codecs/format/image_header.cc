// SPDX-License-Identifier: Apache-2.0
#include "codecs/format/image_header.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "codecs/checksum/checksum.h"
#include "codecs/format/recipe_fields.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

void StoreHeader(const ImageSpec& spec, uint64_t image_bytes, uint64_t tile_count,
                 std::byte* target) {
  std::memset(target, 0, kHeaderBytes);
  Store(target + header::kMagic, kImageMagic);
  Store(target + header::kVersion, kImageVersion);
  Store(target + header::kHeaderBytesField, static_cast<uint16_t>(kHeaderBytes));
  Store(target + header::kImageBytes, image_bytes);
  Store(target + header::kTileCount, static_cast<uint32_t>(tile_count));
  Store(target + header::kGroup, spec.group);
  Store(target + header::kKind, spec.tile.kind);
  Store(target + header::kDType, spec.tile.dtype);
  Store(target + header::kSpace, spec.space);
  Store(target + header::kKey, spec.key);
  Store(target + header::kFirstPosition, spec.first_position);
  Store(target + header::kTokens, spec.tokens);
  Store(target + header::kLayerFirst, spec.slice.layer_first);
  Store(target + header::kLayerCount, spec.slice.layer_count);
  Store(target + header::kHeadFirst, spec.slice.head_first);
  Store(target + header::kHeadCount, spec.slice.head_count);
  Store(target + header::kDomain, spec.domain);
  Store(target + header::kSideObjectCount, spec.side_object_count);
  Store(target + header::kKDim, spec.tile.k_dim);
  Store(target + header::kVDim, spec.tile.v_dim);
  Store(target + header::kUnitLayers, static_cast<uint8_t>(spec.unit.layers - 1));
  Store(target + header::kUnitHeads, static_cast<uint8_t>(spec.unit.heads - 1));
  Store(target + header::kUnitPlanes, static_cast<uint8_t>(spec.unit.planes - 1));
  Store(target + header::kSymbolMode, spec.symbol_mode);
  StoreRecipe(spec.recipe, std::span<std::byte, kRecipeFieldsBytes>(target + header::kRecipeId,
                                                                    kRecipeFieldsBytes));
  for (size_t i = 0; i < spec.side_object_count; ++i) {
    Store(target + header::kSideObjects + i * sizeof(Digest), spec.side_objects[i]);
  }
}

}  // namespace

uint32_t PrefixCrc(std::span<const std::byte> prefix) {
  constexpr std::array<std::byte, 4> kZero{};
  uint32_t crc = Crc32c(prefix.first(header::kCrc));
  crc = ExtendCrc32c(crc, kZero);
  return ExtendCrc32c(crc, prefix.subspan(header::kCrc + kZero.size()));
}

ImageWriter::ImageWriter(const ImageSpec& spec, std::span<std::byte> target)
    : spec_(spec),
      target_(target),
      tile_count_(TilingOf(spec).count()),
      offset_(PrefixBytes(tile_count_)) {}

std::span<std::byte> ImageWriter::Reserve(uint64_t bytes) const {
  if (offset_ > target_.size() || target_.size() - offset_ < bytes) return {};
  return target_.subspan(offset_, bytes);
}

std::span<std::byte> ImageWriter::Rest(uint64_t bytes_max) const {
  if (offset_ > target_.size()) return {};
  return target_.subspan(offset_, std::min<uint64_t>(target_.size() - offset_, bytes_max));
}

void ImageWriter::Commit(uint64_t bytes, uint32_t crc, uint32_t rows, uint16_t form) {
  std::byte* entry = target_.data() + PrefixBytes(tile_index_);
  Store(entry + directory::kOffset, static_cast<uint32_t>(offset_ / kSectionAlignment));
  Store(entry + directory::kBytes, static_cast<uint32_t>(bytes));
  Store(entry + directory::kCrc, crc);
  Store(entry + directory::kRows, static_cast<uint16_t>(rows));
  Store(entry + directory::kForm, form);
  ++tile_index_;
  offset_ += bytes;
}

Error ImageWriter::Copy(const TileEntry& entry, std::span<const std::byte> content) {
  const std::span<std::byte> tile = Reserve(entry.bytes);
  if (tile.size() != entry.bytes) return Error::kTargetTooSmall;
  std::memmove(tile.data(), content.data(), entry.bytes);
  Commit(entry.bytes, entry.crc, entry.rows, entry.form);
  return Error::kOk;
}

size_t ImageWriter::Finish() {
  StoreHeader(spec_, offset_, tile_count_, target_.data());
  Store(target_.data() + header::kCrc, PrefixCrc(target_.first(PrefixBytes(tile_count_))));
  return offset_;
}

}  // namespace cairn::codecs
