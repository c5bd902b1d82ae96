// SPDX-License-Identifier: Apache-2.0
#pragma once
// An image: the encoded bytes of one slice of one group of a block. Header, directory, tiles, as
// docs/internals/formats/image.md draws them.
//
// - ParseImage() checks all that lies before the tiles. After it nothing that is reached through
//   the ImageView is out of bounds.
// - VerifyTiles() checks the tiles: their CRC, padding, rows and parameters.
//   After it Decode() gives the values that were encoded.
//
// Bytes that may change under the reader (memory shared with a peer) must be copied first, or
// parsed by ParseSharedImage().
//
// Thread-safety: ImageSpec and ImageView are values; functions are Thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/format/image_spec.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// The parsed header and directory of an image. Borrows the bytes that it was parsed from, which
// must outlive it and not change.
class ImagePrefix {
 public:
  [[nodiscard]] const ImageSpec& spec() const { return spec_; }
  [[nodiscard]] uint32_t tile_count() const { return tile_count_; }
  // The size of the whole image.
  [[nodiscard]] uint64_t image_bytes() const { return image_bytes_; }
  // The CRC32C over header and directory that the header states. The directory has the CRCs of the
  // tiles, so it covers the whole image.
  [[nodiscard]] uint32_t directory_crc() const { return directory_crc_; }

  // REQUIRES: index < tile_count().
  [[nodiscard]] TileEntry Tile(uint32_t index) const;
  // Maps tiles to the parts of the group that they code.
  [[nodiscard]] Tiling tiling() const { return TilingOf(spec_); }
  // Returns the tile that codes this layer, head and plane. REQUIRES: it lies in spec().slice.
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

// A parsed image. Borrows likewise.
class ImageView : public ImagePrefix {
 public:
  // The image alone, without what may follow it in the span that was parsed.
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  // REQUIRES: index < tile_count().
  [[nodiscard]] std::span<const std::byte> TileContent(uint32_t index) const;
  // Whether ParseSharedImage() made it: then DecodeAll() alone takes it.
  [[nodiscard]] bool is_shared() const { return is_shared_; }

 private:
  friend Error ParseImage(std::span<const std::byte> bytes, ImageView* view);
  friend Error ParseSharedImage(std::span<const std::byte> prefix, std::span<const std::byte> bytes,
                                ImageView* view);

  std::span<const std::byte> bytes_;
  bool is_shared_ = false;
};

// Sets *bytes to the size of the image that starts here, from its header alone: at least
// kHeaderBytes and at most kImageBytesMax. The rest of the header is not checked. For readers that
// fetch a header before the rest. kTruncated, kBadMagic, kBadVersion, kBadHeader.
Error PeekImageBytes(std::span<const std::byte> header, uint64_t* bytes);
// Returns directory_crc() of that image, unchecked. REQUIRES: kHeaderBytes at least.
[[nodiscard]] uint32_t PeekDirectoryCrc(std::span<const std::byte> header);

// Parses header and directory at the start of `bytes`. The tiles may be elsewhere, as on a device.
// Assumes malice; *prefix is set on kOk. Errors as ParseImage(); kTruncated if the directory is not
// complete.
Error ParseImagePrefix(std::span<const std::byte> bytes, ImagePrefix* prefix);

// Parses the image at the start of `bytes`, which may be longer; assumes malice. *view is set on
// kOk. Errors: kTruncated, kBadMagic, kBadVersion, kBadFlags, kUnknownUnit, kBadHeader,
// kBadDirectory, kBadPadding, kBadChecksum.
Error ParseImage(std::span<const std::byte> bytes, ImageView* view);

// Sets *bytes to the length of header and directory, at most kPrefixBytesMax, for callers that copy
// them for ParseSharedImage(). Reads the header alone, and trusts nothing else in it. Errors:
// kTruncated, kBadMagic, kBadVersion, kBadFlags, kBadHeader.
inline constexpr uint64_t kPrefixBytesMax =
    kHeaderBytes + uint64_t{kTilesMax} * kDirectoryEntryBytes;
Error PeekPrefixBytes(std::span<const std::byte> header, uint64_t* bytes);

// Parses an image in memory that somebody else may write meanwhile. Errors as ParseImage().
//   prefix  the caller's copy of header and directory: parsed, and borrowed
//   bytes   the whole image, of which nothing is read here
// Only DecodeAll() takes such a view: it copies each tile before it checks it. Other functions
// return kMismatch.
Error ParseSharedImage(std::span<const std::byte> prefix, std::span<const std::byte> bytes,
                       ImageView* view);

// Checks the tiles of `slice`, or one of them. kBadChecksum, kBadPadding, kBadTile; kInvalidSlice
// if the image lacks some. Decode() checks that an entropy-coded stream ends as it must.
Error VerifyTiles(const ImageView& view, const Slice& slice);
Error VerifyTiles(const ImageView& view);
// REQUIRES: index < view.tile_count().
Error VerifyTile(const ImageView& view, uint32_t index);

}  // namespace cairn::codecs
