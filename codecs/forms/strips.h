// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tiles in strips: walking, checking, coding. What a strip is, codecs/pack/strip.h says.
//
// Thread-safety: pure functions; a StripDecoder belongs to one caller.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/backend/backend.h"
#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "codecs/stages/stages.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Calls visit(index, parts, bytes of the strip) for every strip of a tile, in order. False where
// the tile's bytes are not just the strips that their headers state, or visit() returns false.
template <typename Visit>
[[nodiscard]] bool ForEachStrip(const TileGeometry& geometry, const Recipe& recipe,
                                std::span<const std::byte> content, Visit visit) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(content.data());
  uint64_t offset = 0;
  for (uint32_t i = 0; i < StripCount(geometry.rows); ++i) {
    const StripShape shape = StripOf(geometry, recipe, i);
    StripParts parts;
    if (!ParseStrip(shape, bytes + offset, content.size() - offset, &parts)) return false;
    if (!visit(i, parts, bytes + offset)) return false;
    offset += parts.bytes;
  }
  return offset == content.size();
}

// All that can be seen of a tile without decoding it: kBadPadding, kBadTile.
Error VerifyStrips(const TileGeometry& geometry, const Recipe& recipe,
                   std::span<const std::byte> content);

// Writes a tile in strips; kBadTile, with nothing committed, where that is not smaller than raw or
// the writer has no room.
Error EncodeStrips(const Backend& backend, const Recipe& recipe, const TileSource& source,
                   ImageWriter* writer);

// Decodes tiles in strips, several strips at once: what a tile added has to give may be written as
// late as at Flush().
class StripDecoder {
 public:
  // is_streamed: targets are better written past the caches.
  StripDecoder(const Backend& backend, bool is_streamed)
      : backend_(backend), is_streamed_(is_streamed) {}

  // False where a strip, of this tile or of one added before, is none that an encoder writes.
  //   content  outlives Flush()
  //   target   geometry.SourceBytes(), until Flush()
  [[nodiscard]] bool Add(const TileGeometry& geometry, const Recipe& recipe,
                         std::span<const std::byte> content, uint8_t* target);
  [[nodiscard]] bool Flush();

 private:
  const Backend& backend_;
  bool is_streamed_;
  uint32_t count_ = 0;
  StripJob jobs_[kStripsAtOnce];
};

}  // namespace cairn::codecs
