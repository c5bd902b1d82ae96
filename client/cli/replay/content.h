// SPDX-License-Identifier: Apache-2.0
#pragma once
// What blocks of a replay hold: a function of their keys, so that whatever comes back can be
// checked without a copy of it.
//
// A block is one layer with one head of `dim` channels, K and V of kContentTokens tokens in bf16:
// 512 bytes a channel. Values are near normal. Channels of K spread over four octaves and those of
// V over one, about as those of models do: `exact` takes two thirds of the bytes, and a profile
// codes them in the bits that it promises.
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
// A lossy recipe is off by less: of zeros it would be 1, of another block's values 2.
inline constexpr double kContentErrorMax = 0.9;

class Content {
 public:
  // REQUIRES: dim is kContentDimMin to kContentDimMax.
  explicit Content(uint32_t dim);

  uint64_t block_bytes() const { return dim_ * kContentChannelBytes; }
  // A space for such blocks.
  proto::SpaceIdentity Identity(const std::string& tenant, const std::string& name) const;
  // The key of a block of a trace.
  static proto::BlockKey KeyOf(const proto::Fingerprint& space, const proto::BlockKey& parent,
                               uint64_t hash_id);

  // Source bytes, as SourceBytes has them. REQUIRES: block.size() is block_bytes().
  void Fill(const proto::BlockKey& key, std::span<std::byte> block) const;
  // Of a block that came back, the bytes that are wrong. Of a lossless recipe those that differ.
  // Of another, all of K or of V where its mean squared error, each channel by its spread, is over
  // kContentErrorMax: what a codec lost is less, and a block in the place of another is more.
  // `expected` has room for a block. REQUIRES: got.size() is block_bytes().
  uint64_t WrongBytes(const proto::BlockKey& key, bool is_lossless, std::span<const std::byte> got,
                      std::span<std::byte> expected) const;

  // A profile with the rate of `recipe`, made of content of keys that no block has.
  absl::StatusOr<std::vector<std::byte>> MineProfile(const codecs::Recipe& recipe) const;

 private:
  uint32_t dim_;
  std::vector<float> spreads_;  // [plane][channel]
};

}  // namespace cairn::replay
