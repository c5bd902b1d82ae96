// SPDX-License-Identifier: Apache-2.0
#pragma once
// The content of the blocks of a replay. It is computed from a block's key, so that a block can be
// checked without a copy of it.
//
// A block is one layer with one head of `dim` channels: K and V of kContentTokens tokens in bf16,
// that is, 512 bytes per channel. Values are approximately normal. The standard deviations of K's
// channels range over four octaves, those of V's channels over one, about as in models. So `exact`
// stores a block in two thirds of its size. A recipe with a mined profile needs about the number of
// bits in its name.
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
// The largest relative error that WrongBytes() accepts. The loss of every recipe is below it. A
// block of zeros has an error of 1, and the content of another block has an error of 2.
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
  // lossy, compares each plane (K or V): if its mean squared error, relative to the variance of
  // each channel, exceeds kContentErrorMax, all bytes of the plane count. The loss of a codec is
  // below that; another block's content is above. `expected` is scratch memory for a block.
  // REQUIRES: got.size() is block_bytes().
  uint64_t WrongBytes(const proto::BlockKey& key, bool is_lossless, std::span<const std::byte> got,
                      std::span<std::byte> expected) const;

  // Mines a profile with the rate of `recipe`. The sample is the content of keys that no block of
  // the trace has.
  absl::StatusOr<std::vector<std::byte>> MineProfile(const codecs::Recipe& recipe) const;

 private:
  uint32_t dim_;
  std::vector<float> spreads_;  // [plane][channel]
};

}  // namespace cairn::replay
