// SPDX-License-Identifier: Apache-2.0
#pragma once
// Computes the CRC32C of a payload from the CRCs of its parts, without reading the payload again.

#include <cstdint>

#include "codecs/image/image.h"

namespace cairn::codecs {

// Joins parts in order. Thread-safety: Thread-compatible.
// Cost: 32 steps for a part of the same length as the previous one, else a few hundred.
class CrcJoin {
 public:
  // Appends a part of `bytes` bytes whose CRC32C is `crc`.
  void Append(uint32_t crc, uint64_t bytes);
  uint32_t crc() const { return crc_; }

 private:
  uint32_t crc_ = 0;
  uint64_t shift_bytes_ = 0;
  uint32_t shift_ = uint32_t{1} << 31;  // x^(8 * shift_bytes_) modulo the polynomial
};

// Returns the CRC32C of a whole image from the tile CRCs in its directory, without reading the
// tiles. If a tile is damaged, the result differs from the CRC of the image's bytes.
uint32_t JoinCrc32c(const ImageView& view);

}  // namespace cairn::codecs
