// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "codecs/backend/reference/reference.h"
#include "codecs/pack/lanes32.h"
#include "codecs/pack/strip_choice.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs::reference {
namespace {

struct Source {
  const StripShape& shape;
  const uint8_t* bytes;

  [[nodiscard]] Fields At(uint64_t index) const {
    switch (BytesOf(shape.dtype)) {
      case 1:
        return Split(shape.dtype, bytes[index]);
      case 2:
        return Split(shape.dtype, Load<uint16_t>(bytes + 2 * index));
      default:
        return Split(shape.dtype, Load<uint32_t>(bytes + 4 * index));
    }
  }
  [[nodiscard]] uint32_t Exponent(uint32_t token, uint32_t channel) const {
    return At(uint64_t{token} * shape.dim + channel).exponent;
  }
};

ChannelSample SampleOf(const Source& source, uint32_t channel) {
  const uint32_t stride = SampleStride(source.shape.tokens);
  uint32_t sum = 0;
  uint32_t count = 0;
  for (uint32_t token = 0; token < source.shape.tokens; token += stride) {
    const uint32_t exponent = source.Exponent(token, channel);
    sum += exponent;
    count += exponent != 0 ? 1 : 0;
  }
  ChannelSample sample{MeanOf(sum, count, SampleCount(source.shape.tokens)), {}};
  for (uint32_t token = 0; token < source.shape.tokens; token += stride) {
    const uint32_t at = (sample.mean + kWindowAbove - source.Exponent(token, channel)) & 0xFF;
    if (at < kWindow) ++sample.counts[at];
  }
  return sample;
}

// Writes par; returns the strip's maximum exponent.
uint8_t ChooseParams(const Source& source, StripMode mode, uint8_t* par) {
  uint8_t tops[kStripDimMax];
  uint32_t highest = 0;
  for (uint32_t channel = 0; channel < source.shape.dim; ++channel) {
    const ChannelSample sample = SampleOf(source, channel);
    par[channel] = kDeadRel;
    if (IsDead(sample)) continue;
    TableChoice choice{0, 0};
    if (mode == StripMode::kLanes32) {
      choice = ChooseTable(sample, kAboveMin, kAboveMax);
    } else {
      choice.above = ChoosePlanesTop(sample);
    }
    const uint32_t top = LimitTop(static_cast<int32_t>(sample.mean) + choice.above);
    tops[channel] = static_cast<uint8_t>(top);
    par[channel] = static_cast<uint8_t>(choice.table << 4);
    if (top > highest) highest = top;
  }
  const auto table_at = [&](uint32_t channel, uint32_t top) {
    return TableForTop(SampleOf(source, channel), top);
  };
  PlaceTops(tops, source.shape.dim, highest, mode, table_at, par);
  return static_cast<uint8_t>(highest);
}

// Writes the end of both coded modes: padding, the plane and the low bits.
void StorePlane(const Source& source, const StripParts& parts, uint8_t* target) {
  const StripShape& shape = source.shape;
  std::memset(target + parts.coded_end, 0, parts.plane - parts.coded_end);
  std::memset(target + parts.low, 0, parts.bytes - parts.low);
  for (uint64_t i = 0; i < ElementCount(shape); ++i) {
    const Fields fields = source.At(i);
    if (!IsFp8(shape.dtype)) target[parts.plane + i] = static_cast<uint8_t>(fields.plane);
    if (shape.dtype == DType::kFp32) {
      Store(target + parts.low + 2 * i, static_cast<uint16_t>(fields.low));
    } else if (HasLowRuns(shape.dtype)) {
      StoreRunCode(target + parts.low, i, fields.low);
    } else if (shape.dtype == DType::kFp8E4m3) {
      StoreNibble(target + parts.low, i, fields.low);
    }
  }
}

// Returns the symbol of an exponent; the escape if the table has no symbol for it.
uint32_t SymbolOf(const CoderTable& table, uint32_t top, uint32_t exponent) {
  const uint32_t symbol = top - exponent;
  return symbol < kEscapeSymbol && table.frequency[symbol] > 0 ? symbol : kEscapeSymbol;
}

// Both return the strip's size; 0 if `room` is too small or the mode is not smaller than raw.
uint64_t EncodeLanes32(const Source& source, uint8_t* target, uint64_t room) {
  const StripShape& shape = source.shape;
  const uint64_t coded = kStripHeaderBytes + uint64_t{shape.dim};
  if (ElementCount(shape) < Lanes32ElementsMin(shape.dtype) || room < coded) return 0;
  uint8_t par[kStripDimMax];
  StripParts parts = {};
  parts.mode = StripMode::kLanes32;
  parts.top = ChooseParams(source, parts.mode, par);
  const auto table_of = [&](uint32_t channel) -> const CoderTable& {
    return kExponentCoderTables.of[par[channel] >> 4];
  };
  const auto symbol_of = [&](uint32_t channel, uint32_t token) {
    const CoderTable& table = table_of(channel);
    if (token >= shape.tokens) return LikeliestSymbol(table);
    return SymbolOf(table, TopOf(parts.top, par[channel]), source.Exponent(token, channel));
  };
  // The stream grows downwards from its largest possible end within the room; then it is moved.
  const uint64_t stream_max = StreamBytesMax(shape.tokens, shape.dim);
  uint8_t* begin = target + coded;
  uint8_t* end = begin + (room - coded < stream_max ? room - coded : stream_max);
  const uint8_t* stream = EncodeStream(shape.tokens, shape.dim, table_of, symbol_of, begin, end);
  if (stream == nullptr) return 0;
  parts.stream_bytes = static_cast<uint32_t>(end - stream);
  std::memmove(begin, stream, parts.stream_bytes);
  uint8_t* escape = begin + parts.stream_bytes;
  for (uint32_t channel = 0; channel < shape.dim; ++channel) {
    for (uint32_t token = 0; token < shape.tokens; ++token) {
      if (symbol_of(channel, token) != kEscapeSymbol) continue;
      if (escape == target + room) return 0;
      *escape++ = static_cast<uint8_t>(source.Exponent(token, channel));
      ++parts.escapes;
    }
  }
  PlaceParts(shape, &parts);
  if (parts.bytes > room || parts.bytes >= RawStripBytes(shape)) return 0;
  StoreStripHeader(parts, target);
  std::memcpy(target + strip::kPar, par, shape.dim);
  StorePlane(source, parts, target);
  return parts.bytes;
}

uint64_t EncodePlanes(const Source& source, uint8_t* target, uint64_t room) {
  const StripShape& shape = source.shape;
  uint8_t par[kStripDimMax];
  StripParts parts = {};
  parts.mode = StripMode::kPlanes;
  parts.top = ChooseParams(source, parts.mode, par);
  const auto distance_of = [&](uint64_t index) {
    const uint32_t top = TopOf(parts.top, par[index % shape.dim]);
    return (top - source.At(index).exponent) & 0xFF;
  };
  for (uint64_t i = 0; i < ElementCount(shape); ++i) {
    const uint32_t distance = distance_of(i);
    if (distance < kPlanesReach) continue;
    ++parts.escapes;
    parts.raws += NibbleOf(distance) == kRawNibble ? 1 : 0;
  }
  PlaceParts(shape, &parts);
  if (parts.bytes > room || parts.bytes >= RawStripBytes(shape)) return 0;
  StoreStripHeader(parts, target);
  std::memcpy(target + strip::kPar, par, shape.dim);
  std::memset(target + parts.coded, 0, parts.raw - parts.coded);
  uint8_t* raw = target + parts.raw;
  uint32_t escapes = 0;
  for (uint64_t i = 0; i < ElementCount(shape); ++i) {
    const uint32_t distance = distance_of(i);
    StoreRunCode(target + parts.coded, i, distance < kPlanesReach ? distance : kPlanesReach);
    if (distance < kPlanesReach) continue;
    const uint32_t nibble = NibbleOf(distance);
    uint8_t* nibbles = target + parts.escape + escapes / 2;
    *nibbles = static_cast<uint8_t>(*nibbles | nibble << (escapes % 2 * 4));
    ++escapes;
    if (nibble == kRawNibble) *raw++ = static_cast<uint8_t>(distance);
  }
  StorePlane(source, parts, target);
  return parts.bytes;
}

}  // namespace

uint64_t EncodeStrip(const StripShape& shape, const uint8_t* source, uint8_t* target,
                     uint64_t room) {
  const Source from{shape, source};
  uint64_t bytes = shape.is_fast ? 0 : EncodeLanes32(from, target, room);
  if (shape.is_fast || shape.tokens < kPlanesTriedBelowTokens) {
    // Uses only as much room as the smaller result so far.
    const uint64_t planes = EncodePlanes(from, target, bytes == 0 ? room : bytes);
    if (planes != 0) bytes = planes;
  }
  return bytes == 0 ? StoreRawStrip(shape, source, target, room) : bytes;
}

}  // namespace cairn::codecs::reference
