// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a writer may say with a put besides the KV: numbers of type f32 that follow the slice in the
// payload, one kind after the other in the order of kStatistics.
//
// Thread-safety: values and pure functions.

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"

namespace cairn::proto {

enum class Statistic : uint8_t {
  // Means over the block's tokens and over the query heads that read the head of K, of the query as
  // it meets K, that is after RoPE. Finite, not negative.
  kQuerySquares = 0,     // q * q: a profile is mined with it
  kQueryMagnitudes = 1,  // |q|: mixkvq chooses channels by it
  // What each token is worth to its readers, for arkv. Infinite: it is kept at full precision; NaN
  // and what is not above 0: not known.
  kTokenScores = 2,
};
inline constexpr Statistic kStatistics[] = {Statistic::kQuerySquares, Statistic::kQueryMagnitudes,
                                            Statistic::kTokenScores};
inline constexpr size_t kStatisticCount = std::size(kStatistics);

// Which of them there are: bit i is kStatistics[i].
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

// "query_squares": the field of a put request. Static storage.
[[nodiscard]] const char* Name(Statistic kind);

// "layers x heads x k_dim". Static storage.
[[nodiscard]] const char* ShapeOf(Statistic kind);

// Numbers of a kind that a slice of a block has, [layer][head][channel of K or token]; 0 for groups
// whose bytes are opaque.
[[nodiscard]] uint64_t CountOf(Statistic kind, const codecs::TileShape& tile,
                               const codecs::Slice& slice, uint32_t tokens);

// The recipe's encoder reads it.
[[nodiscard]] bool IsCodedWith(const codecs::Recipe& recipe, Statistic kind);

}  // namespace cairn::proto
