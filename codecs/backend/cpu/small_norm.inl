// SPDX-License-Identifier: Apache-2.0
// SelectSmallNorms() of codecs/backend/reference/small_norm.h, with the primitives of struct
// Blocks.

#include "codecs/backend/reference/small_norm.h"

namespace cairn::codecs {
namespace {

// Norms of tokens; infinity for missing tokens and for tokens that cannot be coded.
struct TokenNorms {
  alignas(64) float of[kStripTokens];
};

// Sets all bits of the lanes with IsRowValue().
Ints16 AreRowValues(Floats16 x) {
  const Ints16 magnitude = Blocks::And(Blocks::BitsOf(x), Blocks::SetInts(0x7FFFFFFF));
  return Blocks::Above(magnitude, Blocks::SetInts(static_cast<int32_t>(kMagnitudeMaxBits)));
}

// Returns whether an element of 16 or 32 bits has IsRowValue().
template <DType kType>
struct RowValues {
  Halves16 largest = Blocks::SetHalves(0);

  void Add(const uint8_t* elements) {
    largest = Blocks::MaxMagnitude(largest, Blocks::LoadHalves(elements));
  }
  [[nodiscard]] bool HasAny() const {
    return Blocks::BitsAbove(largest, Elements<kType>::kMagnitudeMax) != 0;
  }
};
template <>
struct RowValues<DType::kFp32> {
  Ints16 are = Blocks::SetInts(0);

  void Add(const uint8_t* elements) {
    are = Blocks::Or(are, AreRowValues(Blocks::LoadBytes(elements)));
  }
  [[nodiscard]] bool HasAny() const { return Blocks::Bits(are) != 0; }
};

template <DType kType>
void FindNorms(const StripShape& shape, const uint8_t* v, TokenNorms* norms) {
  const uint32_t bytes = BytesOf(kType);
  const uint32_t whole = shape.dim / 16 * 16;
  alignas(64) uint8_t rest[64] = {};  // of a token
  for (float& norm : norms->of) norm = BitsFloat(kInfinityBits);
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    const uint8_t* row = v + uint64_t{token} * shape.dim * bytes;
    Floats16 sums = Blocks::Set(0.0F);
    RowValues<kType> row_values;
    const auto add = [&](const uint8_t* at) {
      const Floats16 x = LoadFloats(kType, at);
      row_values.Add(at);
      sums = Blocks::Add(sums, Blocks::Mul(x, x));
    };
    for (uint32_t c = 0; c < whole; c += 16) add(row + uint64_t{c} * bytes);
    if (whole < shape.dim) {
      __builtin_memcpy(rest, row + uint64_t{whole} * bytes, uint64_t{shape.dim - whole} * bytes);
      add(rest);
    }
    if (!row_values.HasAny()) norms->of[token] = Blocks::Fold(sums);
  }
}

// Returns the norm of a rank: the smallest norm that `rank` others do not exceed. Bits of norms
// have the same order as norms.
float NormOfRank(const TokenNorms& norms, uint32_t rank) {
  int32_t least = 0;
  for (int32_t bit = 1 << 30; bit != 0; bit >>= 1) {
    const Ints16 border = Blocks::SetInts(least + bit);
    Ints16 below = Blocks::SetInts(0);  // counts, negative
    for (uint32_t token = 0; token < kStripTokens; token += 16) {
      const Ints16 bits = Blocks::BitsOf(Blocks::Load(norms.of + token));
      below = Blocks::Add(below, Blocks::Above(border, bits));
    }
    if (static_cast<uint32_t>(-Blocks::Sum(below)) <= rank) least += bit;
  }
  return BitsFloat(static_cast<uint32_t>(least));
}

void AddSmallNorms(const StripShape& shape, const uint8_t* v, StripTokens* rows) {
  if (IsFp8(shape.dtype)) return SelectSmallNorms(shape, v, rows);
  TokenNorms norms;
  if (shape.dtype == DType::kBf16) {
    FindNorms<DType::kBf16>(shape, v, &norms);
  } else if (shape.dtype == DType::kFp16) {
    FindNorms<DType::kFp16>(shape, v, &norms);
  } else {
    FindNorms<DType::kFp32>(shape, v, &norms);
  }
  const float limit = Multiply(kSmallNorm, NormOfRank(norms, shape.tokens / 2));
  for (uint32_t i = 0; i < kSmallNormsMax; ++i) {
    uint32_t smallest = 0;
    for (uint32_t token = 1; token < shape.tokens; ++token) {
      if (norms.of[token] < norms.of[smallest]) smallest = token;
    }
    if (!(norms.of[smallest] < limit)) return;
    rows->Add(smallest);
    norms.of[smallest] = BitsFloat(kInfinityBits);
  }
}

}  // namespace
}  // namespace cairn::codecs
