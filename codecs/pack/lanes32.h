// SPDX-License-Identifier: Apache-2.0
#pragma once
// The entropy coder "lanes32": rANS with 16-bit states, byte renormalization, 8-bit probabilities
// and 16 symbols, of which the last is the escape. A stream has 32 states, called lanes. Lane l
// codes the tokens l, l + 32, l + 64, … of every channel. All lanes work on the same channel at the
// same time, and so share its table. docs/recipes/exact.md shows the layout.
//
// This code is the definition; backends and kernels rearrange it, but must produce the same bytes.
// It uses only integers. It never accesses bytes outside the given stream, whatever the stream
// contains.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "codecs/numbers/math.h"

namespace cairn::codecs {

inline constexpr uint32_t kCoderLanes = 32;
inline constexpr uint32_t kCoderSymbols = 16;
inline constexpr uint32_t kEscapeSymbol = kCoderSymbols - 1;
inline constexpr uint32_t kCoderSlots = 256;     // the sum of a table's frequencies
inline constexpr uint32_t kCoderStateMin = 256;  // a state is in [256, 65536)
inline constexpr uint32_t kCoderStatesBytes = 2 * kCoderLanes;

// Frequencies sum to 256, and the escape's frequency is not 0. A symbol's start is the sum of the
// frequencies before it. A symbol of frequency 0 cannot be coded; the escape is used instead.
struct CoderTable {
  uint8_t frequency[kCoderSymbols];
  uint8_t start[kCoderSymbols];
};

// Returns false, with *table unspecified, if the frequencies do not form a table.
CAIRN_HD constexpr bool MakeCoderTable(const uint16_t (&frequencies)[kCoderSymbols],
                                       CoderTable* table) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < kCoderSymbols; ++i) {
    if (frequencies[i] >= kCoderSlots || sum >= kCoderSlots) return false;
    table->frequency[i] = static_cast<uint8_t>(frequencies[i]);
    table->start[i] = static_cast<uint8_t>(sum);
    sum += frequencies[i];
  }
  return sum == kCoderSlots && frequencies[kEscapeSymbol] > 0;
}

// Returns the symbol whose slots include `slot`.
CAIRN_HD constexpr uint32_t SymbolOfSlot(const CoderTable& table, uint32_t slot) {
  uint32_t symbol = 0;
  for (uint32_t i = 1; i < kCoderSymbols; ++i) symbol += table.start[i] <= slot ? 1 : 0;
  return symbol;
}

// Returns the first symbol with the largest frequency. This symbol pads a group that has fewer than
// 32 tokens.
CAIRN_HD constexpr uint32_t LikeliestSymbol(const CoderTable& table) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < kCoderSymbols; ++i) {
    if (table.frequency[i] > table.frequency[best]) best = i;
  }
  return best;
}

CAIRN_HD uint32_t CoderGroups(uint32_t tokens) { return (tokens + kCoderLanes - 1) / kCoderLanes; }

// Returns the largest size of a stream: the states, and one byte per symbol.
CAIRN_HD uint64_t StreamBytesMax(uint32_t tokens, uint32_t dim) {
  return kCoderStatesBytes + static_cast<uint64_t>(kCoderLanes) * CoderGroups(tokens) * dim;
}

// Writes a stream that ends at `end` and does not start before `begin`. Returns its start, or null
// if there is not enough room.
//   table_at(channel)          returns a const CoderTable&
//   symbol_at(channel, token)  returns 0..15, of frequency > 0 in the channel's table; called
//                              backwards, for every token below 32 * CoderGroups(tokens)
template <typename TableAt, typename SymbolAt>
CAIRN_HD uint8_t* EncodeStream(uint32_t tokens, uint32_t dim, TableAt table_at, SymbolAt symbol_at,
                               uint8_t* begin, uint8_t* end) {
  uint32_t states[kCoderLanes];
  for (uint32_t& state : states) state = kCoderStateMin;
  uint8_t* cursor = end;
  for (uint32_t channel = dim; channel-- > 0;) {
    const CoderTable& table = table_at(channel);
    for (uint32_t token = CoderGroups(tokens) * kCoderLanes; token-- > 0;) {
      uint32_t& state = states[token % kCoderLanes];
      const uint32_t symbol = symbol_at(channel, token);
      const uint32_t frequency = table.frequency[symbol];
      if (state >= frequency << 8) {
        if (cursor == begin) return nullptr;
        *--cursor = static_cast<uint8_t>(state);
        state >>= 8;
      }
      state = ((state / frequency) << 8) + table.start[symbol] + state % frequency;
    }
  }
  if (cursor - begin < static_cast<int64_t>(kCoderStatesBytes)) return nullptr;
  for (uint32_t lane = kCoderLanes; lane-- > 0;) {
    *--cursor = static_cast<uint8_t>(states[lane] >> 8);
    *--cursor = static_cast<uint8_t>(states[lane]);
  }
  return cursor;
}

// Decodes a stream of `bytes` >= 64 bytes, whatever it contains. Returns false if the stream does
// not end correctly: with every byte read and every state at 256.
//   emit(channel, token, symbol)  called forwards, also for the tokens that pad a group; if it
//                                 returns false, the call returns false
template <typename TableAt, typename Emit>
CAIRN_HD bool DecodeStream(const uint8_t* stream, uint64_t bytes, uint32_t tokens, uint32_t dim,
                           TableAt table_at, Emit emit) {
  uint32_t states[kCoderLanes];
  uint32_t faults = 0;
  for (uint32_t lane = 0; lane < kCoderLanes; ++lane) {
    states[lane] = stream[2 * lane] | static_cast<uint32_t>(stream[2 * lane + 1]) << 8;
    faults |= states[lane] < kCoderStateMin ? 1 : 0;
  }
  uint64_t cursor = kCoderStatesBytes;
  for (uint32_t channel = 0; channel < dim; ++channel) {
    const CoderTable& table = table_at(channel);
    for (uint32_t token = 0; token < CoderGroups(tokens) * kCoderLanes; ++token) {
      uint32_t& state = states[token % kCoderLanes];
      const uint32_t slot = state & 0xFF;
      const uint32_t symbol = SymbolOfSlot(table, slot);
      state = table.frequency[symbol] * (state >> 8) + slot - table.start[symbol];
      if (state < kCoderStateMin) {
        if (cursor == bytes) return false;
        state = state << 8 | stream[cursor++];
      }
      if (!emit(channel, token, symbol)) return false;
    }
  }
  for (const uint32_t state : states) faults |= state != kCoderStateMin ? 1 : 0;
  return faults == 0 && cursor == bytes;
}

}  // namespace cairn::codecs
