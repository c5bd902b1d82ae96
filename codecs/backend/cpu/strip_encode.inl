// SPDX-License-Identifier: Apache-2.0
// encode_strip of codecs/backend/backend.h, with the primitives of struct Strips.
//
// There are three passes over the source, which stays in the second-level cache: the choice of
// parameters; the coded part, for lanes32 backwards; and the plane and low bits, whose offset is
// known only then. The coded part prefetches the data that later passes read and write, which is
// usually in no cache. The reference loops process a strip if the room may be too small for its
// stream, or if it has more escapes than are worth coding.

namespace cairn::codecs {
namespace {

constexpr uint32_t kEscapesMax = 8192;

// Prefetches the matching elements of the strip that is most likely next, which follows this one,
// and about three quarters of as many bytes of the target.
template <typename Type>
[[gnu::always_inline]] inline void AskAhead(const StripSource<Type>& source, uint64_t index,
                                            uint64_t count, const uint8_t* target) {
  const uint64_t at = index * Type::kBytes;
  const uint64_t bytes = count * Type::kBytes;
  Strips::Ask(source.bytes + ElementCount(source.shape) * Type::kBytes + at, bytes);
  Strips::Ask(target + at * 3 / 4, bytes * 3 / 4);
}

// Writes padding, plane and low bits.
template <typename Type>
void PutRest(const StripSource<Type>& source, const StripParts& parts, uint8_t* target) {
  const uint64_t elements = ElementCount(source.shape);
  uint8_t* low = target + parts.low;
  __builtin_memset(target + parts.coded_end, 0, parts.plane - parts.coded_end);
  __builtin_memset(target + parts.end, 0, parts.bytes - parts.end);
  // The second half of the last run may have no elements.
  if (HasLowRuns(Type::kDType)) __builtin_memset(target + parts.end - kRunBytes, 0, kRunBytes);
  uint64_t index = 0;
  for (; index + kChunk <= elements; index += kChunk) {
    const Bytes32 plane = Type::Rest(source.bytes + index * Type::kBytes, index, low);
    if constexpr (Type::kHasPlane) Strips::Store(target + parts.plane + index, plane);
  }
  if (index == elements) return;
  const auto count = static_cast<uint32_t>(elements - index);
  uint8_t buffer[kChunk * Type::kBytes];
  const uint8_t* from = source.At(index, count, buffer);
  uint8_t plane[kChunk];
  uint8_t words[kChunk * 2];  // the low halves of fp32
  const bool has_words = Type::kDType == DType::kFp32;
  Strips::Store(plane, Type::Rest(from, has_words ? 0 : index, has_words ? words : low));
  if (has_words) __builtin_memcpy(low + 2 * index, words, uint64_t{2} * count);
  if (Type::kHasPlane) __builtin_memcpy(target + parts.plane + index, plane, count);
}

// ---- lanes32 ----

// Loads the exponents of up to 32 channels, transposed.
template <typename Type>
void TakePanel(const StripSource<Type>& source, uint32_t channel_first, PanelExponents* panel) {
  const StripShape& shape = source.shape;
  for (uint32_t token = 0; token < shape.tokens; token += 16) {
    Bytes32 rows[16];
    for (uint32_t i = 0; i < 16; ++i) {
      const uint32_t of = token + i < shape.tokens ? token + i : shape.tokens - 1;
      rows[i] =
          source.Exponents(uint64_t{of} * shape.dim + channel_first, shape.dim - channel_first);
    }
    Strips::Transpose(rows);
    for (uint32_t i = 0; i < 16; ++i) {
      Strips::StoreTwo(panel->of[i] + token, panel->of[16 + i] + token, rows[i]);
    }
  }
}

// A stream and its escapes. Both grow downwards.
struct StripEncoding {
  Halves32 states = Strips::SetHalves(kCoderStateMin);
  uint8_t* stream;
  uint32_t escapes = 0;
  uint8_t escaped[kEscapesMax];

  [[nodiscard]] const uint8_t* Escapes() const { return escaped + kEscapesMax - escapes; }

  // Codes one channel, from its last token to its first. Returns false if there are too many
  // escapes.
  [[nodiscard]] bool PutChannel(uint32_t tokens, const uint8_t* exponents, uint32_t top,
                                const CoderLookup& table) {
    for (uint32_t group = CoderGroups(tokens); group-- > 0;) {
      const uint8_t* at = exponents + group * kCoderLanes;
      const uint32_t there = TokensThere(tokens, group);
      const Bytes32 of_group = Strips::Load(at);
      Bytes32 symbols = Strips::Sub(Strips::Set(top), of_group);
      symbols = Strips::Min(symbols, Strips::Set(kEscapeSymbol));
      // An exponent one above the maximum is an escape, although its distance wraps to that of a
      // symbol.
      symbols = Strips::Choose(Strips::NotBelow(Strips::Set(top), of_group), symbols,
                               Strips::Set(kEscapeSymbol));
      symbols = Strips::LookUp(table.symbol, symbols);
      uint32_t bits = Strips::Bits(Strips::Equal(symbols, Strips::Set(kEscapeSymbol))) & there;
      if (there != ~0U) {
        symbols = Strips::Choose(Strips::Spread(there), symbols, Strips::Set(table.likeliest));
      }
      stream = PutSymbols(table, symbols, &states, stream);
      if (bits == 0) continue;
      if (escapes + kCoderLanes > kEscapesMax) return false;
      while (bits != 0) {
        const uint32_t lane = 31 - static_cast<uint32_t>(__builtin_clz(bits));
        bits ^= 1U << lane;
        escaped[kEscapesMax - ++escapes] = at[lane];
      }
    }
    return true;
  }
};

template <typename Type>
uint64_t EncodeLanes32(const StripSource<Type>& source, uint8_t* target, uint64_t room) {
  const StripShape& shape = source.shape;
  const uint64_t coded = kStripHeaderBytes + uint64_t{shape.dim};
  if (ElementCount(shape) < Lanes32ElementsMin(shape.dtype)) return 0;
  if (room < coded + kStreamSlack) return kLeftToReference;
  uint8_t par[kStripDimMax];
  StripParts parts = {};
  parts.mode = StripMode::kLanes32;
  parts.top = ChooseParams(source, parts.mode, par);
  const uint64_t stream_max = StreamBytesMax(shape.tokens, shape.dim) + kStreamSlack;
  uint8_t* begin = target + coded;
  uint8_t* end = begin + (room - coded < stream_max ? room - coded : stream_max);
  StripEncoding encoding;
  encoding.stream = end;
  for (uint32_t first = (shape.dim - 1) / kPanelWide * kPanelWide;; first -= kPanelWide) {
    PanelExponents panel;
    TakePanel(source, first, &panel);
    uint32_t channel = first + kPanelWide < shape.dim ? first + kPanelWide : shape.dim;
    while (channel-- > first) {
      AskAhead(source, uint64_t{channel} * shape.tokens, shape.tokens, target);
      if (encoding.stream - begin < static_cast<int64_t>(kStreamSlack)) return kLeftToReference;
      if (!encoding.PutChannel(shape.tokens, panel.of[channel - first],
                               TopOf(parts.top, par[channel]),
                               kExponentLookups.of[par[channel] >> 4])) {
        return kLeftToReference;
      }
    }
    if (first == 0) break;
  }
  encoding.stream -= kCoderStatesBytes;
  Strips::PutHalves<false>(encoding.stream, encoding.states);
  parts.stream_bytes = static_cast<uint32_t>(end - encoding.stream);
  parts.escapes = encoding.escapes;
  PlaceParts(shape, &parts);
  if (parts.bytes >= RawStripBytes(shape)) return 0;
  if (parts.bytes > room) return kLeftToReference;
  __builtin_memmove(begin, encoding.stream, parts.stream_bytes);
  __builtin_memcpy(target + parts.escape, encoding.Escapes(), parts.escapes);
  StoreStripHeader(parts, target);
  __builtin_memcpy(target + strip::kPar, par, shape.dim);
  PutRest(source, parts, target);
  return parts.bytes;
}

// ---- Planes ----

// A strip in mode planes before it is written.
struct PlanesPlan {
  StripParts parts = {};
  uint8_t par[kStripDimMax];
};

// Calls visit(index, count, distances from the maximum exponents) for every 32 elements.
template <typename Type, typename Visit>
void ForEachDistance(const StripSource<Type>& source, const PlanesPlan& plan, Visit visit) {
  const Tops tops(source.shape, plan.parts.top, plan.par);
  const uint64_t elements = ElementCount(source.shape);
  uint32_t channel = 0;
  for (uint64_t index = 0; index < elements; index += kChunk) {
    const uint64_t rest = elements - index;
    const uint32_t count = rest < kChunk ? static_cast<uint32_t>(rest) : kChunk;
    visit(index, count,
          Strips::Sub(Strips::Load(tops.of + channel), source.Exponents(index, count)));
    channel += kChunk;
    if (channel >= source.shape.dim) channel %= source.shape.dim;
  }
}

// Chooses the parameters, and computes the offsets of codes and nibbles, which do not depend on
// their number.
template <typename Type>
void StartPlanes(const StripSource<Type>& source, PlanesPlan* plan) {
  plan->parts.mode = StripMode::kPlanes;
  plan->parts.top = ChooseParams(source, StripMode::kPlanes, plan->par);
  PlaceParts(source.shape, &plan->parts);
}

template <typename Type>
void CountEscapes(const StripSource<Type>& source, PlanesPlan* plan) {
  uint32_t escapes = 0;
  uint32_t raws = 0;
  ForEachDistance(source, *plan, [&](uint64_t, uint32_t count, Bytes32 distances) {
    const uint32_t there = TokensThere(count, 0);
    const uint32_t far =
        Strips::Bits(Strips::NotBelow(distances, Strips::Set(kPlanesReach))) & there;
    escapes += static_cast<uint32_t>(__builtin_popcount(far));
    const uint32_t beyond = Strips::Bits(Strips::NotBelow(distances, Strips::Set(18)));
    const uint32_t above = Strips::Bits(Strips::NotBelow(distances, Strips::Set(252)));
    raws += static_cast<uint32_t>(__builtin_popcount(beyond & ~above & there));
  });
  plan->parts.escapes = escapes;
  plan->parts.raws = raws;
  PlaceParts(source.shape, &plan->parts);
}

// Writes codes and nibbles to the target, and at most `raws_max` raw bytes to `raw`. Counts nibbles
// and raw bytes.
template <typename Type>
void PutCodes(const StripSource<Type>& source, PlanesPlan* plan, uint32_t raws_max, uint8_t* target,
              uint8_t* raw) {
  uint8_t* runs = target + plan->parts.coded;
  uint8_t* nibbles = target + plan->parts.escape;
  __builtin_memset(nibbles - kRunBytes, 0, kRunBytes);
  uint32_t escapes = 0;
  uint32_t raws = 0;
  uint32_t pair = 0;
  ForEachDistance(source, *plan, [&](uint64_t index, uint32_t count, Bytes32 distances) {
    AskAhead(source, index, count, target);
    Bytes32 codes = Strips::Min(distances, Strips::Set(kPlanesReach));
    const uint32_t there = TokensThere(count, 0);
    if (there != ~0U) codes = Strips::And(codes, Strips::Spread(there));
    Elements32<DType::kFp16>::StoreRunCodes(codes, index, runs);
    uint8_t distance[kChunk];
    Strips::Store(distance, distances);
    uint32_t bits = Strips::Bits(Strips::Equal(codes, Strips::Set(kPlanesReach)));
    for (; bits != 0; bits &= bits - 1) {
      const uint32_t far = distance[__builtin_ctz(bits)];
      const uint32_t nibble = NibbleOf(far);
      pair = escapes % 2 == 0 ? nibble : pair | nibble << 4;
      nibbles[escapes / 2] = static_cast<uint8_t>(pair);
      ++escapes;
      if (nibble != kRawNibble) continue;
      if (raws < raws_max) raw[raws] = static_cast<uint8_t>(far);
      ++raws;
    }
  });
  plan->parts.escapes = escapes;
  plan->parts.raws = raws;
}

// Writes header, parameters, plane and low bits: everything of the strip except its codes.
template <typename Type>
void FinishPlanes(const StripSource<Type>& source, const PlanesPlan& plan, uint8_t* target) {
  StoreStripHeader(plan.parts, target);
  __builtin_memcpy(target + strip::kPar, plan.par, source.shape.dim);
  PutRest(source, plan.parts, target);
}

// Encodes into the room of a raw strip, which suffices for every intermediate write, so nothing
// need be counted first. Returns 0 if the result is not smaller than raw or has too many raw bytes
// for this function.
template <typename Type>
uint64_t EncodePlanesAtOnce(const StripSource<Type>& source, PlanesPlan* plan, uint8_t* target) {
  uint8_t raw[kEscapesMax];
  PutCodes(source, plan, kEscapesMax, target, raw);
  if (plan->parts.raws > kEscapesMax) return 0;
  PlaceParts(source.shape, &plan->parts);
  if (plan->parts.bytes >= RawStripBytes(source.shape)) return 0;
  __builtin_memcpy(target + plan->parts.raw, raw, plan->parts.raws);
  FinishPlanes(source, *plan, target);
  return plan->parts.bytes;
}

// Returns 0 if the result exceeds `bytes` or is not smaller than raw.
template <typename Type>
uint64_t EncodePlanes(const StripSource<Type>& source, uint8_t* target, uint64_t room,
                      uint64_t bytes) {
  PlanesPlan plan;
  StartPlanes(source, &plan);
  const uint64_t raw_bytes = RawStripBytes(source.shape);
  const uint64_t written_max = plan.parts.escape + (ElementCount(source.shape) + 1) / 2;
  if (bytes == raw_bytes && room >= raw_bytes && written_max <= raw_bytes) {
    const uint64_t done = EncodePlanesAtOnce(source, &plan, target);
    if (done != 0) return done;
  }
  CountEscapes(source, &plan);
  if (plan.parts.bytes >= raw_bytes || plan.parts.bytes > bytes || plan.parts.bytes > room) {
    return 0;
  }
  PutCodes(source, &plan, ~0U, target, target + plan.parts.raw);
  FinishPlanes(source, plan, target);
  return plan.parts.bytes;
}

// ---- All modes ----

template <typename Type>
uint64_t EncodeStripAs(const StripSource<Type>& source, uint8_t* target, uint64_t room) {
  const StripShape& shape = source.shape;
  const uint64_t raw_bytes = RawStripBytes(shape);
  uint64_t bytes = raw_bytes;
  if (!shape.is_fast) {
    const uint64_t coded = EncodeLanes32(source, target, room);
    if (coded == kLeftToReference) return coded;
    if (coded != 0) bytes = coded;
  }
  if (shape.is_fast || shape.tokens < kPlanesTriedBelowTokens) {
    const uint64_t planes_bytes = EncodePlanes(source, target, room, bytes);
    if (planes_bytes != 0) return planes_bytes;
  }
  return bytes < raw_bytes ? bytes : StoreRawStrip(shape, source.bytes, target, room);
}

uint64_t EncodeStrip(const StripShape& shape, const uint8_t* source, uint8_t* target,
                     uint64_t room) {
  const uint64_t bytes = WithElements32(shape.dtype, [&]<typename Type>(Type) {
    return EncodeStripAs(StripSource<Type>{shape, source}, target, room);
  });
  return bytes == kLeftToReference ? reference::EncodeStrip(shape, source, target, room) : bytes;
}

}  // namespace
}  // namespace cairn::codecs
