// SPDX-License-Identifier: Apache-2.0
#include "codecs/predict/pattern.h"

#include "codecs/bytes.h"
#include "codecs/predict/gate.h"
#include "codecs/reference/reference.h"
#include "codecs/select/token_norm.h"

namespace cairn::codecs {
namespace {

// One token of a tile, and what is left of it without a pattern.
class Token {
 public:
  Token(const TileSource& source, uint32_t index)
      : geometry_(source.geometry), source_(source.bytes), first_(uint64_t{index} * Dim()) {}

  [[nodiscard]] uint32_t Dim() const { return geometry_.dim; }
  // pattern  Dim() fp16, or null: nothing is taken
  [[nodiscard]] float At(const uint8_t* pattern, uint32_t channel) const {
    const float value = reference::LoadElement(geometry_.dtype, source_, first_ + channel);
    return pattern == nullptr
               ? value
               : Add(value, -Fp16ToFloat(Load<uint16_t>(pattern + 2 * uint64_t{channel})));
  }
  // Of channels [first, end).
  [[nodiscard]] float Range(const uint8_t* pattern, uint32_t first, uint32_t end) const {
    float low = At(pattern, first);
    float high = low;
    for (uint32_t channel = first + 1; channel < end; ++channel) {
      const float value = At(pattern, channel);
      low = value < low ? value : low;
      high = value > high ? value : high;
    }
    return Add(high, -low);
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
  const TileGeometry& geometry_;
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

// The first pattern of those for which cost(token, pattern) is least.
template <typename Cost>
void Predict(const TileSource& source, TilePlan* plan, Cost cost) {
  const TileGeometry& geometry = source.geometry;
  const uint32_t plane = geometry.IsPerChannel() ? 0 : 1;
  const uint8_t* patterns = source.bank->PatternsOf(plane, source.at);
  const uint64_t pattern_bytes = uint64_t{geometry.dim} * sizeof(uint16_t);
  plan->patterns = patterns;
  for (uint32_t t = 0; t < geometry.rows; ++t) {
    if (plan->IsRow(t)) continue;
    const Token token(source, t);
    uint32_t best = 0;
    float best_cost = 0.0F;
    for (uint32_t i = 0; i < source.bank->patterns(); ++i) {
      const float this_cost = cost(token, patterns + i * pattern_bytes);
      if (i != 0 && !(this_cost < best_cost)) continue;
      best = i;
      best_cost = this_cost;
    }
    const uint8_t* pattern = patterns + best * pattern_bytes;
    if (plane == 1 && !Pays(token, plan->affine.group, pattern)) continue;
    if (token.IsCodable(pattern)) {
      plan->Predict(t, static_cast<uint8_t>(best));
    } else {
      plan->AddRow(t);
    }
  }
}

}  // namespace

void PredictMinMax(const Backend& /*backend*/, const TileSource& source, TilePlan* plan) {
  Predict(source, plan, [](const Token& token, const uint8_t* pattern) {
    return token.Range(pattern, 0, token.Dim());
  });
}

void PredictNearest(const Backend& /*backend*/, const TileSource& source, TilePlan* plan) {
  Predict(source, plan,
          [](const Token& token, const uint8_t* pattern) { return token.SquaredLength(pattern); });
}

}  // namespace cairn::codecs
