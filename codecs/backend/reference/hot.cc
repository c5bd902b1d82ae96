// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "codecs/backend/hot_tile.h"
#include "codecs/backend/reference/reference.h"
#include "codecs/backend/reference/step.h"
#include "codecs/backend/step_token.h"

namespace cairn::codecs::reference {
namespace {

// Centred values of a strip, [token][channel]; unspecified for rows.
struct Centred {
  float of[kStripTokens * kProfileDimMax];
};

// Centres all tokens that are not rows. Adds tokens that cannot be coded to the rows.
void CentreStrip(const HotTile& tile, const StepSource& source, Centred* centred,
                 StripTokens* rows) {
  const uint32_t dim = tile.step.dim;
  float values[kProfileDimMax];
  for (uint32_t token = 0; token < source.tokens; ++token) {
    bool is_codable = !rows->Has(token);
    for (uint32_t c = 0; c < dim; ++c) {
      values[c] = LoadElement(tile.step.dtype, source.bytes, uint64_t{token} * dim + c);
      is_codable &= !IsRowValue(values[c]);
    }
    float* y = centred->of + uint64_t{token} * dim;
    if (is_codable) {
      StepForward(tile.step, source.position + token, values, y);
      for (uint32_t c = 0; c < dim; ++c) {
        is_codable &= IsHotCodable(y[c], HotInverseScale(tile.channels[c].spread_log));
      }
    }
    if (!is_codable) rows->Add(token);
  }
}

int32_t CorrectionOf(const HotTile& tile, const Centred& centred, uint32_t tokens,
                     const StripTokens& rows, uint32_t channel) {
  const float inverse = HotInverseScale(tile.channels[channel].spread_log);
  HotPower power;
  for (uint32_t token = 0; token < tokens; ++token) {
    if (rows.Has(token)) continue;
    power.Add(centred.of[uint64_t{token} * tile.step.dim + channel], inverse);
  }
  return power.Correction();
}

}  // namespace

void EncodeHotStrip(const HotTile& tile, const StepSource& source, uint8_t* codes,
                    uint8_t* corrections, StripTokens* rows) {
  const uint32_t dim = tile.step.dim;
  SelectStepRows(tile.step, source, rows);
  Centred centred;
  CentreStrip(tile, source, &centred, rows);
  std::memset(codes, 0, uint64_t{source.tokens} * tile.row_bytes);
  if (tile.is_corrected) std::memset(corrections, 0, HotCorrectionBytes(dim));
  for (uint32_t c = 0; c < dim; ++c) {
    const HotChannel& channel = tile.channels[c];
    int32_t correction = 0;
    if (tile.is_corrected) {
      correction = CorrectionOf(tile, centred, source.tokens, *rows, c);
      StoreHotBits(corrections, 4 * c, 4, static_cast<uint32_t>(correction - kHotCorrectionMin));
    }
    if (channel.width == 0) continue;
    const float inverse = HotInverseScale(channel.spread_log, correction);
    for (uint32_t token = 0; token < source.tokens; ++token) {
      if (rows->Has(token)) continue;
      const float value = centred.of[uint64_t{token} * dim + c];
      StoreHotBits(codes + uint64_t{token} * tile.row_bytes, channel.bit_offset, channel.width,
                   HotCodeOf(value, inverse, channel.width));
    }
  }
}

void DecodeHotStrip(const HotStripJob& job) {
  const HotTile& tile = *job.tile;
  const uint32_t dim = tile.step.dim;
  float scales[kProfileDimMax];
  for (uint32_t c = 0; c < dim; ++c) {
    scales[c] =
        Exp2(HotScaleLog(tile.channels[c].spread_log, HotCorrectionAt(tile, job.corrections, c)));
  }
  float centred[kProfileDimMax];
  float values[kProfileDimMax];
  for (uint32_t token = 0; token < job.tokens; ++token) {
    const uint8_t* row = job.codes + uint64_t{token} * tile.row_bytes;
    for (uint32_t c = 0; c < dim; ++c) {
      const HotChannel& channel = tile.channels[c];
      centred[c] = 0.0F;
      if (channel.width == 0) continue;
      const uint32_t code = LoadHotBits(row, channel.bit_offset, channel.width);
      centred[c] = HotValueOf(code, scales[c], channel.width);
    }
    StepBack(tile.step, job.position + token, centred, values);
    for (uint32_t c = 0; c < dim; ++c) {
      StoreElement(tile.step.dtype, job.target, uint64_t{token} * dim + c, values[c]);
    }
  }
}

}  // namespace cairn::codecs::reference
