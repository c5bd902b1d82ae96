// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decodes the most common strips of `cairn`: bf16, dim a multiple of 16, token addresses at
// multiples of 16, no basis, and RoPE on either all channels of K or none. One warp per strip; each
// lane decodes every 32nd token. It decodes 16 channels at a time, in the order of coding. Channels
// that RoPE rotates together follow each other in this order, so a lane can convert codes to values
// at once. The values of 16 channels are collected in shared memory, and stored 16 bytes at a time.
//
// All tasks of a list use the same tables. The block keeps these in shared memory.

#include <cstdint>

#include "kernels/body/step_decode.h"
#include "kernels/body/strips_fast.h"

namespace cairn::kernels {

inline constexpr uint32_t kStepTableWords = codecs::kProfileTables * codecs::kCoderSlots;
inline constexpr uint32_t kPanelWords = 9;  // per token; one is unused, to spread over banks

// What a warp needs to decode one channel of the panel: the channels that it decodes together.
struct alignas(16) PanelChannel {
  float step, mean;
  uint32_t codes_at;  // index of its row in StepFastShared::codes
  uint32_t low_bits;
};

struct StepFastWarp {
  alignas(16) uint32_t rows[kStepsFastDim];  // offset of a channel's table, in bytes
  alignas(16) uint8_t ring[kRingBytes + kRingMirror];
  PanelChannel channels[kStepsFastDim];
  uint32_t low_at[kStepsFastDim];  // offset of a channel's low planes in the strip, in bytes
  uint64_t turns[kStepsFastDim / 2];
  uint32_t values[codecs::kStripTokens * kPanelWords];
  int16_t escaped[4][codecs::kStripTokens];
  uint32_t is_row[kTaskTokensMax / 32];
  uint8_t* places[kTaskTokensMax];
};

struct StepFastShared {
  alignas(16) uint32_t entries[kStepTableWords];
  // The value of each table's symbols, in steps. The value of the escape symbol is 0.
  float codes[codecs::kProfileTables][codecs::kCoderSymbols];
  StepFastWarp warps[kBlockWarps];
};

// Fills the tables. The block must synchronize before it reads them.
CAIRN_DEVICE void FillStepTables(const StepTables& from, StepFastShared* shared) {
  for (uint32_t i = ThreadIndex(); i < kStepTableWords / 4; i += kBlockThreads) {
    const auto words = LoadGlobal<U32x4>(from.entries + 4 * i);
    CAIRN_UNROLL
    for (uint32_t k = 0; k < 4; ++k) shared->entries[4 * i + k] = WordOf(words, k);
  }
  constexpr uint32_t kCodes = codecs::kProfileTables * codecs::kCoderSymbols;
  for (uint32_t i = ThreadIndex(); i < kCodes; i += kBlockThreads) {
    const uint32_t table = i / codecs::kCoderSymbols, symbol = i % codecs::kCoderSymbols;
    const auto offsets = LoadGlobal<U32x2>(from.offsets[table]);
    const int32_t code = symbol == codecs::kEscapeSymbol ? 0 : codecs::StepCode(symbol, 0, 0);
    shared->codes[table][symbol] = StepCodeOf(code, offsets);
  }
}

// Does the same as codecs::RotationAt(). `phase` is the upper half of turns * position.
CAIRN_DEVICE codecs::Rotation RotationOf(uint32_t phase) {
  const uint32_t quarter = (phase + (1U << 29)) >> 30;
  const auto rest = static_cast<int32_t>(phase - (quarter << 30));
  const codecs::Rotation by = codecs::RotationInQuarter(rest);
  const bool is_odd = (quarter & 1) != 0;
  const uint32_t cosine = codecs::FloatBits(is_odd ? by.sine : by.cosine);
  const uint32_t sine = codecs::FloatBits(is_odd ? by.cosine : by.sine);
  // The cosine is negative in the quarters 1 and 2, the sine in 2 and 3.
  return {codecs::BitsFloat(cosine ^ ((quarter + 1) << 30 & 0x80000000U)),
          codecs::BitsFloat(sine ^ (quarter << 30 & 0x80000000U))};
}

struct FastSteps {
  const FoundSteps& strip;
  const PlaneRecord& plane;
  uint64_t position;  // position of the lane's first token in its chain
  uint32_t coded;     // bit g is set if the lane's token of group g has codes
  bool is_split;      // the first channels of all pairs are adjacent, and so are the second ones
};

// Loads what the decoder needs for 16 channels, one channel per lane. `first` is the index of the
// first channel in coding order. Returns the number of low planes of these channels.
CAIRN_DEVICE uint32_t LoadPanel(const FastSteps& steps, uint32_t first, uint32_t planes_before,
                                StepFastWarp* own) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const PlaneRecord& plane = steps.plane;
  const bool is_there = lane < kStepsFastDim;
  const uint32_t channel = ChannelInPairs(plane, first + lane % kStepsFastDim);
  const codecs::StepChannel known = LoadStep(plane, steps.strip.head, channel);
  const uint32_t low_bits = is_there ? known.shape.low_bits : 0;
  const uint32_t end = SumToLane(low_bits);
  if (is_there) {
    own->rows[lane] = known.shape.table * codecs::kCoderSlots * 4;
    own->channels[lane] = {known.step, known.mean, known.shape.table, low_bits};
    own->low_at[lane] =
        static_cast<uint32_t>(steps.strip.parts.low) +
        (planes_before + end - low_bits) * codecs::LowPlaneBytes(steps.strip.shape.tokens);
  }
  if (plane.pairs.count != 0 && lane < kStepsFastDim / 2) {
    own->turns[lane] = LoadGlobal<uint64_t>(plane.pairs.turns + 8 * (first / 2 + lane));
  }
  return Shuffle(end, kWarpLanes - 1);
}

// Returns the value of a symbol before RoPE is applied.
//   i      index of the channel in the panel
//   token  index of the token in the strip
CAIRN_DEVICE float ValueOfSymbol(const FastSteps& steps, const PanelChannel& channel, uint32_t i,
                                 uint32_t token, uint32_t symbol, const StepFastShared& shared,
                                 const StepFastWarp& own) {
  float code = shared.codes[channel.codes_at][symbol & 15];
  if (channel.low_bits != 0) {  // all lanes take the same branch
    const uint32_t step = codecs::LowPlaneBytes(steps.strip.shape.tokens);
    const uint8_t* low = steps.strip.bytes + own.low_at[i] + token / kWarpLanes * 4;
    const uint32_t bits = LoadLowBits(low, step, channel.low_bits);
    const auto offsets = LoadGlobal<U32x2>(steps.strip.tables->offsets[codecs::kProfileTables]);
    code = StepCodeOf(codecs::StepCode(symbol & 15, bits, channel.low_bits), offsets);
  }
  if ((symbol & kEscapeFlag) != 0) {
    const uint32_t table = channel.low_bits == 0 ? channel.codes_at : codecs::kProfileTables;
    const auto offsets = LoadGlobal<U32x2>(steps.strip.tables->offsets[table]);
    code = StepCodeOf(own.escaped[i % 4][token], offsets);
  }
  return codecs::Add(codecs::Multiply(code, channel.step), channel.mean);
}

// Rotates four channels of all tokens, and stores them in the panel.
template <uint32_t kGroups>
CAIRN_DEVICE void StoreFour(const FastSteps& steps, uint32_t four,
                            const uint32_t (&symbols)[kGroups], const StepFastShared& shared,
                            StepFastWarp* own) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const bool turns = steps.plane.pairs.count != 0;
  uint64_t phases[2] = {}, more[2] = {};
  CAIRN_UNROLL
  for (uint32_t p = 0; p < 2 && turns; ++p) {
    const uint64_t turn = own->turns[2 * four + p];
    phases[p] = turn * steps.position;
    more[p] = turn * kWarpLanes;
  }
  uint32_t* words = own->values + lane * kPanelWords + (steps.is_split ? four : 2 * four);
  const uint32_t beside = steps.is_split ? 4 : 1;
  CAIRN_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) {
    float values[4];
    CAIRN_UNROLL
    for (uint32_t c = 0; c < 4; ++c) {
      values[c] = ValueOfSymbol(steps, own->channels[4 * four + c], 4 * four + c,
                                kWarpLanes * g + lane, symbols[g] >> 8 * c & 0xFF, shared, *own);
    }
    if (turns) {
      CAIRN_UNROLL
      for (uint32_t p = 0; p < 2; ++p) {
        const codecs::Rotation by = RotationOf(static_cast<uint32_t>(phases[p] >> 32));
        const codecs::Pair turned = codecs::ApplyRope({values[2 * p], values[2 * p + 1]}, by);
        values[2 * p] = turned.first;
        values[2 * p + 1] = turned.second;
        phases[p] += more[p];
      }
    }
    const float second = steps.is_split ? values[2] : values[1];
    const float third = steps.is_split ? values[1] : values[2];
    words[kWarpLanes * kPanelWords * g] = PackBf16(values[0], second);
    words[kWarpLanes * kPanelWords * g + beside] = PackBf16(third, values[3]);
  }
}

// Stores 16 channels of every token that has codes. Two lanes share a token.
CAIRN_DEVICE void StorePanel(const FastSteps& steps, uint32_t first, const StepFastWarp& own) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, half = lane % 2;
  const uint32_t channel =
      steps.is_split ? first / 2 + half * steps.plane.pairs.distance : first + 8 * half;
  for (uint32_t token = lane / 2; token < steps.strip.shape.tokens; token += kWarpLanes / 2) {
    uint8_t* place = own.places[token];
    if (place == nullptr) continue;
    const uint32_t* words = own.values + token * kPanelWords + 4 * half;
    StoreGlobal(place + 2 * channel, U32x4{words[0], words[1], words[2], words[3]});
  }
}

template <uint32_t kGroups>
CAIRN_DEVICE bool DecodeStepsOf(const FastSteps& steps, const StepFastShared& shared,
                                StepFastWarp* own) {
  const codecs::StepStripParts& parts = steps.strip.parts;
  // A stream can start at any byte, but copies are pieces of 16 bytes at multiples of 16.
  const auto before = static_cast<uint32_t>(parts.stream % 16);
  FastStream stream{};
  stream.from = steps.strip.bytes + parts.stream - before;
  stream.readable = static_cast<uint32_t>(parts.bytes - parts.stream) + before;
  stream.ring = own->ring;
  const LaneCoder start(steps.strip.bytes + parts.stream, parts.stream_bytes);
  FastCoder coder{0x10000U | start.state, 0};
  stream.Start(before + codecs::kCoderStatesBytes);
  uint32_t planes = 0;
  bool is_wrong = start.is_wrong;
  for (uint32_t first = 0; first < steps.plane.dim; first += kStepsFastDim) {
    planes += LoadPanel(steps, first, planes, own);
    if (planes > parts.planes) break;  // all lanes alike
    SyncWarp();
    CAIRN_NO_UNROLL
    for (uint32_t four = 0; four < kStepsFastDim / 4; ++four) {
      const U32x4 rows = LoadShared128(SharedAddressOf(own->rows) + 16 * four);
      uint32_t symbols[kGroups] = {};
      DecodeFour<kGroups>(rows, SharedAddressOf(shared.entries), &stream, &coder, symbols);
      uint32_t flags = 0;
      CAIRN_UNROLL
      for (uint32_t g = 0; g < kGroups; ++g) flags |= symbols[g];
      if (Any((flags & kEscapeFlag * 0x01010101U) != 0)) {
        TakeEscapes(symbols, steps.coded, &coder, [&](uint32_t i, uint32_t token, uint32_t at) {
          const uint8_t* escape = steps.strip.bytes + parts.escape + 2 * at;
          own->escaped[i][token] = at < parts.escapes ? LoadGlobal<int16_t>(escape) : int16_t{0};
        });
      }
      StoreFour<kGroups>(steps, four, symbols, shared, own);
    }
    SyncWarp();
    StorePanel(steps, first, *own);  // the warp synchronizes before a value is overwritten
  }
  CopyWait<0>();
  is_wrong |= coder.state != 0x10000U + codecs::kCoderStateMin ||
              stream.BytesRead() != before + parts.stream_bytes || coder.escape != parts.escapes ||
              planes != parts.planes;
  return !Any(is_wrong);
}

CAIRN_DEVICE bool DecodeOneStepsFast(const TileTask& task, const FoundSteps& strip,
                                     const PlaneRecord& plane, const StepFastShared& shared,
                                     StepFastWarp* own) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, tokens = strip.shape.tokens;
  if (strip.parts.mode == codecs::StepStripMode::kRaw) {
    CopyTokensOfWarp(strip.bytes + strip.parts.low, tokens, own->places, plane.row_bytes,
                     plane.unit);
    return true;
  }
  if (!MarkStepRows(strip, own->is_row)) return false;
  StoreStripRows(strip, plane, own->places);
  FastSteps steps{strip, plane, plane.first_position + task.token_first + lane, 0,
                  plane.pairs.count != 0 && plane.pairs.step == 1};
  CAIRN_UNROLL
  for (uint32_t g = 0; g < kTaskTokensMax / kWarpLanes; ++g) {
    const bool is_coded = kWarpLanes * g + lane < tokens && (own->is_row[g] >> lane & 1) == 0;
    steps.coded |= is_coded ? 1U << g : 0;
  }
  switch (codecs::CoderGroups(tokens)) {
    case 1:
      return DecodeStepsOf<1>(steps, shared, own);
    case 2:
      return DecodeStepsOf<2>(steps, shared, own);
    case 3:
      return DecodeStepsOf<3>(steps, shared, own);
    default:
      return DecodeStepsOf<4>(steps, shared, own);
  }
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 2) DecodeStepsFast(DecodeArgs args) {
  CAIRN_SHARED(StepFastShared, shared);
  const uint32_t tables_at = LoadGlobal<uint32_t>(args.plan + offsetof(PlanHeader, tables_at));
  const auto& tables = reinterpret_cast<const StepTables*>(
      args.plan + tables_at)[args.list - static_cast<uint32_t>(DecodeList::kStepsFast)];
  FillStepTables(tables, &shared);
  SyncBlock();
  const uint32_t warp = WarpOfBlock();
  StepFastWarp* own = &shared.warps[warp];
  DecodeWarpTasks(args, warp, own->places, [&](const TileTask& task, const PlaneRecord& plane) {
    FoundSteps strip;
    strip.tables = &tables;
    strip.head = task.head;
    return FindSteps(task, plane, &strip) && DecodeOneStepsFast(task, strip, plane, shared, own);
  });
}

}  // namespace cairn::kernels
