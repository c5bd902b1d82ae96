// SPDX-License-Identifier: Apache-2.0
#pragma once
// Chooses, for each channel of a strip of `exact`, the entropy-coding table and the top (the
// largest exponent that is coded without an escape). codecs/pack/strip_choice.h does the same. One
// warp per strip, one lane per channel.

#include <cstdint>

#include "codecs/pack/exponent_tables.h"
#include "codecs/pack/lanes32.h"
#include "codecs/pack/strip.h"
#include "codecs/pack/strip_choice.h"
#include "kernels/body/encode_tasks.h"
#include "kernels/body/strips_fast.h"

namespace cairn::kernels {

inline constexpr uint32_t kWindowWords = codecs::kWindow / 4;
inline constexpr uint32_t kTopsTried = codecs::kAboveMax - codecs::kAboveMin + 1;
inline constexpr uint32_t kTableChoices = codecs::kExponentTables * kTopsTried;

struct EncodeTables {
  // By table and top: the cost of each exponent in the window of the sample, in one byte.
  alignas(16) uint32_t prices[kTableChoices][4];
  // Symbols that have no frequency use the entry of the escape.
  SymbolStep symbols[codecs::kExponentTables][codecs::kCoderSymbols];
  uint8_t likeliest[codecs::kExponentTables];
};

struct StripsEncodeShared {
  EncodeTables tables;
  struct Warp {
    uint32_t exponents[codecs::kStripTokens * kExponentWords];  // 32 channels of each token
    const uint8_t* places[kTaskTokensMax];
  } warps[kBlockWarps];
};

CAIRN_DEVICE uint32_t PriceWord(uint32_t choice, uint32_t word) {
  const uint32_t table = choice / kTopsTried;
  const int32_t above = codecs::kAboveMin + static_cast<int32_t>(choice % kTopsTried);
  uint32_t prices = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const int32_t symbol =
        above - static_cast<int32_t>(codecs::kWindowAbove) + static_cast<int32_t>(4 * word + i);
    const bool is_coded = symbol >= 0 && symbol < static_cast<int32_t>(codecs::kEscapeSymbol);
    const uint32_t price = codecs::kExponentCosts[table][is_coded ? static_cast<uint32_t>(symbol)
                                                                  : codecs::kEscapeSymbol];
    prices |= price << (8 * i);
  }
  return prices;
}

// Fills the tables. The block must synchronize before it reads them.
CAIRN_DEVICE void FillEncodeTables(EncodeTables* tables) {
  const uint32_t thread = ThreadIndex();
  static_assert(kTableChoices * kWindowWords <= kBlockThreads);
  static_assert(codecs::kExponentTables * codecs::kCoderSymbols == kBlockThreads);
  if (thread < kTableChoices * kWindowWords) {
    const uint32_t choice = thread / kWindowWords, word = thread % kWindowWords;
    tables->prices[choice][word] = PriceWord(choice, word);
  }
  const uint32_t table = thread / codecs::kCoderSymbols, symbol = thread % codecs::kCoderSymbols;
  const codecs::CoderTable& of = codecs::kExponentCoderTables.of[table];
  tables->symbols[table][symbol] = StepOfSymbol(of, symbol);
  if (symbol == 0) tables->likeliest[table] = static_cast<uint8_t>(codecs::LikeliestSymbol(of));
}

// A strip of a source, as its warp sees it.
struct SourceStrip {
  codecs::StripShape shape;
  const uint8_t* const* places;  // in shared memory
  uint8_t* part;                 // the strip's part of the slot
  uint32_t part_bytes;
  uint32_t unit;  // as in PlaneRecord

  [[nodiscard]] CAIRN_DEVICE_MEMBER uint32_t Exponent(uint32_t token, uint32_t channel) const {
    // Loads the two bytes that contain an element's exponent, or the only byte. Shifts the exponent
    // down.
    const uint32_t bytes = codecs::BytesOf(shape.dtype);
    const uint8_t* last = places[token] + bytes * channel + bytes - 1;
    const uint32_t high = LoadGlobal<uint8_t>(last);
    if (shape.dtype == codecs::DType::kFp8E4m3) return high >> 3 & 0xF;
    if (codecs::HasLowRuns(shape.dtype)) return high >> 2 & 0x1F;
    return (high << 1 | LoadGlobal<uint8_t>(last - 1) >> 7) & 0xFF;
  }
  // The par byte of a channel. At first it has only the table (table << 4). Top() has the top,
  // until its memory is used for something else.
  [[nodiscard]] CAIRN_DEVICE_MEMBER uint8_t* Par(uint32_t channel) const {
    return part + codecs::strip::kPar + channel;
  }
  [[nodiscard]] CAIRN_DEVICE_MEMBER uint8_t* Top(uint32_t channel) const {
    return Par(shape.dim + channel);
  }
};

// The address of each token is a multiple of 16, and a token consists of whole units of bf16 or
// fp16.
CAIRN_DEVICE bool HasUnits(const codecs::StripShape& shape, uint32_t unit) {
  return unit == sizeof(U32x4) && shape.dim % kUnit == 0 && codecs::BytesOf(shape.dtype) == 2;
}

// Does the same as LoadExponents() if all 32 channels exist. Four lanes share a token; each loads
// one unit.
template <codecs::DType kDType>
CAIRN_DEVICE void LoadExponentUnits(const SourceStrip& strip, uint32_t first, uint32_t* words) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, part = lane % 4;
  for (uint32_t token = lane / 4; token < strip.shape.tokens; token += kWarpLanes / 4) {
    const auto bits = LoadGlobal<U32x4>(strip.places[token] + 2 * first + 16 * part);
    uint32_t* to = words + kExponentWords * token + 2 * part;
    to[0] = ExponentsOfFour<kDType>({bits.x, bits.y});
    to[1] = ExponentsOfFour<kDType>({bits.z, bits.w});
  }
}

// Loads the exponents of 32 channels of all tokens into shared memory. The warp must synchronize
// before and after.
CAIRN_DEVICE void LoadExponents(const SourceStrip& strip, uint32_t first, uint32_t* words) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  if (HasUnits(strip.shape, strip.unit) && first + kWarpLanes <= strip.shape.dim) {
    if (strip.shape.dtype == codecs::DType::kBf16) {
      LoadExponentUnits<codecs::DType::kBf16>(strip, first, words);
    } else {
      LoadExponentUnits<codecs::DType::kFp16>(strip, first, words);
    }
    return;
  }
  auto* exponents = reinterpret_cast<uint8_t*>(words);
  if (first + lane >= strip.shape.dim) return;
  for (uint32_t token = 0; token < strip.shape.tokens; ++token) {
    exponents[4 * kExponentWords * token + lane] =
        static_cast<uint8_t>(strip.Exponent(token, first + lane));
  }
}

// Equals codecs::ChannelSample. Its counts fit into bytes, because they are at most 64.
struct PackedSample {
  uint32_t mean = 0;
  uint32_t counts[kWindowWords] = {};

  [[nodiscard]] CAIRN_DEVICE_MEMBER uint32_t Count(uint32_t i) const {
    const uint32_t word = i < 4 ? counts[0] : i < 8 ? counts[1] : counts[2];
    return word >> (8 * (i % 4)) & 0xFF;
  }
};

// Samples the channel of this lane.
CAIRN_DEVICE PackedSample SampleChannel(uint32_t tokens, const uint32_t* words) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, stride = codecs::SampleStride(tokens);
  const auto* exponents = reinterpret_cast<const uint8_t*>(words) + lane;
  uint32_t sum = 0, count = 0;
  for (uint32_t token = 0; token < tokens; token += stride) {
    const uint32_t exponent = exponents[4 * kExponentWords * token];
    sum += exponent;
    count += exponent != 0 ? 1 : 0;
  }
  PackedSample sample;
  sample.mean = codecs::MeanOf(sum, count, codecs::SampleCount(tokens));
  for (uint32_t token = 0; token < tokens; token += stride) {
    const uint32_t exponent = exponents[4 * kExponentWords * token];
    const uint32_t at = (sample.mean + codecs::kWindowAbove - exponent) & 0xFF;
    const uint32_t one = 1U << (8 * (at % 4));
    CAIRN_UNROLL
    for (uint32_t word = 0; word < kWindowWords; ++word) {
      sample.counts[word] += at / 4 == word ? one : 0;
    }
  }
  return sample;
}

// Does the same as codecs::ChooseTable() for the tops that are tried. Returns an index of
// EncodeTables::prices.
CAIRN_DEVICE uint32_t ChooseOfPrices(const PackedSample& sample, const EncodeTables& tables) {
  uint32_t best = ~0U;
  for (uint32_t choice = 0; choice < kTableChoices; ++choice) {
    uint32_t price = 0;
    CAIRN_UNROLL
    for (uint32_t word = 0; word < kWindowWords; ++word) {
      price = DotBytes(sample.counts[word], tables.prices[choice][word], price);
    }
    const uint32_t key = price * kTableChoices + choice;  // the first choice among the cheapest
    best = key < best ? key : best;
  }
  return best % kTableChoices;
}

// Does the same as codecs::TableForTop().
CAIRN_DEVICE uint32_t TableOfTop(const PackedSample& sample, uint32_t top) {
  const uint32_t above = top - sample.mean - codecs::kWindowAbove;
  uint32_t best = ~0U;
  CAIRN_NO_UNROLL
  for (uint32_t table = 0; table < codecs::kExponentTables; ++table) {
    uint32_t price = 0;
    CAIRN_NO_UNROLL
    for (uint32_t i = 0; i < codecs::kWindow; ++i) {
      const uint32_t symbol = above + i;  // modulo 2^32: a negative symbol is an escape
      price +=
          sample.Count(i) *
          codecs::kExponentCosts[table]
                                [symbol < codecs::kEscapeSymbol ? symbol : codecs::kEscapeSymbol];
    }
    const uint32_t key = price * codecs::kExponentTables + table;
    best = key < best ? key : best;
  }
  return best % codecs::kExponentTables;
}

// Does the same as codecs::ChoosePlanesTop().
CAIRN_DEVICE int32_t ChooseTopOfPlanes(const PackedSample& sample) {
  uint32_t best = 0, most = 0;
  for (uint32_t first = 0; first < codecs::kPlanesTops; ++first) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < codecs::kPlanesReach; ++i) count += sample.Count(first + i);
    if (count > most) {
      best = first;
      most = count;
    }
  }
  return static_cast<int32_t>(codecs::kWindowAbove) - static_cast<int32_t>(best);
}

CAIRN_DEVICE uint32_t LargestOfLanes(uint32_t value) {
  for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    const uint32_t other = ShuffleXor(value, lanes);
    value = other > value ? other : value;
  }
  return value;
}

// Chooses the table and the top of each channel, with one lane per channel. Returns the highest
// top.
CAIRN_DEVICE uint32_t ChooseParams(const SourceStrip& strip, codecs::StripMode mode,
                                   const EncodeTables& tables, uint32_t* exponents) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  uint32_t highest = 0;
  for (uint32_t first = 0; first < strip.shape.dim; first += kWarpLanes) {
    SyncWarp();
    LoadExponents(strip, first, exponents);
    SyncWarp();
    const uint32_t channel = first + lane;
    if (channel >= strip.shape.dim) continue;
    const PackedSample sample = SampleChannel(strip.shape.tokens, exponents);
    if (sample.mean == 0) {
      StoreGlobal(strip.Par(channel), static_cast<uint8_t>(codecs::kDeadRel));
      continue;
    }
    uint32_t table = 0;
    int32_t above = 0;
    if (mode == codecs::StripMode::kLanes32) {
      const uint32_t choice = ChooseOfPrices(sample, tables);
      table = choice / kTopsTried;
      above = codecs::kAboveMin + static_cast<int32_t>(choice % kTopsTried);
    } else {
      above = ChooseTopOfPlanes(sample);
    }
    const uint32_t top = codecs::LimitTop(static_cast<int32_t>(sample.mean) + above);
    StoreGlobal(strip.Par(channel), static_cast<uint8_t>(table << 4));
    StoreGlobal(strip.Top(channel), static_cast<uint8_t>(top));
    highest = top > highest ? top : highest;
  }
  SyncWarp();
  return LargestOfLanes(highest);
}

// Returns the par byte of a lane's channel, for the top of the strip.
//   table_of(top)  returns another table; used if par cannot express the channel's own top
template <typename TableOf>
CAIRN_DEVICE uint32_t FinishPar(const SourceStrip& strip, uint32_t channel, uint32_t highest,
                                TableOf table_of) {
  uint32_t par = LoadRecord<uint8_t>(strip.Par(channel));
  if (par == codecs::kDeadRel) return par;
  uint32_t rel = highest - LoadRecord<uint8_t>(strip.Top(channel));
  if (rel >= codecs::kDeadRel) {
    rel = codecs::kDeadRel - 1;
    par = table_of(highest - rel) << 4;
  }
  par |= rel;
  StoreGlobal(strip.Par(channel), static_cast<uint8_t>(par));
  return par;
}

}  // namespace cairn::kernels
