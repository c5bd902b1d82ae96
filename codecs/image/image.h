// SPDX-License-Identifier: Apache-2.0
#pragma once
// An image: the encoded bytes of one slice of one group of a block. It has a header, a directory
// and tiles; docs/internals/formats/image.md shows the layout.
//
// - ParseImage() checks everything before the tiles. After it, no access through the ImageView is
//   out of bounds.
// - VerifyTiles() checks the CRC, padding, rows and parameters of the tiles. After it, Decode()
//   returns the values that were encoded.
//
// If another process can change the bytes during reading (shared memory), copy them first, or use
// ParseSharedImage().
//
// Thread-safety: ImageSpec and ImageView are values; functions are Thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/format/image_spec.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// The parsed header and directory of an image. Borrows the bytes that were parsed; they must
// outlive it and not change.
class ImagePrefix {
 public:
  [[nodiscard]] const ImageSpec& spec() const { return spec_; }
  [[nodiscard]] uint32_t tile_count() const { return tile_count_; }
  // Returns the size of the whole image.
  [[nodiscard]] uint64_t image_bytes() const { return image_bytes_; }
  // Returns the CRC32C that the header states for header and directory. The directory has the CRCs
  // of the tiles, so this CRC covers the whole image.
  [[nodiscard]] uint32_t directory_crc() const { return directory_crc_; }

  // REQUIRES: index < tile_count().
  [[nodiscard]] TileEntry Tile(uint32_t index) const;
  // Maps tiles to the parts of the group that they code.
  [[nodiscard]] Tiling tiling() const { return TilingOf(spec_); }
  // Returns the tile that codes a layer, head and plane. REQUIRES: spec().slice contains it.
  [[nodiscard]] uint32_t IndexOf(TileId id) const { return tiling().IndexOf(id); }
  // Returns the first layer, head and plane that the tile codes.
  [[nodiscard]] TileId IdOf(uint32_t index) const;

 private:
  friend Error ParseImagePrefix(std::span<const std::byte> bytes, ImagePrefix* prefix);

  ImageSpec spec_;
  const std::byte* base_ = nullptr;
  uint64_t image_bytes_ = 0;
  uint32_t tile_count_ = 0;
  uint32_t directory_crc_ = 0;
};

// Bytes of an image that lie apart from the others, and their offset in the image.
struct SharedPart {
  uint64_t offset = 0;
  std::span<const std::byte> bytes;
};

// A parsed image. Borrows its bytes, which must outlive it and not change.
class ImageView : public ImagePrefix {
 public:
  // Returns the bytes of the image, without bytes that follow it in the parsed span. Empty if the
  // image lies in several parts.
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  // REQUIRES: index < tile_count().
  [[nodiscard]] std::span<const std::byte> TileContent(uint32_t index) const;
  // Returns whether ParseSharedImage() made the view. Only DecodeAll() accepts a shared view.
  [[nodiscard]] bool is_shared() const { return is_shared_; }

 private:
  friend Error ParseImage(std::span<const std::byte> bytes, ImageView* view);
  friend Error ParseSharedImage(std::span<const std::byte> prefix, std::span<const std::byte> bytes,
                                ImageView* view);
  friend Error ParseSharedImage(std::span<const std::byte> prefix,
                                std::span<const SharedPart> parts, ImageView* view);
  [[nodiscard]] std::span<const std::byte> InParts(uint64_t offset, uint64_t bytes) const;

  std::span<const std::byte> bytes_;
  std::span<const SharedPart> parts_;  // not empty if the image lies in several parts
  bool is_shared_ = false;
};

// Sets *bytes to the size of the image that starts here, which its header states. The size is at
// least kHeaderBytes and at most kImageBytesMax. Does not check the rest of the header. This
// function is for readers that fetch the header first. Errors: kTruncated, kBadMagic, kBadVersion,
// kBadHeader.
Error PeekImageBytes(std::span<const std::byte> header, uint64_t* bytes);
// Returns the directory_crc() of that image without checking it. REQUIRES: `header` has at least
// kHeaderBytes.
[[nodiscard]] uint32_t PeekDirectoryCrc(std::span<const std::byte> header);

// Parses header and directory at the start of `bytes`, which are untrusted. The tiles may be in
// other memory, for example on a device. Sets *prefix on kOk. Errors: those of ParseImage();
// kTruncated if the directory is not complete.
Error ParseImagePrefix(std::span<const std::byte> bytes, ImagePrefix* prefix);

// Parses the image at the start of `bytes`, which are untrusted and may be longer. Sets *view on
// kOk. Errors: kTruncated, kBadMagic, kBadVersion, kBadFlags, kUnknownUnit, kBadHeader,
// kBadDirectory, kBadPadding, kBadChecksum.
Error ParseImage(std::span<const std::byte> bytes, ImageView* view);

// Sets *bytes to the size of header and directory, at most kPrefixBytesMax, for callers that copy
// them for ParseSharedImage(). Reads only the header, which is untrusted. Errors: kTruncated,
// kBadMagic, kBadVersion, kBadFlags, kBadHeader.
inline constexpr uint64_t kPrefixBytesMax =
    kHeaderBytes + uint64_t{kTilesMax} * kDirectoryEntryBytes;
Error PeekPrefixBytes(std::span<const std::byte> header, uint64_t* bytes);

// Parses an image in memory that another process can write to meanwhile. Errors: those of
// ParseImage().
//   prefix  the caller's copy of header and directory: parsed, and borrowed
//   bytes   the whole image; this function does not read it
// Only DecodeAll() accepts such a view: it copies each tile before it checks the tile. Other
// functions return kMismatch.
Error ParseSharedImage(std::span<const std::byte> prefix, std::span<const std::byte> bytes,
                       ImageView* view);

// Does the same for an image whose tiles lie in several parts. The view also borrows `parts`.
//   prefix  exactly header and directory
//   parts   the rest of the image, in order and without gaps. Each tile lies in one of them
// Other errors: kTruncated if the parts are not the rest of the image; kIncomplete if a tile lies
// in no single part.
Error ParseSharedImage(std::span<const std::byte> prefix, std::span<const SharedPart> parts,
                       ImageView* view);

// Checks the tiles of `slice`, all tiles, or one tile. Errors: kBadChecksum, kBadPadding, kBadTile;
// kInvalidSlice if the image lacks some tiles of `slice`. Only Decode() checks that an
// entropy-coded stream ends correctly.
Error VerifyTiles(const ImageView& view, const Slice& slice);
Error VerifyTiles(const ImageView& view);
// REQUIRES: index < view.tile_count().
Error VerifyTile(const ImageView& view, uint32_t index);

}  // namespace cairn::codecs
