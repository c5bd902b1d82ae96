// SPDX-License-Identifier: Apache-2.0
#pragma once
// What index and tiers say of an image and of one copy of it. Values.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"
#include "proto/block_key.h"

namespace cairn {

// Where a copy lives; the values are those of cairn.v1.Tier.
enum class TierId : uint8_t { kGpu = 1, kHost = 2, kSsd = 3 };
inline constexpr size_t kTierCount = 3;
// In the order in which a get looks for a copy.
inline constexpr std::array<TierId, kTierCount> kReadOrder = {TierId::kHost, TierId::kGpu,
                                                              TierId::kSsd};

constexpr size_t IndexOf(TierId tier) { return static_cast<size_t>(tier) - 1; }
// The one that a get reaches later.
constexpr TierId Slower(TierId a, TierId b) {
  for (const TierId tier : kReadOrder) {
    if (tier == a) {
      return b;
    }
    if (tier == b) {
      return a;
    }
  }
  return a;
}
std::string_view Name(TierId tier);
// A place as logs write it: "host+0x2000".
std::string FormatPlace(TierId tier, uint64_t offset);

// Of all copies of an image. Immutable from its publication on.
struct ImageFacts {
  uint64_t space_id = 0;
  proto::BlockKey key{};
  uint64_t first_position = 0;
  uint16_t tokens = 0;
  uint16_t group = 0;
  codecs::Slice slice;
  uint32_t expires_unix_s = 0;  // its block is gone then; 0: never
  uint64_t source_bytes = 0;
};

// Of one copy. Immutable: other bytes are another copy.
struct CopyFacts {
  TierId tier = TierId::kHost;
  codecs::Recipe recipe;
  uint64_t image_bytes = 0;
  // CRC32C of header and directory, which hold those of the tiles: copies of one image that have
  // the same are equal.
  uint32_t directory_crc = 0;
};

}  // namespace cairn
