// SPDX-License-Identifier: Apache-2.0
#pragma once
// Iterates over the strips of a tile and decodes them. codecs/pack/strip.h describes a strip.
//
// Thread-safety: pure functions; a StripDecoder is owned by one caller.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/backend/backend.h"
#include "codecs/forms/form.h"
#include "codecs/pack/strip.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {

// The smallest size of a strip.
inline constexpr uint64_t kStripBytesMin = kStripHeaderBytes + kSectionAlignment;

// Calls visit(index, parts, bytes of the strip) for every strip of a tile, in order. Returns false
// if the strips' headers do not account for exactly the tile's bytes, or if visit() returns false.
template <typename Visit>
[[nodiscard]] bool ForEachStrip(const TileGeometry& geometry, const Recipe& recipe,
                                std::span<const std::byte> content, Visit visit) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(content.data());
  uint64_t offset = 0;
  for (uint32_t i = 0; i < StripCount(geometry.rows); ++i) {
    const StripShape shape = StripOf(geometry, recipe, i);
    StripParts parts = {};
    if (!ParseStrip(shape, bytes + offset, content.size() - offset, &parts)) return false;
    if (!visit(i, parts, bytes + offset)) return false;
    offset += parts.bytes;
  }
  return offset == content.size();
}

// Returns the memory that is probably read after a strip of the tile: the next strip, or the memory
// behind the tile.
[[nodiscard]] inline const uint8_t* BehindStrip(const StoredTile& tile, const uint8_t* strip,
                                                uint64_t bytes) {
  const uint8_t* end = U8(tile.content.data()) + tile.content.size();
  return strip + bytes == end ? U8(tile.behind) : strip + bytes;
}

// Decodes tiles in strips. Strips in mode lanes32 are decoded several at once, so their targets may
// stay unwritten until Flush(). Other strips are decoded at once: the caller has just read them,
// and they are still in the core's cache.
class StripDecoder {
 public:
  // is_streamed: bypass the caches when writing targets.
  StripDecoder(const Backend& backend, bool is_streamed)
      : backend_(backend), is_streamed_(is_streamed) {}

  // Adds a tile to decode. Returns false if a strip of this tile or of an earlier one is invalid.
  //   tile    its content must outlive Flush()
  //   target  geometry.SourceBytes(), valid until Flush()
  [[nodiscard]] bool Add(const StoredTile& tile, uint8_t* target);
  [[nodiscard]] bool Flush();
  // Returns whether no strip waits for Flush().
  [[nodiscard]] bool IsEmpty() const { return count_ == 0; }

 private:
  [[nodiscard]] bool DecodeStrips(const StripJob* jobs, uint32_t count) const;

  const Backend& backend_;
  bool is_streamed_;
  uint32_t count_ = 0;
  StripJob jobs_[kStripsAtOnce];
};

}  // namespace cairn::codecs
