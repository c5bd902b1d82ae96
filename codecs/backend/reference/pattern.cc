// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/reference/reference.h"
#include "codecs/backend/reference/token_norm.h"
#include "codecs/numbers/gate.h"

namespace cairn::codecs::reference {
namespace {

// One token of a tile, with or without a pattern subtracted.
class Token {
 public:
  Token(const PatternedTile& tile, const uint8_t* source, uint32_t index)
      : tile_(tile), source_(source), first_(uint64_t{index} * tile.dim) {}

  [[nodiscard]] uint32_t Dim() const { return tile_.dim; }
  // pattern  Dim() fp16, or null: nothing is subtracted
  [[nodiscard]] float At(const uint8_t* pattern, uint32_t channel) const {
    const float value = LoadElement(tile_.dtype, source_, first_ + channel);
    return pattern == nullptr ? value : Add(value, -LoadPatternValue(pattern, channel));
  }
  // Returns the span of channels [first, end).
  [[nodiscard]] Span SpanOf(const uint8_t* pattern, uint32_t first, uint32_t end) const {
    Span span{At(pattern, first), At(pattern, first)};
    for (uint32_t channel = first + 1; channel < end; ++channel) {
      const float value = At(pattern, channel);
      span.low = value < span.low ? value : span.low;
      span.high = value > span.high ? value : span.high;
    }
    return span;
  }
  [[nodiscard]] float Range(const uint8_t* pattern, uint32_t first, uint32_t end) const {
    const Span span = SpanOf(pattern, first, end);
    return Add(span.high, -span.low);
  }
  [[nodiscard]] float SquaredLength(const uint8_t* pattern) const {
    float sums[kNormSums] = {};
    for (uint32_t channel = 0; channel < Dim(); ++channel) {
      const float value = At(pattern, channel);
      sums[channel % kNormSums] = Add(sums[channel % kNormSums], Multiply(value, value));
    }
    return JoinSums(sums);
  }
  [[nodiscard]] bool IsCodable(const uint8_t* pattern) const {
    bool is_codable = true;
    for (uint32_t channel = 0; channel < Dim(); ++channel) {
      is_codable &= !IsRowValue(At(pattern, channel));
    }
    return is_codable;
  }

 private:
  const PatternedTile& tile_;
  const uint8_t* source_;
  uint64_t first_;
};

bool Pays(const Token& token, uint32_t group, const uint8_t* pattern) {
  GateSums sums;
  for (uint32_t first = 0; first < token.Dim(); first += group) {
    const uint32_t end = token.Dim() - first < group ? token.Dim() : first + group;
    sums = AddGroup(sums, end - first, token.Range(nullptr, first, end),
                    token.Range(pattern, first, end));
  }
  return PassesGate(sums, kGateLevel);
}

// Returns the first pattern with the least cost.
uint32_t Cheapest(const PatternedTile& tile, const Token& token) {
  uint32_t best = 0;
  float best_cost = 0.0F;
  for (uint32_t i = 0; i < tile.count; ++i) {
    const uint8_t* pattern = tile.patterns + uint64_t{2} * i * tile.dim;
    const float cost =
        tile.is_nearest ? token.SquaredLength(pattern) : token.Range(pattern, 0, tile.dim);
    if (i != 0 && !(cost < best_cost)) continue;
    best = i;
    best_cost = cost;
  }
  return best;
}

// Writes the span of each group of a token. `pattern`: as in Token::At().
void PutSpans(const PatternedTile& tile, const Token& token, const uint8_t* pattern, Span* spans) {
  for (uint32_t first = 0; first < tile.dim; first += tile.group) {
    const uint32_t end = tile.dim - first < tile.group ? tile.dim : first + tile.group;
    spans[first / tile.group] = token.SpanOf(pattern, first, end);
  }
}

}  // namespace

void ChoosePatterns(const PatternedTile& tile, const uint8_t* source, uint64_t* rows,
                    uint8_t* numbers, uint64_t* is_predicted) {
  const uint32_t groups = tile.group == 0 ? 0 : (tile.dim + tile.group - 1) / tile.group;
  for (uint32_t t = 0; t < tile.tokens; ++t) {
    if (IsRow(rows, t)) continue;
    const Token token(tile, source, t);
    const uint32_t number = Cheapest(tile, token);
    const uint8_t* pattern = tile.patterns + uint64_t{2} * number * tile.dim;
    const bool is_taken = tile.group == 0 || Pays(token, tile.group, pattern);
    if (tile.group != 0 && tile.spans != nullptr) {
      PutSpans(tile, token, is_taken ? pattern : nullptr, tile.spans + uint64_t{t} * groups);
    }
    if (!is_taken) continue;
    const uint64_t bit = uint64_t{1} << (t % 64);
    if (token.IsCodable(pattern)) {
      numbers[t] = static_cast<uint8_t>(number);
      is_predicted[t / 64] |= bit;
    } else {
      rows[t / 64] |= bit;
    }
  }
}

}  // namespace cairn::codecs::reference
