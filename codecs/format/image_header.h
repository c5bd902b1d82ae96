// SPDX-License-Identifier: Apache-2.0
#pragma once
// The header and the directory of an image: offsets of the fields, and the writer.
// docs/internals/formats/image.md shows the layout.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/format/image_spec.h"

namespace cairn::codecs {

namespace header {
inline constexpr size_t kMagic = 0;              // u32
inline constexpr size_t kVersion = 4;            // u16
inline constexpr size_t kHeaderBytesField = 6;   // u16
inline constexpr size_t kFlags = 8;              // u32, 0
inline constexpr size_t kCrc = 12;               // u32
inline constexpr size_t kImageBytes = 16;        // u64
inline constexpr size_t kTileCount = 24;         // u32
inline constexpr size_t kGroup = 28;             // u16
inline constexpr size_t kKind = 30;              // u8
inline constexpr size_t kDType = 31;             // u8
inline constexpr size_t kSpace = 32;             // 32 bytes
inline constexpr size_t kKey = 64;               // 32 bytes
inline constexpr size_t kFirstPosition = 96;     // u64
inline constexpr size_t kTokens = 104;           // u16
inline constexpr size_t kLayerFirst = 106;       // u16
inline constexpr size_t kLayerCount = 108;       // u16
inline constexpr size_t kHeadFirst = 110;        // u16
inline constexpr size_t kHeadCount = 112;        // u16
inline constexpr size_t kDomain = 114;           // u8
inline constexpr size_t kSideObjectCount = 115;  // u8
inline constexpr size_t kKDim = 116;             // u32
inline constexpr size_t kVDim = 120;             // u32
inline constexpr size_t kUnitLayers = 124;       // u8, the value minus one
inline constexpr size_t kUnitHeads = 125;        // u8, the value minus one
inline constexpr size_t kUnitPlanes = 126;       // u8, the value minus one
inline constexpr size_t kSymbolMode = 127;       // u8
inline constexpr size_t kRecipeId = 128;         // u8
inline constexpr size_t kRecipeBits = 129;       // u8
inline constexpr size_t kRecipeFlags = 130;      // u8, the kFlag… below
inline constexpr size_t kRecipeReserved = 131;   // u8, 0
inline constexpr size_t kKGroupTokens = 132;     // u16
inline constexpr size_t kVGroupChannels = 134;   // u16
inline constexpr size_t kTables = 136;           // u8
inline constexpr size_t kRecipeParams = 137;     // 23 bytes: the fields below, otherwise 0
inline constexpr size_t kLevel = 137;            // u8
inline constexpr size_t kMultiplier = 138;       // i16
inline constexpr size_t kPatterns = 138;         // u16, patternkv: in the place of the multiplier
inline constexpr size_t kVariant = 140;          // u8
inline constexpr size_t kParamsTail = 141;       // 19 bytes, 0
inline constexpr size_t kSideObjects = 160;      // 4 x 32 bytes
inline constexpr size_t kTail = 288;             // 32 bytes, 0

inline constexpr uint8_t kFlagClipped = 1;
inline constexpr uint8_t kFlagFast = 2;
inline constexpr uint8_t kFlagLocal = 4;
inline constexpr uint8_t kFlagNearest = 8;
inline constexpr uint8_t kFlagsKnown = 15;
}  // namespace header

namespace directory {
inline constexpr size_t kOffset = 0;  // u32, in units of 16 bytes
inline constexpr size_t kBytes = 4;   // u32
inline constexpr size_t kCrc = 8;     // u32
inline constexpr size_t kRows = 12;   // u16
inline constexpr size_t kForm = 14;   // u16
}  // namespace directory

// Returns the size of header and directory, which is the offset of the first tile.
[[nodiscard]] constexpr uint64_t PrefixBytes(uint64_t tile_count) {
  return kHeaderBytes + tile_count * kDirectoryEntryBytes;
}

// Returns the CRC32C of header and directory, with the header's CRC field taken as zero.
// REQUIRES: prefix holds at least a header.
[[nodiscard]] uint32_t PrefixCrc(std::span<const std::byte> prefix);

// Builds an image from front to back in a target. For each tile, reserve room, write the tile, and
// commit it; at the end, finish. If the tiles are stored elsewhere, a target of PrefixBytes()
// suffices, and tiles are committed without a reservation.
class ImageWriter {
 public:
  // REQUIRES: Validate(spec) is kOk.
  ImageWriter(const ImageSpec& spec, std::span<std::byte> target);

  // Returns room for the next tile. Empty if less than `bytes` of the target are left.
  [[nodiscard]] std::span<std::byte> Reserve(uint64_t bytes) const;
  // Returns the free part of the target, at most `bytes_max` bytes.
  [[nodiscard]] std::span<std::byte> Rest(uint64_t bytes_max) const;
  // Adds the tile that was written into Reserve() or Rest().
  // REQUIRES: `bytes` is a multiple of 16 and at most the reserved size.
  void Commit(uint64_t bytes, uint32_t crc, uint32_t rows, uint16_t form);
  // Adds a copy of a tile of another image. `content` may be in the target, behind the place of the
  // copy. Errors: kTargetTooSmall.
  Error Copy(const TileEntry& entry, std::span<const std::byte> content);
  // Returns the size of the image. REQUIRES: every tile of the spec was committed.
  size_t Finish();

 private:
  const ImageSpec& spec_;
  std::span<std::byte> target_;
  uint64_t tile_count_;
  uint64_t tile_index_ = 0;
  uint64_t offset_;
};

}  // namespace cairn::codecs
