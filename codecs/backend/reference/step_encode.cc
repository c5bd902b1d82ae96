// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "codecs/backend/reference/reference.h"
#include "codecs/backend/reference/step.h"
#include "codecs/backend/step_token.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs::reference {
namespace {

StripShape ShapeOf(const StepTile& tile, uint32_t tokens) {
  return {tokens, tile.dim, tile.dtype, false};
}

// Computes the codes of a token. Returns false if it must be a row.
bool Quantize(const StepTile& tile, const float* centred, int16_t* codes) {
  bool is_codable = true;
  for (uint32_t c = 0; c < tile.dim; ++c) {
    is_codable &= StepCodeAt(centred[c], tile.channels[c].step_inverse, tile.level, &codes[c]);
  }
  return is_codable;
}

void QuantizeStrip(const StepTile& tile, const StepSource& source, StepCodes* codes) {
  SelectStepRows(tile, source, &codes->rows);
  float values[kProfileDimMax];
  float centred[kProfileDimMax];
  for (uint32_t token = 0; token < source.tokens; ++token) {
    bool is_codable = !codes->rows.Has(token);
    for (uint32_t c = 0; c < tile.dim; ++c) {
      values[c] = LoadElement(tile.dtype, source.bytes, uint64_t{token} * tile.dim + c);
      is_codable &= !IsRowValue(values[c]);
    }
    int16_t* of_token = codes->of + uint64_t{token} * tile.dim;
    if (is_codable) {
      StepForward(tile, source.position + token, values, centred);
      is_codable = Quantize(tile, centred, of_token);
    }
    if (!is_codable) codes->rows.Add(token);
  }
}

// Symbols and low bits of a strip's codes.
class Symbols {
 public:
  Symbols(const StepTile& tile, uint32_t tokens, const StepCodes& codes)
      : tile_(tile), tokens_(tokens), codes_(codes) {}

  [[nodiscard]] bool IsCoded(uint32_t token) const {
    return token < tokens_ && !codes_.rows.Has(token);
  }
  [[nodiscard]] int16_t Code(uint32_t channel, uint32_t token) const {
    return codes_.of[uint64_t{token} * tile_.dim + channel];
  }
  [[nodiscard]] uint32_t At(uint32_t channel, uint32_t token) const {
    const CoderTable& table = TableOf(tile_, channel);
    if (!IsCoded(token)) return LikeliestSymbol(table);
    const uint32_t symbol =
        StepSymbol(Code(channel, token), tile_.channels[channel].shape.low_bits);
    return symbol < kEscapeSymbol && table.frequency[symbol] > 0 ? symbol : kEscapeSymbol;
  }
  [[nodiscard]] bool IsEscape(uint32_t channel, uint32_t token) const {
    return IsCoded(token) && At(channel, token) == kEscapeSymbol;
  }
  [[nodiscard]] uint32_t Low(uint32_t channel, uint32_t token) const {
    if (!IsCoded(token) || IsEscape(channel, token)) return 0;
    return StepLow(Code(channel, token), tile_.channels[channel].shape.low_bits);
  }
  [[nodiscard]] uint32_t EscapeCount() const {
    uint32_t count = 0;
    for (uint32_t token = 0; token < tokens_; ++token) {
      for (uint32_t c = 0; c < tile_.dim; ++c) count += IsEscape(c, token) ? 1 : 0;
    }
    return count;
  }
  [[nodiscard]] uint32_t tokens() const { return tokens_; }

 private:
  const StepTile& tile_;
  uint32_t tokens_;
  const StepCodes& codes_;
};

void StoreLowPlanes(const StepTile& tile, const Symbols& symbols, uint8_t* target) {
  const uint32_t plane_bytes = LowPlaneBytes(symbols.tokens());
  std::memset(target, 0, uint64_t{tile.planes} * plane_bytes);
  for (uint32_t i = 0; i < tile.dim; ++i) {
    const uint32_t channel = tile.order[i];
    for (uint32_t bit = 0; bit < tile.channels[channel].shape.low_bits; ++bit) {
      for (uint32_t token = 0; token < symbols.tokens(); ++token) {
        const uint32_t value = symbols.Low(channel, token) >> bit & 1;
        target[token / 8] = static_cast<uint8_t>(target[token / 8] | value << (token % 8));
      }
      target += plane_bytes;
    }
  }
}

void StoreEscapes(const StepTile& tile, const Symbols& symbols, uint8_t* target) {
  for (uint32_t i = 0; i < tile.dim; ++i) {
    for (uint32_t token = 0; token < symbols.tokens(); ++token) {
      if (!symbols.IsEscape(tile.order[i], token)) continue;
      Store(target, symbols.Code(tile.order[i], token));
      target += sizeof(int16_t);
    }
  }
}

// row_at(token): returns the source bits of a row.
template <typename RowAt>
uint64_t StoreStrip(const StepTile& tile, const StepCodes& codes, uint32_t tokens, RowAt row_at,
                    uint8_t* target, uint64_t room) {
  const StripShape shape = ShapeOf(tile, tokens);
  const Symbols symbols(tile, tokens, codes);
  StepStripParts parts = {};
  parts.mode = StepStripMode::kCoded;
  parts.rows = codes.rows.Count();
  parts.planes = tile.planes;
  parts.escapes = symbols.EscapeCount();
  PlaceStepParts(shape, &parts);
  if (parts.stream > room) return 0;
  StoreLowPlanes(tile, symbols, target + parts.low);
  StoreEscapes(tile, symbols, target + parts.escape);
  const uint64_t row_bytes = uint64_t{tile.dim} * BytesOf(tile.dtype);
  uint8_t* bits = target + parts.row_bits;
  uint8_t* position = target + parts.position;
  for (uint32_t token = 0; token < tokens; ++token) {
    if (!codes.rows.Has(token)) continue;
    std::memcpy(bits, row_at(token), row_bytes);
    bits += row_bytes;
    *position++ = static_cast<uint8_t>(token);
  }
  const uint64_t stream_max = StreamBytesMax(tokens, tile.dim);
  uint8_t* begin = target + parts.stream;
  uint8_t* end = begin + (room - parts.stream < stream_max ? room - parts.stream : stream_max);
  const auto table_of = [&](uint32_t i) -> const CoderTable& {
    return TableOf(tile, tile.order[i]);
  };
  const auto symbol_of = [&](uint32_t i, uint32_t token) {
    return symbols.At(tile.order[i], token);
  };
  const uint8_t* stream = EncodeStream(tokens, tile.dim, table_of, symbol_of, begin, end);
  if (stream == nullptr) return 0;
  parts.stream_bytes = static_cast<uint32_t>(end - stream);
  std::memmove(begin, stream, parts.stream_bytes);
  PlaceStepParts(shape, &parts);
  if (parts.bytes > room || parts.bytes >= RawStripBytes(shape)) return 0;
  std::memset(target + parts.end, 0, parts.bytes - parts.end);
  StoreStepHeader(parts, target);
  return parts.bytes;
}

}  // namespace

void SelectStepRows(const StepTile& tile, const StepSource& source, StripTokens* rows) {
  if (source.position == 0) rows->Add(0);
  if (source.v == nullptr) return;
  SelectSmallNorms({source.tokens, tile.v_dim, tile.dtype, false}, source.v, rows);
}

uint64_t EncodeStepStrip(const StepTile& tile, const StepSource& source, uint8_t* target,
                         uint64_t room, uint32_t* rows) {
  StepCodes codes;
  QuantizeStrip(tile, source, &codes);
  const uint64_t row_bytes = uint64_t{tile.dim} * BytesOf(tile.dtype);
  const auto row_at = [&](uint32_t token) { return source.bytes + token * row_bytes; };
  const uint64_t bytes = StoreStrip(tile, codes, source.tokens, row_at, target, room);
  *rows = bytes == 0 ? 0 : codes.rows.Count();
  if (bytes != 0) return bytes;
  return StoreRawStrip(ShapeOf(tile, source.tokens), source.bytes, target, room);
}

uint64_t DemoteStepStrip(const StepTile& from, const StepTile& to, uint32_t tokens,
                         const StepStripParts& parts, const uint8_t* strip, uint8_t* target,
                         uint64_t room, bool* is_valid) {
  StepCodes codes;
  *is_valid = LoadStepCodes(from, tokens, parts, strip, &codes);
  if (!*is_valid) return 0;
  for (uint64_t i = 0; i < uint64_t{tokens} * from.dim; ++i) {
    codes.of[i] = static_cast<int16_t>(Coarsen(codes.of[i], to.level - from.level));
  }
  const uint64_t row_bytes = uint64_t{from.dim} * BytesOf(from.dtype);
  const uint8_t* next = strip + parts.row_bits;
  const auto row_at = [&](uint32_t) {
    const uint8_t* row = next;
    next += row_bytes;
    return row;
  };
  return StoreStrip(to, codes, tokens, row_at, target, room);
}

}  // namespace cairn::codecs::reference
