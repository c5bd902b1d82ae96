// SPDX-License-Identifier: Apache-2.0
#pragma once
// The content of the blocks of a replay. It is a function of a block's key, so that blocks can be
// checked without a copy.
//
// A block is one layer with one head of `dim` channels: K and V of kContentTokens tokens in bf16,
// 512 bytes per channel. Values are approximately normal. The spreads of K's channels span four
// octaves, those of V's channels one, about as in models. So `exact` stores a block in two thirds
// of its size, and a recipe with a mined profile needs about the number of bits in its name.
//
// Thread-safety: Immutable.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"
#include "proto/block_key.h"

namespace cairn::replay {

inline constexpr uint32_t kContentTokens = 128;
inline constexpr uint32_t kContentDimMin = 16, kContentDimMax = 128;
inline constexpr uint64_t kContentChannelBytes = uint64_t{2} * 2 * kContentTokens;
inline constexpr uint64_t kContentBytesMax = kContentDimMax * kContentChannelBytes;
// The largest error that WrongBytes() accepts. Recipes stay below it. Zeros have an error of 1,
// another block's values 2.
inline constexpr double kContentErrorMax = 0.9;

class Content {
 public:
  // REQUIRES: kContentDimMin <= dim <= kContentDimMax.
  explicit Content(uint32_t dim);

  uint64_t block_bytes() const { return dim_ * kContentChannelBytes; }
  // The identity of a space for such blocks.
  proto::SpaceIdentity Identity(const std::string& tenant, const std::string& name) const;
  // The key of a block of a trace.
  static proto::BlockKey KeyOf(const proto::Fingerprint& space, const proto::BlockKey& parent,
                               uint64_t hash_id);

  // Writes a block in source form. REQUIRES: block.size() is block_bytes().
  void Fill(const proto::BlockKey& key, std::span<std::byte> block) const;
  // Returns the number of wrong bytes in a block. If lossless, counts the bytes that differ. If
  // lossy, counts all bytes of a plane (K or V) whose mean squared error, relative to each
  // channel's spread, exceeds kContentErrorMax. A codec's loss is below that, another block's
  // content is above. `expected` is scratch memory for a block. REQUIRES: got.size() is
  // block_bytes().
  uint64_t WrongBytes(const proto::BlockKey& key, bool is_lossless, std::span<const std::byte> got,
                      std::span<std::byte> expected) const;

  // Mines a profile with the rate of `recipe`, from the content of keys that no block has.
  absl::StatusOr<std::vector<std::byte>> MineProfile(const codecs::Recipe& recipe) const;

 private:
  uint32_t dim_;
  std::vector<float> spreads_;  // [plane][channel]
};

}  // namespace cairn::replay
