// SPDX-License-Identifier: Apache-2.0
// The coder lanes32, with the primitives of struct Strips: encoding and decoding of 32 lanes. Each
// ISA file includes it once. Always inlined, because otherwise each call would pass the states
// through memory.

#include "codecs/pack/lanes32_lookup.h"
#include "codecs/pack/strip.h"

namespace cairn::codecs {
namespace {

// Returns the existing tokens of a group, as bits.
uint32_t TokensThere(uint32_t tokens, uint32_t group) {
  const uint32_t rest = tokens - group * kCoderLanes;
  return rest >= kCoderLanes ? ~0U : (1U << rest) - 1;
}

// Returns the states that need another byte to be normalized, as bits.
[[gnu::always_inline]] inline uint32_t LackingBits(Halves32 states) {
  const Halves32 is_low = Strips::Equal(Strips::Right<8>(states), Strips::SetHalves(0));
  return Strips::Bits(Strips::NarrowMask(is_low));
}
bool AreStates(Halves32 states) { return LackingBits(states) == 0; }
bool AreLastStates(Halves32 states) {
  const Halves32 is_last = Strips::Equal(states, Strips::SetHalves(kCoderStateMin));
  return Strips::Bits(Strips::NarrowMask(is_last)) == ~0U;
}

// Returns the symbols of 32 states. Updates the states without renormalizing them. kHasLowest: the
// table is not exact without `lowest`.
template <bool kHasLowest>
[[gnu::always_inline]] inline Bytes32 TakeSymbols(const CoderLookup& table, Halves32* states) {
  const Bytes32 slot = Strips::Narrow(Strips::And(*states, Strips::SetHalves(0xFF)));
  const Bytes32 high = Strips::HighNibbles(slot);
  const Bytes32 low = Strips::LowNibbles(slot);
  Bytes32 symbol = Strips::LookUp(table.first, high);
  for (const auto& border : table.border) {  // a set mask is -1
    symbol = Strips::Sub(symbol, Strips::Above(low, Strips::LookUp(border, high)));
  }
  symbol = Strips::Choose(Strips::Equal(high, Strips::Set(15)), Strips::LookUp(table.highest, low),
                          symbol);
  if constexpr (kHasLowest) {
    symbol = Strips::Choose(Strips::Equal(high, Strips::Set(0)), Strips::LookUp(table.lowest, low),
                            symbol);
  }
  const Halves32 frequency = Strips::Widen(Strips::LookUp(table.frequency, symbol));
  const Halves32 above = Strips::Widen(Strips::Sub(slot, Strips::LookUp(table.start, symbol)));
  *states = Strips::Add(Strips::Mul(frequency, Strips::Right<8>(*states)), above);
  return symbol;
}

// Gives the next bytes of the stream to the states that need one. Reads 40 bytes of it.
[[gnu::always_inline]] inline const uint8_t* Renormalize(const uint8_t* stream, uint32_t lacking,
                                                         Halves32* states) {
  const Halves32 is_low = Strips::Equal(Strips::Right<8>(*states), Strips::SetHalves(0));
  const Halves32 grown = Strips::Or(Strips::Left<8>(*states), Strips::Expand(stream, lacking));
  *states = Strips::Choose(is_low, grown, *states);
  return stream + __builtin_popcount(lacking);
}

// Prefetches, for one channel, the bytes behind the last of `count` strips: the strips that are
// decoded next are most likely there.
template <typename Decoding>
[[gnu::always_inline]] inline void AskBehind(const Decoding* strips, uint32_t count,
                                             uint32_t channel, uint32_t dim) {
  const auto& last = *strips[count - 1].job;
  const uint64_t bytes = count * last.parts.bytes / dim;
  Strips::Ask(last.behind + channel * bytes, bytes);
}

// Encodes 32 symbols of a channel. Returns the stream's new start. Overwrites up to 8 bytes before
// it.
[[gnu::always_inline]] inline uint8_t* PutSymbols(const CoderLookup& table, Bytes32 symbols,
                                                  Halves32* states, uint8_t* stream) {
  // To shorten the dependency chain between states, products are computed from the first estimate.
  const Bytes32 frequencies = Strips::LookUp(table.frequency, symbols);
  const Halves32 frequency = Strips::Widen(frequencies);
  const Halves32 high = Strips::Right<8>(*states);
  const Halves32 has_room = Strips::Above(frequency, high);
  stream = Strips::CompressBefore(stream, *states, Strips::Bits(Strips::NarrowMask(has_room)));
  const Halves32 x = Strips::Choose(has_room, *states, high);
  const Halves32 reciprocal = Strips::Pair(Strips::LookUp(table.reciprocal[0], symbols),
                                           Strips::LookUp(table.reciprocal[1], symbols));
  // The quotient, or one less: the remainder is then not below the frequency.
  const Halves32 quotient = Strips::MulHigh(x, reciprocal);
  const Halves32 left = Strips::Sub(x, Strips::Mul(quotient, frequency));
  const Halves32 is_exact = Strips::Above(frequency, left);
  // 256 quotient + start + x - quotient * frequency
  const Halves32 rest = Strips::Widen(Strips::Sub(Strips::Set(0), frequencies));
  const Halves32 start = Strips::Widen(Strips::LookUp(table.start, symbols));
  const Halves32 guess = Strips::Add(Strips::Add(x, start), Strips::Mul(quotient, rest));
  *states = Strips::Add(guess, Strips::AndNot(is_exact, rest));
  return stream;
}

// The room that a channel may use in a stream, with the bytes that are overwritten before it.
constexpr uint32_t kChannelBytesMax = kStripTokens + 16;
constexpr uint32_t kStreamSlack = kChannelBytesMax + kCoderStatesBytes;

// The result of encoders that leave the strip to the reference loops.
constexpr uint64_t kLeftToReference = ~uint64_t{0};

}  // namespace
}  // namespace cairn::codecs
