// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decodes the most common strips of `exact`: mode lanes32, bf16 or fp16, dim a multiple of 32,
// token addresses at multiples of 16 bytes. A warp decodes a strip; each lane decodes every 32nd
// token. The step that decodes 32 elements has 13 instructions, which docs/internals/kernels.md
// explains.

#include <cstdint>

#include "kernels/body/strips.h"
#include "kernels/body/strips_join.h"

namespace cairn::kernels {

inline constexpr uint32_t kRingGranule = 512;  // bytes of one copy, 16 per lane
inline constexpr uint32_t kRingSlots = 3;
inline constexpr uint32_t kRingBytes = kRingSlots * kRingGranule;
// The first bytes of the ring are copied behind its end. A channel reads at most this many bytes.
inline constexpr uint32_t kRingMirror = 128;
inline constexpr uint32_t kPassChannels = 32;
inline constexpr uint32_t kExponentWords = 9;  // per token; one is unused, to spread over banks

// The stream of a strip that a warp reads, and the warp's data about 32 channels.
struct FastWarp {
  alignas(16) uint32_t rows[kPassChannels];  // offset of the channel's table, in bytes
  alignas(16) uint8_t ring[kRingBytes + kRingMirror];
  uint8_t tops[kPassChannels];
  uint32_t exponents[codecs::kStripTokens * kExponentWords];
  uint8_t* places[kTaskTokensMax];
};

struct FastShared {
  StripTables tables;
  FastWarp warps[kBlockWarps];
};

// Reads the stream through a ring. The ring holds the current granule and the next one.
struct FastStream {
  const uint8_t* from;
  uint32_t readable;
  uint8_t* ring;
  SharedAddress next, limit;  // the next byte to read, and the end of its granule
  uint32_t passed = 0, slot = 0;

  CAIRN_DEVICE_MEMBER void Ask(uint32_t granule, uint32_t to) const {
    const uint32_t lane = ThreadIndex() % kWarpLanes, at = granule * kRingGranule + 16 * lane;
    if (at + 16 <= readable) {
      CopyAsync16(ring + to * kRingGranule + 16 * lane, from + at);
      if (to == 0 && 16 * lane < kRingMirror) CopyAsync16(ring + kRingBytes + 16 * lane, from + at);
    }
    CopyCommit();
  }
  // Starts at a byte of the stream. The warp must synchronize before it reads.
  //   first  the offset of the first byte to read
  CAIRN_DEVICE_MEMBER void Start(uint32_t first) {
    Ask(0, 0);
    Ask(1, 1);
    CopyWait<0>();
    Ask(2, 2);
    next = SharedAddressOf(ring) + first;
    limit = SharedAddressOf(ring) + kRingGranule;
  }
  // Must be called before each channel. A channel reads at most kRingMirror bytes.
  CAIRN_DEVICE_MEMBER void Refill() {
    if (next < limit) return;
    ++passed;
    SyncWarp();  // no lane still reads the slot that the next granule overwrites
    Ask(passed + 2, slot);
    slot = slot == kRingSlots - 1 ? 0 : slot + 1;
    if (slot == 0) next = next + (0U - kRingBytes);
    limit = SharedAddressOf(ring) + (slot + 1) * kRingGranule;
    CopyWait<1>();
    SyncWarp();
  }
  CAIRN_DEVICE_MEMBER uint32_t BytesRead() const {
    return passed * kRingGranule + BytesBetween(SharedAddressOf(ring) + slot * kRingGranule, next);
  }
};

// The state of one of the strip's 32 entropy coders. It belongs to a lane.
struct FastCoder {
  uint32_t state;  // 0x10000 + the coder's state of 16 bits
  uint32_t escape;
};

// Decodes four channels for all tokens. Sets `symbols`, one byte per channel, and advances the
// stream.
template <uint32_t kGroups>
CAIRN_DEVICE void DecodeFour(const U32x4& rows, SharedAddress tables, FastStream* stream,
                             FastCoder* coder, uint32_t (&symbols)[kGroups]) {
  const uint32_t below = (1U << ThreadIndex() % kWarpLanes) - 1;
  CAIRN_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    const SharedAddress table = tables + (i == 0   ? rows.x
                                          : i == 1 ? rows.y
                                          : i == 2 ? rows.z
                                                   : rows.w);
    stream->Refill();
    CAIRN_UNROLL
    for (uint32_t g = 0; g < kGroups; ++g) {
      const uint32_t entry = LoadShared32(EntryOf(table, coder->state));
      const uint32_t insert = i == 1 ? 0x3270 : i == 2 ? 0x3710 : 0x7210;
      symbols[g] = i == 0 ? entry >> 24 : PermuteBytes(symbols[g], entry, insert);
      coder->state = DotBytes(entry, coder->state, 0x10000U);
      const bool lacks = coder->state < 0x10000U + codecs::kCoderStateMin;
      const uint32_t lacking = Ballot(lacks);
      const uint32_t byte = LoadShared8(stream->next + CountBits(lacking & below));
      const uint32_t more = PermuteBytes(coder->state, byte, 0x3204);
      coder->state = lacks ? more : coder->state;
      stream->next = stream->next + CountBits(lacking);
    }
  }
}

// Calls `take` for each symbol that is an escape, in the order channel, group, lane. Each lane
// calls it for its own symbols.
//   there               bit g is set if the lane has a token in group g
//   take(i, token, at)  i: which of the four channels; at: index of the escape in the strip
template <uint32_t kGroups, typename Take>
CAIRN_DEVICE void TakeEscapes(const uint32_t (&symbols)[kGroups], uint32_t there, FastCoder* coder,
                              Take take) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, below = (1U << lane) - 1;
  uint32_t mine = 0;  // bit 8 i + g: the lane's symbol of channel i, group g is an escape
  CAIRN_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) mine |= (symbols[g] >> 4 & 0x01010101U) << g;
  mine &= there * 0x01010101U;
  for (uint32_t all = ReduceOr(mine); all != 0; all &= all - 1) {
    const uint32_t bit = LowestBit(all);
    const bool is_escape = (mine >> bit & 1) != 0;
    const uint32_t escaping = Ballot(is_escape);
    const uint32_t at = coder->escape + CountBits(escaping & below);
    if (is_escape) take(bit >> 3, kWarpLanes * (bit & 7) + lane, at);
    coder->escape += CountBits(escaping);
  }
}

// Loads the low bits of a unit of fp16 elements, in the order that SpreadUnit() expects.
CAIRN_DEVICE uint32_t LoadLowsOfUnit(const uint8_t* runs, uint32_t unit) {
  const uint8_t* byte = runs + UnitOfRuns(unit);
  return LoadGlobal<uint8_t>(byte) | static_cast<uint32_t>(LoadGlobal<uint8_t>(byte + 8)) << 8 |
         static_cast<uint32_t>(LoadGlobal<uint8_t>(byte + 16)) << 16;
}

// Joins the exponents of 32 channels with the other bits of the elements, for all tokens, and
// stores the elements. Four lanes share a token, with 8 channels each.
template <codecs::DType kDType, uint32_t kGroups>
CAIRN_DEVICE void StorePass(const FoundStrip& strip, uint32_t first, const FastWarp& own) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, part = lane & 3;
  // This choice of tokens puts the exponents that a warp reads at once into different banks.
  const uint32_t row = 8 * (lane >> 3) + (lane >> 2 & 1);
  const uint8_t* plane = strip.bytes + strip.parts.plane + first + 8 * part;
  CAIRN_NO_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) {
    U32x2 planes[4];
    uint32_t lows[4] = {};
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {  // all loads first, then their uses
      const uint32_t token = kWarpLanes * g + row + 2 * i;
      const uint32_t there = token < strip.shape.tokens ? token : 0;
      planes[i] = LoadGlobal<U32x2>(plane + there * strip.shape.dim);
      if constexpr (kDType == codecs::DType::kFp16) {
        const uint32_t unit = (there * strip.shape.dim + first) / kUnit + part;
        lows[i] = LoadLowsOfUnit(strip.bytes + strip.parts.low, unit);
      }
    }
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t token = kWarpLanes * g + row + 2 * i;
      if (token >= strip.shape.tokens) continue;
      uint8_t* place = strip.places[token];
      const uint32_t* x = own.exponents + token * kExponentWords + 2 * part;
      if (place == nullptr) continue;
      StoreGlobal(place + 2 * first + 16 * part,
                  JoinUnit<kDType>({x[0], x[1]}, planes[i], SpreadUnit(lows[i])));
    }
  }
}

CAIRN_DEVICE void LoadPars(const FoundStrip& strip, uint32_t first, FastWarp* own) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const uint8_t par = LoadGlobal<uint8_t>(strip.bytes + codecs::strip::kPar + first + lane);
  own->rows[lane] = (par >> 4) * codecs::kCoderSlots * 4;
  own->tops[lane] = static_cast<uint8_t>(codecs::TopOf(strip.parts.top, par));
}

template <codecs::DType kDType, uint32_t kGroups>
CAIRN_DEVICE bool DecodeFast(const FoundStrip& strip, const StripTables& tables, FastWarp* own) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  FastStream stream{};
  stream.from = strip.bytes + strip.parts.coded;
  stream.readable = strip.readable - static_cast<uint32_t>(strip.parts.coded);
  stream.ring = own->ring;
  FastCoder coder{0x10000U | LoadGlobal<uint16_t>(stream.from + 2 * lane), 0};
  bool is_wrong = coder.state < 0x10000U + codecs::kCoderStateMin;
  stream.Start(codecs::kCoderStatesBytes);
  uint32_t there = 0;  // bit g is set if the lane has a token in group g
  CAIRN_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) {
    there |= kWarpLanes * g + lane < strip.shape.tokens ? 1U << g : 0;
  }
  for (uint32_t first = 0; first < strip.shape.dim; first += kPassChannels) {
    LoadPars(strip, first, own);
    SyncWarp();
    CAIRN_NO_UNROLL
    for (uint32_t four = 0; four < kPassChannels / 4; ++four) {
      const U32x4 rows = LoadShared128(SharedAddressOf(own->rows) + 16 * four);
      const uint32_t tops = LoadShared32(SharedAddressOf(own->tops) + 4 * four);
      uint32_t symbols[kGroups] = {};
      DecodeFour<kGroups>(rows, SharedAddressOf(tables.of), &stream, &coder, symbols);
      uint32_t flags = 0;
      CAIRN_UNROLL
      for (uint32_t g = 0; g < kGroups; ++g) {
        flags |= symbols[g];
        // Computes top - symbol for each byte. The highest bit of each byte of `tops` is set first.
        // Since a symbol has 5 bits, no byte then borrows from the next one.
        own->exponents[(kWarpLanes * g + lane) * kExponentWords + four] =
            ((tops | 0x80808080U) - symbols[g]) ^ (~tops & 0x80808080U);
      }
      if (Any((flags & kEscapeFlag * 0x01010101U) != 0)) {
        TakeEscapes(symbols, there, &coder, [&](uint32_t i, uint32_t token, uint32_t at) {
          if (at >= strip.parts.escapes) return;
          auto* exponents = reinterpret_cast<uint8_t*>(own->exponents);
          exponents[4 * (token * kExponentWords + four) + i] =
              LoadGlobal<uint8_t>(strip.bytes + strip.parts.escape + at);
        });
      }
    }
    SyncWarp();
    StorePass<kDType, kGroups>(strip, first, *own);
    SyncWarp();
  }
  CopyWait<0>();
  is_wrong |= coder.state != 0x10000U + codecs::kCoderStateMin ||
              stream.BytesRead() != strip.parts.stream_bytes || coder.escape != strip.parts.escapes;
  return !Any(is_wrong);
}

template <codecs::DType kDType>
CAIRN_DEVICE bool DecodeOneFast(const FoundStrip& strip, const PlaneRecord& plane,
                                const StripTables& tables, FastWarp* own) {
  if (strip.parts.mode != codecs::StripMode::kLanes32) {
    return DecodeAnyStrip(strip, tables, plane.row_bytes);
  }
  switch (codecs::CoderGroups(strip.shape.tokens)) {
    case 1:
      return DecodeFast<kDType, 1>(strip, tables, own);
    case 2:
      return DecodeFast<kDType, 2>(strip, tables, own);
    case 3:
      return DecodeFast<kDType, 3>(strip, tables, own);
    default:
      return DecodeFast<kDType, 4>(strip, tables, own);
  }
}

template <codecs::DType kDType>
CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 3) DecodeStripsFast(DecodeArgs args) {
  CAIRN_SHARED(FastShared, shared);
  FillTables(&shared.tables);
  SyncBlock();
  const uint32_t warp = WarpOfBlock();
  FastWarp* own = &shared.warps[warp];
  DecodeWarpTasks(args, warp, own->places, [&](const TileTask& task, const PlaneRecord& plane) {
    FoundStrip strip;
    strip.places = own->places;
    return FindStrip(task, plane, &strip) &&
           DecodeOneFast<kDType>(strip, plane, shared.tables, own);
  });
}

}  // namespace cairn::kernels
