// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "codecs/backend/reference/reference.h"
#include "codecs/backend/reference/step.h"
#include "codecs/backend/step_token.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs::reference {
namespace {

// Returns the low bits of a code of a channel whose planes start at `low`.
uint32_t LoadLow(const uint8_t* low, uint32_t tokens, uint32_t low_bits, uint32_t token) {
  uint32_t value = 0;
  for (uint32_t bit = 0; bit < low_bits; ++bit) {
    const uint8_t* plane = low + uint64_t{bit} * LowPlaneBytes(tokens);
    value |= static_cast<uint32_t>(plane[token / 8] >> (token % 8) & 1) << bit;
  }
  return value;
}

void DecodeToken(const StepTile& tile, uint64_t position, const int16_t* codes, uint32_t token,
                 uint8_t* target) {
  float centred[kProfileDimMax];
  float values[kProfileDimMax];
  for (uint32_t c = 0; c < tile.dim; ++c) centred[c] = ValueOf(tile, c, codes[c]);
  StepBack(tile, position, centred, values);
  for (uint32_t c = 0; c < tile.dim; ++c) {
    StoreElement(tile.dtype, target, uint64_t{token} * tile.dim + c, values[c]);
  }
}

}  // namespace

bool LoadStepRows(uint32_t tokens, const StepStripParts& parts, const uint8_t* strip,
                  StripTokens* rows) {
  for (uint32_t i = 0; i < parts.rows; ++i) {
    const uint8_t token = strip[parts.position + i];
    if (token >= tokens || rows->Has(token)) return false;
    rows->Add(token);
  }
  return true;
}

bool LoadStepCodes(const StepTile& tile, uint32_t tokens, const StepStripParts& parts,
                   const uint8_t* strip, StepCodes* codes) {
  if (parts.planes != tile.planes || !LoadStepRows(tokens, parts, strip, &codes->rows))
    return false;
  const uint8_t* escape = strip + parts.escape;
  const uint8_t* escapes_end = escape + 2 * uint64_t{parts.escapes};
  const uint8_t* low = strip + parts.low;
  const auto table_of = [&](uint32_t i) -> const CoderTable& {
    return TableOf(tile, tile.order[i]);
  };
  const auto emit = [&](uint32_t i, uint32_t token, uint32_t symbol) {
    const uint32_t channel = tile.order[i];
    const uint32_t low_bits = tile.channels[channel].shape.low_bits;
    if (token < tokens) {
      int16_t* code = codes->of + uint64_t{token} * tile.dim + channel;
      if (codes->rows.Has(token)) {
        *code = 0;
      } else if (symbol != kEscapeSymbol) {
        *code =
            static_cast<int16_t>(StepCode(symbol, LoadLow(low, tokens, low_bits, token), low_bits));
      } else {
        if (escape == escapes_end) return false;
        *code = Load<int16_t>(escape);
        escape += sizeof(int16_t);
      }
    }
    if (token + 1 == kCoderLanes * CoderGroups(tokens)) {
      low += uint64_t{low_bits} * LowPlaneBytes(tokens);
    }
    return true;
  };
  return DecodeStream(strip + parts.stream, parts.stream_bytes, tokens, tile.dim, table_of, emit) &&
         escape == escapes_end;
}

bool DecodeStepStrip(const StepStripJob& job) {
  const StepTile& tile = *job.tile;
  const uint64_t row_bytes = uint64_t{tile.dim} * BytesOf(tile.dtype);
  if (job.parts.mode == StepStripMode::kRaw) {
    std::memcpy(job.target, job.strip + job.parts.low, job.tokens * row_bytes);
    return true;
  }
  StepCodes codes;
  if (!LoadStepCodes(tile, job.tokens, job.parts, job.strip, &codes)) return false;
  for (uint32_t token = 0; token < job.tokens; ++token) {
    if (codes.rows.Has(token)) continue;
    DecodeToken(tile, job.position + token, codes.of + uint64_t{token} * tile.dim, token,
                job.target);
  }
  StoreStepRows(job);
  return true;
}

bool DecodeStepStrips(const StepStripJob* jobs, uint32_t count) {
  bool is_ok = true;
  for (uint32_t i = 0; i < count; ++i) is_ok = is_ok && DecodeStepStrip(jobs[i]);
  return is_ok;
}

void StoreStepRows(const StepStripJob& job) {
  const uint64_t row_bytes = uint64_t{job.tile->dim} * BytesOf(job.tile->dtype);
  for (uint32_t i = 0; i < job.parts.rows; ++i) {
    std::memcpy(job.target + job.strip[job.parts.position + i] * row_bytes,
                job.strip + job.parts.row_bits + i * row_bytes, row_bytes);
  }
}

}  // namespace cairn::codecs::reference
