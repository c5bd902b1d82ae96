// SPDX-License-Identifier: Apache-2.0
// Shared by step_decode.inl and step_encode.inl, with the primitives of simd_blocks.h. A block is
// 16 tokens of all channels of a strip, [channel][token] as floats.

#include "codecs/backend/backend.h"
#include "codecs/backend/reference/reference.h"
#include "codecs/backend/reference/step.h"
#include "codecs/backend/step_scratch.h"
#include "codecs/backend/step_tile.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kBlockTokens = 16;

uint32_t BlockCount(uint32_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

// Returns the bits of a block from the bits of its group.
uint32_t BlockBits(uint32_t of_group, uint32_t block) {
  return of_group >> (block % 2 * kBlockTokens) & 0xFFFF;
}

// Returns the tokens of a group that have codes, as bits: existing tokens that are not rows.
uint32_t CodedTokens(uint32_t tokens, uint32_t group, const StripTokens& rows) {
  return TokensThere(tokens, group) &
         ~static_cast<uint32_t>(rows.words[group / 2] >> (group % 2 * kCoderLanes));
}

// Adds tokens of a block, given as bits, if they exist.
void AddRowsOf(uint32_t block, uint32_t of_block, uint32_t tokens, StripTokens* rows) {
  const uint64_t there = of_block & BlockBits(TokensThere(tokens, block / 2), block);
  rows->words[block / 4] |= there << (block % 4 * kBlockTokens);
}

struct BlockValues {
  alignas(64) float of[kProfileDimMax][kBlockTokens];
};

// The rotations of the pairs of a tile in a block.
struct Rotations {
  const float (*cosine)[kBlockTokens];
  const float (*sine)[kBlockTokens];
};
struct OwnRotations {
  alignas(64) float cosine[kProfileDimMax / 2][kBlockTokens];
  alignas(64) float sine[kProfileDimMax / 2][kBlockTokens];
};

// Computes RotationAt() of the pairs at 16 positions.
void FindRotations(const StepPairs& pairs, uint64_t position, float (*cosines)[kBlockTokens],
                   float (*sines)[kBlockTokens]) {
  const Floats16 half = Blocks::Set(0.5F);
  const Floats16 one = Blocks::Set(1.0F);
  for (uint32_t i = 0; i < pairs.count; ++i) {
    uint64_t turns = 0;
    __builtin_memcpy(&turns, pairs.turns + uint64_t{8} * i, 8);
    // The quarter and the rest depend only on the high half of a phase: 2^61 is 2^29 there.
    const Ints16 phase = Blocks::HighOfMultiples(turns * position, turns);
    const Ints16 quarter = Blocks::Right<30>(Blocks::Add(phase, Blocks::SetInts(1 << 29)));
    const Ints16 rest = Blocks::Sub(phase, Blocks::Left<30>(quarter));
    const Floats16 x = Blocks::Mul(Blocks::ToFloats(rest), Blocks::Set(1.46291808e-9F));
    const Floats16 z = Blocks::Mul(x, x);
    const auto add = [&](Floats16 sum, float constant) {
      return Blocks::Add(sum, Blocks::Set(constant));
    };
    Floats16 s = add(Blocks::Mul(Blocks::Set(-0.00019515295891F), z), 0.0083321608736F);
    s = add(Blocks::Mul(s, z), -0.16666654611F);
    s = Blocks::Add(Blocks::Mul(Blocks::Mul(s, z), x), x);
    Floats16 c = add(Blocks::Mul(Blocks::Set(0.00002443315711809948F), z), -0.001388731625493765F);
    c = add(Blocks::Mul(c, z), 0.04166664568298827F);
    c = Blocks::Sub(Blocks::Mul(Blocks::Mul(c, z), z), Blocks::Mul(half, z));
    c = Blocks::Add(c, one);
    // Odd quarters exchange sine and cosine. The cosine is negative in quarters 1 and 2, the sine
    // in 2 and 3.
    const Ints16 is_odd = Blocks::Left<31>(quarter);
    const Ints16 sine_sign = Blocks::Left<31>(Blocks::Right<1>(quarter));
    const Ints16 cosine_sign = Blocks::Xor(is_odd, sine_sign);
    const Ints16 cosine = Blocks::BitsOf(Blocks::Choose(is_odd, s, c));
    const Ints16 sine = Blocks::BitsOf(Blocks::Choose(is_odd, c, s));
    Blocks::Store(cosines[i], Blocks::OfBits(Blocks::Xor(cosine, cosine_sign)));
    Blocks::Store(sines[i], Blocks::OfBits(Blocks::Xor(sine, sine_sign)));
  }
}

// Returns the rotations of the block at `token` of a strip at a position. They come from the
// scratch, where the first strip stores them, or are computed in `own`.
Rotations RotationsOf(const StepTile& tile, uint64_t position, uint32_t tokens, uint32_t token,
                      StepScratch* scratch, OwnRotations* own) {
  static_assert(StepScratch::kLanes == kBlockTokens);
  const StepPairs& pairs = tile.turning;
  if (scratch == nullptr || pairs.count > StepScratch::kPairsMax) {
    FindRotations(pairs, position + token, own->cosine, own->sine);
    return {own->cosine, own->sine};
  }
  const uint32_t blocks = BlockCount(tokens);
  if (scratch->turns != pairs.turns || scratch->position != position || scratch->blocks < blocks) {
    for (uint32_t block = 0; block < blocks; ++block) {
      FindRotations(pairs, position + block * kBlockTokens, scratch->cosine[block],
                    scratch->sine[block]);
    }
    scratch->turns = pairs.turns;
    scratch->position = position;
    scratch->blocks = blocks;
  }
  return {scratch->cosine[token / kBlockTokens], scratch->sine[token / kBlockTokens]};
}

// Computes ApplyRope() or RemoveRope() of a pair in a block.
template <bool kIsApplied>
[[gnu::always_inline]] inline void TurnPair(Floats16 c, Floats16 s, Floats16* first,
                                            Floats16* second) {
  const Floats16 a = *first;
  const Floats16 b = *second;
  if constexpr (kIsApplied) {
    *first = Blocks::Sub(Blocks::Mul(a, c), Blocks::Mul(b, s));
    *second = Blocks::Add(Blocks::Mul(a, s), Blocks::Mul(b, c));
  } else {
    *first = Blocks::Add(Blocks::Mul(a, c), Blocks::Mul(b, s));
    *second = Blocks::Sub(Blocks::Mul(b, c), Blocks::Mul(a, s));
  }
}

// Rotates all pairs.
template <bool kIsApplied>
void Turn(const StepPairs& pairs, const Rotations& rotations, BlockValues* values) {
  for (uint32_t i = 0; i < pairs.count; ++i) {
    float* at[2] = {values->of[pairs.first + i * pairs.step],
                    values->of[pairs.first + i * pairs.step + pairs.distance]};
    Floats16 first = Blocks::Load(at[0]);
    Floats16 second = Blocks::Load(at[1]);
    TurnPair<kIsApplied>(Blocks::Load(rotations.cosine[i]), Blocks::Load(rotations.sine[i]), &first,
                         &second);
    Blocks::Store(at[0], first);
    Blocks::Store(at[1], second);
  }
}

// Multiplies a matrix and a block, with sums in the order of the terms: row(r) of `terms` factors
// gives result r. Four results are computed at a time.
//   factors(r, of)  writes the factors of the results r to r + 3, [term][4]
template <typename Factors>
void MultiplyMatrix(uint32_t results, uint32_t terms, Factors factors, const BlockValues& by,
                    BlockValues* products) {
  constexpr uint32_t kAtOnce = 4;
  alignas(64) float some[kProfileDimMax][kAtOnce];
  for (uint32_t first = 0; first < results; first += kAtOnce) {
    factors(first, some);
    Floats16 sums[kAtOnce];
    for (Floats16& sum : sums) sum = Blocks::Set(0.0F);
    for (uint32_t term = 0; term < terms; ++term) {
      const Floats16 x = Blocks::Load(by.of[term]);
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        sums[i] = Blocks::Add(sums[i], Blocks::Mul(Blocks::Set(some[term][i]), x));
      }
    }
    for (uint32_t i = 0; i < kAtOnce && first + i < results; ++i) {
      Blocks::Store(products->of[first + i], sums[i]);
    }
  }
}

// Returns an entry of a tile's basis.
float VectorOf(const StepTile& tile, uint32_t channel, uint32_t component) {
  uint16_t bits = 0;
  __builtin_memcpy(&bits, tile.basis.vectors + 2 * (uint64_t{channel} * tile.dim + component), 2);
  return Fp16ToFloat(bits);
}
float ScaleOf(const uint8_t* scales, uint32_t channel) {
  float scale = 0;
  __builtin_memcpy(&scale, scales + uint64_t{4} * channel, 4);
  return scale;
}

// Elements of a dtype of 16 bits.
template <DType kType>
struct Elements16 {
  static Halves16 Round(Floats16 x) {
    return kType == DType::kFp16 ? Blocks::ToFp16(x) : Blocks::ToBf16(x);
  }
  static Halves32 Round(const Floats32& x) {  // a NaN is converted as in ToBf16()
    return kType == DType::kFp16 ? Groups::ToFp16(x) : Groups::ToBf16(x);
  }
  static Floats16 Widen(Halves16 x) {
    return kType == DType::kFp16 ? Blocks::FromFp16(x) : Blocks::FromBf16(x);
  }
  // Converts halves in the order of Blocks::Pack().
  static Floats16 Unpack(Halves16 x) {
    return kType == DType::kFp16 ? Blocks::UnpackFp16(x) : Blocks::UnpackBf16(x);
  }
};

// Calls put(channel, elements) for every channel of a block: 16 tokens in the order of `token_at`.
// Missing tokens repeat the last one. Returns the tokens with an IsRowValue(), as bits in that
// order.
template <DType kType, typename Put>
uint32_t TransposeBlock(const uint8_t* source, uint32_t tokens, uint32_t dim, uint32_t token_first,
                        const uint8_t* token_at, Put put) {
  const uint8_t* row[kBlockTokens];
  for (uint32_t i = 0; i < kBlockTokens; ++i) {
    const uint32_t token = token_first + token_at[i];
    row[i] = source + uint64_t{token < tokens ? token : tokens - 1} * dim * 2;
  }
  // The bits of kMagnitudeMax and above have the same order as the values.
  constexpr uint32_t kLargest = kType == DType::kFp16 ? 0x77FF : kMagnitudeMaxBits >> 16;
  Halves16 largest = Blocks::SetHalves(0);
  uint32_t channel = 0;
  for (; channel + 8 <= dim; channel += 8) {
    Halves16 rows[8];
    for (uint32_t i = 0; i < 8; ++i) {
      rows[i] = Strips::LoadTwo(row[i] + uint64_t{2} * channel, row[8 + i] + uint64_t{2} * channel);
    }
    Blocks::TransposeEights(rows);
    for (uint32_t i = 0; i < 8; ++i) {
      largest = Blocks::MaxMagnitude(largest, rows[i]);
      put(channel + i, rows[i]);
    }
  }
  for (; channel < dim; ++channel) {
    uint8_t elements[2 * kBlockTokens];
    for (uint32_t i = 0; i < kBlockTokens; ++i) {
      __builtin_memcpy(elements + 2 * i, row[i] + uint64_t{2} * channel, 2);
    }
    largest = Blocks::MaxMagnitude(largest, Blocks::LoadHalves(elements));
    put(channel, Blocks::LoadHalves(elements));
  }
  return Blocks::BitsAbove(largest, kLargest);
}

constexpr uint8_t kTokensInOrder[kBlockTokens] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                  8, 9, 10, 11, 12, 13, 14, 15};

// Converts a block of a strip's elements to floats. Missing tokens repeat the last one. Returns the
// tokens with an IsRowValue(), as bits.
template <DType kType>
uint32_t TakeBlock16(const uint8_t* source, uint32_t tokens, uint32_t dim, uint32_t token_first,
                     BlockValues* values) {
  return TransposeBlock<kType>(
      source, tokens, dim, token_first, kTokensInOrder, [&](uint32_t channel, Halves16 elements) {
        Blocks::Store(values->of[channel], Elements16<kType>::Widen(elements));
      });
}

uint32_t TakeBlock(DType dtype, const uint8_t* source, uint32_t tokens, uint32_t dim,
                   uint32_t token_first, BlockValues* values) {
  if (dtype == DType::kBf16) {
    return TakeBlock16<DType::kBf16>(source, tokens, dim, token_first, values);
  }
  if (dtype == DType::kFp16) {
    return TakeBlock16<DType::kFp16>(source, tokens, dim, token_first, values);
  }
  uint32_t rows = 0;
  for (uint32_t i = 0; i < kBlockTokens; ++i) {
    const uint32_t token = token_first + i < tokens ? token_first + i : tokens - 1;
    for (uint32_t c = 0; c < dim; ++c) {
      const float value = reference::LoadElement(dtype, source, uint64_t{token} * dim + c);
      values->of[c][i] = value;
      rows |= IsRowValue(value) ? 1U << i : 0;
    }
  }
  return rows;
}

// Transposes 16 tokens and writes the existing ones: `count`, or all.
//   token_at  the token at each position of a row
//   rows      rounded channels: channel c is at kStride * c
//   target    address of token 0
// kStreams: tokens are whole cache lines, 32 channels each. Channels after the last multiple of 32
// are not written.
template <bool kStreams, uint32_t kStride>
void PutColumns(uint32_t dim, uint32_t count, const uint8_t* token_at, const uint16_t* rows,
                uint8_t* target) {
  const auto take = [](const uint16_t* from, Halves16(&eights)[8]) {
    for (uint32_t i = 0; i < 8; ++i) {
      eights[i] = Strips::LoadTwo(from + i * kStride, from + (8 + i) * kStride);
    }
    Blocks::TransposeEights(eights);
  };
  for (uint32_t channel = 0; channel + 32 <= dim; channel += 32, rows += 32 * kStride) {
    for (uint32_t place = 0; place < kBlockTokens; place += 8) {
      Halves16 first[8];
      Halves16 second[8];
      take(rows + place, first);
      take(rows + 16 * kStride + place, second);
      for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t token = token_at[place + i];
        if (token >= count) continue;
        uint8_t* to = target + uint64_t{2} * (uint64_t{token} * dim + channel);
        Blocks::PutHalves<kStreams>(to, first[i]);
        Blocks::PutHalves<kStreams>(to + 32, second[i]);
      }
    }
  }
}

// Returns whether a strip can be decoded without a block of floats: its values are rounded in
// registers, and PutColumns() writes all channels.
bool FillsColumns(const StepTile& tile) {
  return BytesOf(tile.dtype) == 2 && !tile.has_basis && tile.dim % 32 == 0;
}

// Returns whether a job's target is written past the caches: its tokens are whole cache lines.
template <typename Job>
bool IsStreamed(const StepTile& tile, const Job& job) {
  return job.is_streamed && BytesOf(tile.dtype) == 2 &&
         HasLines(uint64_t{tile.dim} * BytesOf(tile.dtype), job.target);
}

// Elements of a block.
struct BlockHalves {
  alignas(64) uint16_t of[kProfileDimMax][kBlockTokens];

  void Put(uint32_t channel, Halves16 x) {
    Blocks::StoreHalves(reinterpret_cast<uint8_t*>(of[channel]), x);
  }
};

// Not inlined, because g++ 12 would warn about elements that no channel has.
template <DType kType>
[[gnu::noinline]] void RoundBlock(const BlockValues& values, uint32_t dim, BlockHalves* halves) {
  for (uint32_t c = 0; c < dim; ++c) {
    halves->Put(c, Elements16<kType>::Round(Blocks::Load(values.of[c])));
  }
}

// The inverse: writes a block. kStreams: rows are whole cache lines.
template <DType kType, bool kStreams>
void PutBlock16(const BlockValues& values, uint32_t tokens, uint32_t dim, uint32_t token_first,
                uint8_t* target) {
  const uint32_t count = tokens - token_first < kBlockTokens ? tokens - token_first : kBlockTokens;
  uint8_t* block = target + uint64_t{token_first} * dim * 2;
  BlockHalves rounded;
  RoundBlock<kType>(values, dim, &rounded);
  PutColumns<kStreams, kBlockTokens>(dim, count, kTokensInOrder, rounded.of[0], block);
  for (uint32_t channel = dim / 32 * 32; channel < dim; ++channel) {
    for (uint32_t i = 0; i < count; ++i) {
      reference::StoreElement(kType, block + uint64_t{2} * i * dim, channel, values.of[channel][i]);
    }
  }
}

template <bool kStreams>
void PutBlock(DType dtype, const BlockValues& values, uint32_t tokens, uint32_t dim,
              uint32_t token_first, uint8_t* target) {
  if (dtype == DType::kBf16) {
    PutBlock16<DType::kBf16, kStreams>(values, tokens, dim, token_first, target);
  } else if (dtype == DType::kFp16) {
    PutBlock16<DType::kFp16, kStreams>(values, tokens, dim, token_first, target);
  } else {
    for (uint32_t i = 0; i < kBlockTokens && token_first + i < tokens; ++i) {
      uint8_t* row = target + uint64_t{token_first + i} * dim * BytesOf(dtype);
      for (uint32_t c = 0; c < dim; ++c) {
        reference::StoreElement(dtype, row, c, values.of[c][i]);
      }
    }
  }
}

}  // namespace
}  // namespace cairn::codecs
