// SPDX-License-Identifier: Apache-2.0
#pragma once
// The values of a strip from which a profile is made, stored by channel. Values of K are taken
// before RoPE. The first token of a chain and tokens that cannot be coded are excluded.
//
// Thread-safety: owned by one caller. Allocates at its first use.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codecs/mine/profile_content.h"
#include "codecs/numbers/static_step.h"
#include "codecs/pack/strip.h"
#include "codecs/side/profile_sums.h"

namespace cairn::codecs {

// Up to kStripTokens consecutive tokens of one (layer, head, plane).
struct MinedStrip {
  ProfileHead at;
  uint32_t plane = 0;
  uint32_t part = 0;            // part of the sample: below kSampleParts
  uint64_t first_position = 0;  // position of its first token in its chain
  uint32_t tokens = 0;
  std::span<const std::byte> source;  // [tokens, dim] in the group's dtype
};

class StripValues {
 public:
  // `turns` has one entry per pair. Both arguments are borrowed.
  StripValues(const RotaryPairs& pairs, std::span<const uint64_t> turns)
      : pairs_(pairs), turns_(turns) {}

  // Keeps the tokens whose elements can all be coded, except the first token of the chain. With
  // only_strided, keeps only every kFindStride-th position.
  void Load(const StripShape& shape, const MinedStrip& strip, bool only_strided);

  [[nodiscard]] uint32_t count() const { return count_; }
  // Returns how many kept tokens are at every kFindStride-th position. They are stored before the
  // others.
  [[nodiscard]] uint32_t strided_count() const { return strided_count_; }
  [[nodiscard]] std::span<const float> Channel(uint32_t channel) const {
    return std::span(values_).subspan(size_t{channel} * kStripTokens, count_);
  }

 private:
  // Adds the strip's tokens for which (position % kFindStride == 0) equals `is_strided`.
  void LoadTokens(const StripShape& shape, const MinedStrip& strip, bool is_strided);
  void RemoveRopeAt(uint32_t token, float* values) const;
  void FindRotations(uint64_t first_position);

  const RotaryPairs pairs_;
  const std::span<const uint64_t> turns_;
  uint32_t count_ = 0;
  uint32_t strided_count_ = 0;
  std::vector<float> values_;  // [channel][kStripTokens]
  // The first position of the strip for which rotations_ was computed. All heads of a block have
  // the same positions, so rotations_ is kept for the next head.
  uint64_t rotations_at_ = UINT64_MAX;
  std::vector<Rotation> rotations_;  // [token][pair]
};

}  // namespace cairn::codecs
