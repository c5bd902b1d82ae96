// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CRC32C of a payload out of the CRCs of its parts, without reading it again.

#include <cstdint>

#include "codecs/image/image.h"

namespace cairn::codecs {

// Joins parts in order. Thread-safety: Thread-compatible.
// Cost: 32 steps a part whose length is that of the part before, else a few hundred.
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

// The CRC32C of a whole image, taking each tile at its word: only header and directory are read.
// Bytes that are not what the image says have another CRC.
uint32_t JoinCrc32c(const ImageView& view);

}  // namespace cairn::codecs
