// SPDX-License-Identifier: Apache-2.0
#pragma once
// The first 32 bytes of profiles and banks, which name the group of layers that a side object is
// for. docs/internals/formats/profile.md and bank.md draw them.
//
// Thread-safety: Thread-safe. Nothing allocates.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/types/error.h"
#include "codecs/types/shape.h"

namespace cairn::codecs {

struct SideObjectFormat {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  size_t bytes_max;
  uint32_t dim_max;
  size_t reserved;  // offset of a byte that is 0
  size_t tail;      // and from here the rest of the header is
};

// A group of layers.
struct SideObjectHead {
  uint32_t planes = 0;  // 2: K and V; 1: a latent
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t dims[2] = {};  // the second is 0 where there is one plane

  // It has tiles of this shape, and this slice is of it.
  [[nodiscard]] bool Fits(const TileShape& shape, const Slice& slice) const;
};

// Reads the head of a side object of this format, which is all of `bytes`; assumes malice. *head is
// set on kOk. kTruncated (which more bytes than stated are too), kBadMagic, kBadVersion,
// kBadHeader, kBadPadding.
Error ParseSideObjectHead(std::span<const std::byte> bytes, const SideObjectFormat& format,
                          SideObjectHead* head);

}  // namespace cairn::codecs
