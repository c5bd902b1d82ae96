// SPDX-License-Identifier: Apache-2.0
#pragma once
// Statistics that a writer can send with a put. They are f32 values that follow the slice in the
// payload. The kinds are in the order of kStatistics, one after another.
//
// Thread-safety: values and pure functions.

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"

namespace cairn::proto {

enum class Statistic : uint8_t {
  // Means of a function of the query after RoPE. Each mean is over the block's tokens and over the
  // query heads that share a KV head. The values are finite and not negative.
  kQuerySquares = 0,     // of q * q: for mining a profile
  kQueryMagnitudes = 1,  // of |q|: for mixkvq's choice of channels
  // Scores of tokens, for arkv. A token with an infinite score is kept at full precision. NaN, 0
  // and negative scores mean that the score is unknown.
  kTokenScores = 2,
};
inline constexpr Statistic kStatistics[] = {Statistic::kQuerySquares, Statistic::kQueryMagnitudes,
                                            Statistic::kTokenScores};
inline constexpr size_t kStatisticCount = std::size(kStatistics);

// A set of kinds. Bit i stands for kStatistics[i].
class StatisticSet {
 public:
  static constexpr uint8_t kBitsMax = (1 << kStatisticCount) - 1;

  constexpr StatisticSet() = default;
  explicit constexpr StatisticSet(uint8_t bits) : bits_(bits) {}

  [[nodiscard]] constexpr uint8_t bits() const { return bits_; }
  [[nodiscard]] constexpr bool Has(Statistic kind) const { return (bits_ & BitOf(kind)) != 0; }
  constexpr void Add(Statistic kind) { bits_ |= BitOf(kind); }

 private:
  static constexpr uint8_t BitOf(Statistic kind) {
    return static_cast<uint8_t>(1 << static_cast<uint8_t>(kind));
  }
  uint8_t bits_ = 0;
};

// Returns the field's name in a put request, for example "query_squares". Static storage.
[[nodiscard]] const char* Name(Statistic kind);

// Returns the shape as a text for messages, for example "layers x heads x k_dim". Static storage.
[[nodiscard]] const char* ShapeOf(Statistic kind);

// Returns the number of values of a kind for a slice of a block. Means have the shape
// [layer][head][channel of K], scores have [layer][head][token]. Returns 0 for groups with opaque
// bytes.
[[nodiscard]] uint64_t CountOf(Statistic kind, const codecs::TileShape& tile,
                               const codecs::Slice& slice, uint32_t tokens);

// Returns true if the encoder of the recipe reads this kind.
[[nodiscard]] bool IsCodedWith(const codecs::Recipe& recipe, Statistic kind);

}  // namespace cairn::proto
