// SPDX-License-Identifier: Apache-2.0
// Tiles that store their source bits.
#include <cstring>

#include "codecs/backend/backend_operation.h"
#include "codecs/checksum/checksum.h"
#include "codecs/forms/form.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

std::optional<TileLayout> Layout(const TileGeometry& geometry, const Recipe&, uint32_t rows,
                                 uint64_t) {
  if (rows != 0) return std::nullopt;
  return RawLayout(geometry);
}

Error Encode(const Backend&, const Recipe&, const TileSource& source, ImageWriter* writer) {
  const TileLayout layout = RawLayout(source.geometry);
  const std::span<std::byte> tile = writer->Reserve(layout.bytes);
  if (tile.empty()) return Error::kTargetTooSmall;
  const std::span<const std::byte> bits(reinterpret_cast<const std::byte*>(source.bytes),
                                        layout.content_bytes);
  // The source may already be in its place in the image.
  uint32_t crc = bits.data() == tile.data() ? Crc32c(bits) : CopyCrc32c(0, tile.data(), bits);
  const std::span<std::byte> padding = tile.subspan(layout.content_bytes);
  if (!padding.empty()) {
    std::memset(padding.data(), 0, padding.size());
    crc = ExtendCrc32c(crc, padding);
  }
  writer->Commit(layout.bytes, crc, 0, kRawForm);
  return Error::kOk;
}

bool Decode(const DecodeWork& work, const StoredTile& tile, uint8_t* target) {
  const uint8_t* content = U8(tile.content.data());
  const uint64_t bytes = tile.geometry.SourceBytes();
  if (work.is_streamed) {
    OperationOf<&Backend::copy_streamed>(work.backend)(content, bytes, target);
  } else {
    std::memcpy(target, content, bytes);
  }
  return true;
}

Error Verify(const StoredTile&) { return Error::kOk; }

}  // namespace

const Form forms::kRaw = {"raw", Layout, Encode, Decode, Verify, nullptr};

}  // namespace cairn::codecs
