// SPDX-License-Identifier: Apache-2.0
#pragma once
// The first 32 bytes of profiles and banks. They identify the group of layers that a side object is
// for. docs/internals/formats/profile.md and bank.md show them.
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
  size_t tail;      // offset from which the rest of the header is 0
};

// A group of layers.
struct SideObjectHead {
  uint32_t planes = 0;  // 2: K and V; 1: a latent
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t dims[2] = {};  // the second is 0 if there is one plane

  // Returns true if the group has tiles of this shape and contains the slice.
  [[nodiscard]] bool Fits(const TileShape& shape, const Slice& slice) const;
};

// Parses the head of a side object of this format. `bytes` are the whole side object, and are
// untrusted. Sets *head on kOk. Errors: kTruncated (also if there are more bytes than the header
// states), kBadMagic, kBadVersion, kBadHeader, kBadPadding.
Error ParseSideObjectHead(std::span<const std::byte> bytes, const SideObjectFormat& format,
                          SideObjectHead* head);

}  // namespace cairn::codecs
