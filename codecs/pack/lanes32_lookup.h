// SPDX-License-Identifier: Apache-2.0
#pragma once
// A table of the coder lanes32, arranged for lookups by vector registers, 16 entries at a time.
//
// Thread-safety: values and pure functions.

#include <cstdint>

#include "codecs/numbers/math.h"
#include "codecs/pack/lanes32.h"

namespace cairn::codecs {

struct CoderLookup {
  // For decoding. The symbol of slot 16 i + k is first[i], plus one for each of the two borders of
  // i that k exceeds. The lowest and the highest 16 slots have tables of their own, because the
  // rare symbols are there.
  alignas(16) uint8_t first[16];
  alignas(16) uint8_t border[2][16];
  alignas(16) uint8_t lowest[16];
  alignas(16) uint8_t highest[16];
  // For encoding and decoding.
  alignas(16) uint8_t frequency[16];
  alignas(16) uint8_t start[16];
  // For encoding.
  alignas(16) uint8_t symbol[16];         // the symbol itself, or the escape
  alignas(16) uint8_t reciprocal[2][16];  // 65536 / frequency, rounded down to 16 bits; by byte
  uint8_t likeliest;
  bool is_exact;         // the rule above is right for every slot
  bool is_exact_at_low;  // it is right even without `lowest`
};

// Computes the borders for slots 16 i to 16 i + 15. Returns false if two borders are not enough to
// tell the symbols of these slots apart.
CAIRN_HD constexpr bool PlaceBorders(const CoderTable& from, uint32_t i, CoderLookup* lookup) {
  bool is_exact = true;
  uint32_t borders = 0;
  lookup->border[0][i] = lookup->border[1][i] = 0x7F;
  for (uint32_t k = 1; k < 16; ++k) {
    const uint32_t slot = 16 * i + k;
    const uint32_t grown = SymbolOfSlot(from, slot) - SymbolOfSlot(from, slot - 1);
    if (grown == 0) continue;
    is_exact &= grown == 1 && borders < 2;
    if (borders < 2) lookup->border[borders++][i] = static_cast<uint8_t>(k - 1);
  }
  return is_exact;
}

CAIRN_HD constexpr CoderLookup MakeCoderLookup(const CoderTable& from) {
  CoderLookup lookup{};
  lookup.is_exact = true;
  for (uint32_t i = 0; i < 16; ++i) {
    const bool is_exact = PlaceBorders(from, i, &lookup);
    if (i == 0) lookup.is_exact_at_low = is_exact;
    if (i != 0 && i != 15) lookup.is_exact &= is_exact;
    lookup.first[i] = static_cast<uint8_t>(SymbolOfSlot(from, 16 * i));
    lookup.lowest[i] = static_cast<uint8_t>(SymbolOfSlot(from, i));
    lookup.highest[i] = static_cast<uint8_t>(SymbolOfSlot(from, 240 + i));
    const uint32_t frequency = from.frequency[i];
    const uint32_t reciprocal = frequency <= 1 ? 65535 : 65536 / frequency;
    lookup.frequency[i] = from.frequency[i];
    lookup.start[i] = from.start[i];
    lookup.symbol[i] = static_cast<uint8_t>(frequency == 0 ? kEscapeSymbol : i);
    lookup.reciprocal[0][i] = static_cast<uint8_t>(reciprocal);
    lookup.reciprocal[1][i] = static_cast<uint8_t>(reciprocal >> 8);
  }
  lookup.likeliest = static_cast<uint8_t>(LikeliestSymbol(from));
  return lookup;
}

}  // namespace cairn::codecs
