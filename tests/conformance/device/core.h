// SPDX-License-Identifier: Apache-2.0
#pragma once
// A few steps of tile forms, as hosts and devices compile them: each gives a digest of all
// that it computed.
//
// Thread-safety: pure functions, but for the tiles they are given.

#include <cstdint>

#include "codecs/backend/backend.h"
#include "codecs/backend/hot_tile.h"
#include "codecs/backend/reference/small_norm.h"
#include "codecs/backend/reference/token_norm.h"
#include "codecs/backend/step_tile.h"
#include "codecs/backend/step_token.h"
#include "codecs/numbers/fp8.h"
#include "codecs/numbers/gate.h"
#include "codecs/numbers/hot_levels.h"
#include "codecs/numbers/math.h"
#include "codecs/numbers/mixed.h"
#include "codecs/numbers/static_step.h"
#include "codecs/pack/dense.h"
#include "codecs/pack/elements.h"
#include "codecs/pack/exponent_tables.h"
#include "codecs/pack/lanes32.h"
#include "codecs/pack/lanes32_lookup.h"
#include "codecs/pack/step_strip.h"
#include "codecs/pack/strip.h"
#include "codecs/pack/strip_choice.h"

namespace cairn::codecs::device_test {

static constexpr uint32_t kValues = 64, kForms = 9;
static constexpr uint32_t kTokens = 40, kDim = 6;

struct Digest {
  uint32_t value = 2166136261U;
  CAIRN_HD_MEMBER void Add(uint32_t bits) { value = (value ^ bits) * 16777619U; }
  CAIRN_HD_MEMBER void Add(float number) { Add(FloatBits(number)); }
  CAIRN_HD_MEMBER void Add(const uint8_t* bytes, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) Add(static_cast<uint32_t>(bytes[i]));
  }
};

// Of both signs, from denormals of fp16 on to some thousands.
CAIRN_HD float Value(uint32_t i) {
  const uint32_t any = i * 2654435761U + 12345U;
  const float whole = static_cast<float>(static_cast<int32_t>(any >> 8 & 0xFFFF) - 32768);
  return Multiply(whole, Exp2(-256 * static_cast<int32_t>(any % 37)));
}

CAIRN_HD Span RangeOf(uint32_t first) {
  Span span{0.0F, 0.0F};
  for (uint32_t i = 0; i < kValues; ++i) {
    const float value = Value(first + i);
    span.low = value < span.low ? value : span.low;
    span.high = value > span.high ? value : span.high;
  }
  return span;
}

CAIRN_HD void AddStored(float value, Digest* digest) {
  uint8_t bytes[8] = {};
  for (const DType dtype :
       {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp8E4m3, DType::kFp8E5m2}) {
    StoreElement(dtype, bytes, 1, value);
    digest->Add(LoadElement(dtype, bytes, 1));
  }
}

CAIRN_HD uint32_t Affine(uint32_t first) {
  Digest digest;
  const Span span = RangeOf(first);
  for (uint32_t bits = 2; bits <= 8; bits *= 2) {
    for (uint32_t clip = 0; clip < ClipCount(bits, true); ++clip) {
      const AffineParams params = MakeParams(span.low, span.high, ClipInset(bits, clip));
      uint8_t stored[4];
      StoreParams(stored, 0, params);
      const float min = Fp16ToFloat(LoadParams(stored, 0).min);
      const float range = Fp16ToFloat(params.range);
      const float weight = ClipWeight(bits, range, Add(span.high, -span.low));
      uint8_t row[kValues] = {};
      for (uint32_t i = 0; i < kValues; ++i) {
        const float value = Value(first + i);
        PackCode(row, i, bits, Narrow(Code8(value, min, InverseStep(8, range)), bits));
        digest.Add(static_cast<uint32_t>(
            ClipDistance(value, min, InverseStep(bits, range), Levels(bits), weight)));
        AddStored(Dequantize(UnpackCode(row, i, bits), Step(bits, range), min), &digest);
      }
    }
  }
  return digest.value;
}

CAIRN_HD uint32_t Patterned(uint32_t first) {
  Digest digest;
  uint8_t pattern[2 * kValues];
  GateSums sums;
  for (uint32_t i = 0; i < kValues; ++i) {
    StoreElement(DType::kFp16, pattern, i, Value(first + 3 * i));
    const float rest = Add(Value(first + i), -LoadPatternValue(pattern, i));
    sums = AddGroup(sums, 8, Value(first + i), rest);
    AddStored(
        Add(Dequantize(static_cast<uint8_t>(i % 4), 0.25F, rest), LoadPatternValue(pattern, i)),
        &digest);
  }
  digest.Add(sums.gain);
  digest.Add(sums.spread);
  digest.Add(static_cast<uint32_t>(PassesGate(sums, kGateLevel)));
  return digest.value;
}

CAIRN_HD uint32_t Mixed(uint32_t first) {
  Digest digest;
  for (uint32_t i = 0; i < kValues; ++i) {
    const float salience = Salience(Value(first + i), Value(first + 2 * i), Value(first + 3 * i));
    digest.Add(salience);
    for (uint32_t variant = 1; variant < kMixedVariants; ++variant) {
      const auto of = static_cast<MixedVariant>(variant);
      digest.Add(static_cast<uint32_t>(ClassAbove(salience, ThresholdsOf(of))));
    }
  }
  return digest.value;
}

// Of fp8 and of kept.
CAIRN_HD uint32_t Fp8(uint32_t first) {
  Digest digest;
  const Span span = RangeOf(first);
  const float scale = Fp16ToFloat(Fp8Scale(span.high > -span.low ? span.high : -span.low));
  for (uint32_t i = 0; i < kValues; ++i) {
    const uint8_t code = FloatToE4m3(Multiply(Value(first + i), Fp8Inverse(scale)));
    digest.Add(static_cast<uint32_t>(code));
    AddStored(Multiply(E4m3ToFloat(code), scale), &digest);
  }
  return digest.value;
}

// Exponents of strips: split, coded and joined again.
CAIRN_HD uint32_t Strips(uint32_t first) {
  Digest digest;
  uint8_t symbols[kTokens * kDim];
  ChannelSample sample{};
  for (uint32_t i = 0; i < kTokens * kDim; ++i) {
    const Fields fields = Split(DType::kFp32, FloatBits(Value(first + i)));
    digest.Add(Join(DType::kFp32, fields));
    symbols[i] = static_cast<uint8_t>(fields.exponent % 10 + 1);
    ++sample.counts[fields.exponent % kWindow];
  }
  sample.mean = 9;
  const TableChoice choice = ChooseTable(sample, kAboveMin, kAboveMax);
  digest.Add(choice.table);
  const auto table_at = [&](uint32_t) -> const CoderTable& { return kExponentCoderTables.of[13]; };
  const auto symbol_at = [&](uint32_t channel, uint32_t token) -> uint32_t {
    return token < kTokens ? symbols[token * kDim + channel]
                           : LikeliestSymbol(kExponentCoderTables.of[13]);
  };
  uint8_t room[2 * kCoderStatesBytes + 2 * kCoderLanes * kDim];
  uint8_t* end = room + sizeof(room);
  const uint8_t* stream = EncodeStream(kTokens, kDim, table_at, symbol_at, room, end);
  if (stream == nullptr) return 0;
  const auto bytes = static_cast<uint32_t>(end - stream);
  digest.Add(stream, bytes);
  const auto emit = [&](uint32_t channel, uint32_t token, uint32_t symbol) {
    return symbol == symbol_at(channel, token);
  };
  digest.Add(static_cast<uint32_t>(
      DecodeStream(stream, bytes, kTokens, kDim, table_at, emit) ? bytes : 0));
  const CoderLookup lookup = MakeCoderLookup(kExponentCoderTables.of[choice.table]);
  digest.Add(lookup.first, 16);
  StripParts parts{};
  parts.mode = StripMode::kLanes32;
  parts.stream_bytes = bytes;
  PlaceParts({kTokens, kDim, DType::kFp16, false}, &parts);
  digest.Add(static_cast<uint32_t>(parts.bytes));
  return digest.value;
}

CAIRN_HD uint32_t Planes(uint32_t first) {
  Digest digest;
  uint8_t runs[kRunBytes] = {};
  for (uint32_t i = 0; i < kRun; ++i) StoreRunCode(runs, i, FloatBits(Value(first + i)) >> 7 & 7);
  for (uint32_t i = 0; i < kRun; ++i) digest.Add(LoadRunCode(runs, i));
  for (uint32_t distance = kPlanesReach; distance < 256; ++distance) {
    const uint32_t nibble = NibbleOf(distance);
    digest.Add(nibble == kRawNibble ? distance : DistanceOf(nibble));
  }
  return digest.value;
}

// A tile of `kDim` channels with RoPE and, where asked, a basis, and what it borrows.
struct StepMemory {
  StepTile tile;
  HotTile hot;
  uint8_t turns[8 * kDim];
  uint8_t scales[4 * kDim];
  uint8_t vectors[2 * kDim * kDim];
  CoderTable tables[kProfileTables];
};

CAIRN_HD void FillTile(uint32_t first, bool has_basis, const float (*offsets)[2],
                       StepMemory* memory, StepTile* tile) {
  tile->dim = tile->v_dim = kDim;
  tile->plane = 0;
  tile->dtype = DType::kBf16;
  tile->level = 1;
  tile->has_basis = has_basis;
  tile->pairs = 2;
  tile->turning = {2, 1, 1, 2, memory->turns};
  tile->basis = {memory->scales, memory->scales, memory->vectors};
  tile->shared = {memory->tables, nullptr, offsets, nullptr, false};
  for (uint32_t i = 0; i < kProfileTables; ++i) {
    memory->tables[i] = kExponentCoderTables.of[i % kExponentTables];
  }
  tile->planes = 0;
  for (uint32_t i = 0; i < kDim; ++i) {
    Store32(memory->turns + 8 * i, (first + i) * 2654435761U);
    Store32(memory->turns + 8 * i + 4, (first + i) * 40503U);
    StoreElement(DType::kFp32, memory->scales, i, Exp2(static_cast<int32_t>(i * 50)));
    const int32_t step = -static_cast<int32_t>(i * 100) - 200;
    tile->channels[i] = {Value(first + i), Exp2(step), Exp2(-step),
                         StepShapeOf(static_cast<int32_t>(i * 250))};
    tile->planes += tile->channels[i].shape.low_bits;
  }
  for (uint32_t i = 0; i < kDim * kDim; ++i) {
    StoreElement(DType::kFp16, memory->vectors, i, Multiply(Value(first + i), Exp2(-2560)));
  }
}

CAIRN_HD uint32_t Steps(uint32_t first, bool has_basis, StepMemory* memory) {
  Digest digest;
  float offsets[kProfileTables + 1][2];
  for (uint32_t i = 0; i <= kProfileTables; ++i) offsets[i][0] = offsets[i][1] = -0.0625F;
  StepTile& tile = memory->tile;
  FillTile(first, has_basis, offsets, memory, &tile);
  for (uint32_t token = 0; token < kTokens; ++token) {
    float values[kDim];
    float centred[kDim];
    for (uint32_t c = 0; c < kDim; ++c) values[c] = Value(first + token * kDim + c);
    StepForward(tile, 1000000 + token, values, centred);
    for (uint32_t c = 0; c < kDim; ++c) {
      digest.Add(centred[c]);
      const float position = Multiply(centred[c], tile.channels[c].step_inverse);
      const bool is_code = position >= -kStepCodeMax && position <= kStepCodeMax;
      const int32_t code = is_code ? Coarsen(RoundToInt(position), tile.level) : 0;
      const uint32_t low_bits = tile.channels[c].shape.low_bits;
      digest.Add(static_cast<uint32_t>(
          StepCode(StepSymbol(code, low_bits), StepLow(code, low_bits), low_bits)));
      digest.Add(static_cast<uint32_t>(TableOf(tile, c).frequency[3]));
      centred[c] = ValueOf(tile, c, code);
    }
    StepBack(tile, 1000000 + token, centred, values);
    for (uint32_t c = 0; c < kDim; ++c) AddStored(values[c], &digest);
  }
  return digest.value;
}

CAIRN_HD uint32_t Hot(uint32_t first, StepMemory* memory) {
  Digest digest;
  HotTile& tile = memory->hot;
  FillTile(first, false, nullptr, memory, &tile.step);
  tile.is_corrected = true;
  uint8_t codes[kDim];
  for (uint8_t& code : codes) code = 0;
  uint8_t corrections[kDim];
  for (uint8_t& correction : corrections) correction = 0x9A;
  uint32_t offset = 0;
  for (uint32_t c = 0; c < kDim; ++c) {
    const auto worth = static_cast<int32_t>(c * 210);
    tile.channels[c] = {static_cast<int16_t>(worth), static_cast<uint8_t>(HotWidth(worth)), offset};
    offset += tile.channels[c].width;
  }
  for (uint32_t c = 0; c < kDim; ++c) {
    const HotChannel& channel = tile.channels[c];
    const int32_t scale = HotScaleLog(channel.spread_log, HotCorrectionAt(tile, corrections, c));
    const float size = Multiply(Value(first + c), Exp2(-scale));
    digest.Add(static_cast<uint32_t>(HotCorrection(Multiply(size, size))));
    if (channel.width == 0) continue;
    StoreHotBits(codes, channel.bit_offset, channel.width, HotCode(size, channel.width));
    const uint32_t code = LoadHotBits(codes, channel.bit_offset, channel.width);
    AddStored(Multiply(HotLevel(code, channel.width), Exp2(scale)), &digest);
  }
  return digest.value;
}

// Which tokens are kept.
CAIRN_HD uint32_t Rows(uint32_t first) {
  Digest digest;
  uint8_t elements[2 * kTokens * kDim];
  StripTokens rows{};
  for (uint32_t i = 0; i < kTokens * kDim; ++i) {
    StoreElement(DType::kBf16, elements, i, Multiply(Value(first + i), 4.0F));
  }
  for (uint32_t token = 0; token < kTokens; ++token) {
    bool is_row = false;
    for (uint32_t c = 0; c < kDim; ++c) {
      is_row = is_row || IsRowValue(LoadElement(DType::kBf16, elements, token * kDim + c));
    }
    if (is_row) rows.Add(token);
    digest.Add(TokenNorm(DType::kBf16, kDim, elements, token,
                         [](float value) { return Multiply(value, value); }));
  }
  digest.Add(rows.Count());
  digest.Add(static_cast<uint32_t>(rows.words[0]));
  return digest.value;
}

// digests  kForms of them
CAIRN_HD void RunAll(uint32_t first, StepMemory* memory, uint32_t* digests) {
  digests[0] = Affine(first);
  digests[1] = Patterned(first);
  digests[2] = Mixed(first);
  digests[3] = Fp8(first);
  digests[4] = Strips(first);
  digests[5] = Planes(first);
  digests[6] = Steps(first, false, memory) ^ Steps(first, true, memory);
  digests[7] = Hot(first, memory);
  digests[8] = Rows(first);
}

}  // namespace cairn::codecs::device_test
