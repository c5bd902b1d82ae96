// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/crc_join.h"

#include "codecs/checksum/checksum.h"

namespace cairn::codecs {
namespace {

// Polynomials over GF(2) below degree 32, bit 31 first: 1 is 1 << 31, x is 1 << 30.
constexpr uint32_t kPolynomial = 0x82F63B78;

uint32_t Times(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    product ^= (a & bit) != 0 ? b : 0;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

uint32_t PowerOfX(uint64_t exponent) {
  uint32_t result = uint32_t{1} << 31;
  uint32_t square = uint32_t{1} << 30;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) {
      result = Times(result, square);
    }
    square = Times(square, square);
  }
  return result;
}

}  // namespace

void CrcJoin::Append(uint32_t crc, uint64_t bytes) {
  if (bytes != shift_bytes_) {
    shift_bytes_ = bytes;
    shift_ = PowerOfX(bytes * 8);
  }
  crc_ = Times(crc_, shift_) ^ crc;
}

uint32_t JoinCrc32c(const ImageView& view) {
  CrcJoin join;
  const uint64_t tiles = view.Tile(0).offset;
  join.Append(Crc32c(view.bytes().first(tiles)), tiles);
  for (uint32_t i = 0; i < view.tile_count(); ++i) {
    const TileEntry tile = view.Tile(i);
    join.Append(tile.crc, tile.bytes);
  }
  return join.crc();
}

}  // namespace cairn::codecs
