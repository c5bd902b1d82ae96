// SPDX-License-Identifier: Apache-2.0
#pragma once
// The pack stage "dense": all codes have the same width. The codes of a token are adjacent, in the
// order of channels, and start at a byte. Read the bytes of a token as one little-endian number:
// code c is its bits [c * bits, (c + 1) * bits). Unused high bits of a token's last byte are zero.

#include <cstdint>

#include "codecs/numbers/math.h"

namespace cairn::codecs {

CAIRN_HD constexpr uint32_t CodeRowBytes(uint32_t dim, uint32_t bits) {
  return (dim * bits + 7) / 8;
}

// Returns how many bits the numbers below `count` need. REQUIRES: 1 <= count <= 256.
CAIRN_HD constexpr uint32_t NumberBits(uint32_t count) {
  uint32_t bits = 0;
  while (1U << bits < count) ++bits;
  return bits;
}

// REQUIRES: bits is 8, 4 or 2.
CAIRN_HD constexpr uint8_t UnpackCode(const uint8_t* row, uint32_t channel, uint32_t bits) {
  const uint32_t bit = channel * bits;
  return static_cast<uint8_t>((row[bit / 8] >> (bit % 8)) & ((1U << bits) - 1));
}

// REQUIRES: the bits of that code in the row are zero.
CAIRN_HD constexpr void PackCode(uint8_t* row, uint32_t channel, uint32_t bits, uint8_t code) {
  const uint32_t bit = channel * bits;
  row[bit / 8] = static_cast<uint8_t>(row[bit / 8] | (code << (bit % 8)));
}

// Returns true if, in each of `count` rows of `dim` codes, the bits after the last code are 0.
CAIRN_HD constexpr bool AreCodeRowsClean(const uint8_t* rows, uint32_t count, uint32_t dim,
                                         uint32_t bits) {
  const uint32_t used_bits = dim * bits % 8;
  const uint32_t row_bytes = CodeRowBytes(dim, bits);
  uint32_t faults = 0;
  for (uint64_t row = 1; used_bits != 0 && row <= count; ++row) {
    faults |= static_cast<uint32_t>(rows[row * row_bytes - 1]) >> used_bits;
  }
  return faults == 0;
}

}  // namespace cairn::codecs
