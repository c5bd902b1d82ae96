// SPDX-License-Identifier: Apache-2.0
#pragma once
// Descriptions of an image, and of one copy of it, shared by the index and the tiers. They are
// values.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"
#include "proto/block_key.h"
#include "proto/engine_hash.h"

namespace cairn {

// The tier of a copy. The numbers are those of cairn.v1.Tier.
enum class TierId : uint8_t { kGpu = 1, kHost = 2, kSsd = 3 };
inline constexpr size_t kTierCount = 3;
// The order in which a get searches for a copy.
inline constexpr std::array<TierId, kTierCount> kReadOrder = {TierId::kHost, TierId::kGpu,
                                                              TierId::kSsd};

constexpr size_t IndexOf(TierId tier) { return static_cast<size_t>(tier) - 1; }
// Returns the one that is later in kReadOrder.
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
// Formats a place for logs: "host+0x2000".
std::string FormatPlace(TierId tier, uint64_t offset);

// Properties that all copies of an image share. Immutable after publication.
struct ImageFacts {
  uint64_t space_id = 0;
  proto::BlockKey key{};
  uint64_t first_position = 0;
  uint16_t tokens = 0;
  uint16_t group = 0;
  codecs::Slice slice;
  uint32_t expires_unix_s = 0;  // the expiry of its block; 0: never
  uint64_t source_bytes = 0;
};

// The names that an engine has for a block. Shared by the index, the events about the block, and
// the writes of its images, which end in any order. Null: none.
using EngineNamesRef = std::shared_ptr<const proto::EngineNames>;
// Returns null if there are none.
inline EngineNamesRef ShareNames(proto::EngineNames names) {
  return names == proto::EngineNames()
             ? nullptr
             : std::make_shared<const proto::EngineNames>(std::move(names));
}

// Properties of one copy. Immutable: a copy with other bytes is another copy.
struct CopyFacts {
  TierId tier = TierId::kHost;
  codecs::Recipe recipe;
  uint64_t image_bytes = 0;
  // CRC32C of header and directory, which contain the CRCs of the tiles. So copies of one image
  // with equal values here have equal bytes.
  uint32_t directory_crc = 0;
};

}  // namespace cairn
