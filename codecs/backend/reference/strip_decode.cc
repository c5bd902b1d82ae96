// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/reference/reference.h"
#include "codecs/pack/exponent_tables.h"
#include "codecs/pack/lanes32.h"
#include "codecs/types/bytes.h"

#include <cstring>

namespace cairn::codecs::reference {

void JoinElement(const StripJob& job, uint64_t index, uint32_t exponent) {
  const StripShape& shape = job.shape;
  const uint8_t* low = job.strip + job.parts.low;
  Fields fields{exponent, 0, 0};
  if (!IsFp8(shape.dtype)) fields.plane = job.strip[job.parts.plane + index];
  switch (shape.dtype) {
    case DType::kFp8E4m3:
      fields.low = LoadNibble(low, index);
      job.target[index] = static_cast<uint8_t>(Join(shape.dtype, fields));
      break;
    case DType::kFp8E5m2:
      fields.low = LoadRunCode(low, index);
      job.target[index] = static_cast<uint8_t>(Join(shape.dtype, fields));
      break;
    case DType::kFp16:
      fields.low = LoadRunCode(low, index);
      Store(job.target + 2 * index, static_cast<uint16_t>(Join(shape.dtype, fields)));
      break;
    case DType::kFp32:
      fields.low = Load<uint16_t>(low + 2 * index);
      Store(job.target + 4 * index, Join(shape.dtype, fields));
      break;
    default:
      Store(job.target + 2 * index, static_cast<uint16_t>(Join(shape.dtype, fields)));
  }
}

namespace {

bool DecodeLanes32(const StripJob& job) {
  const StripShape& shape = job.shape;
  const uint8_t* par = job.strip + strip::kPar;
  uint32_t escapes = 0;
  const auto table_of = [&](uint32_t channel) -> const CoderTable& {
    return kExponentCoderTables.of[par[channel] >> 4];
  };
  const auto emit = [&](uint32_t channel, uint32_t token, uint32_t symbol) {
    if (token >= shape.tokens) return true;
    uint32_t exponent = TopOf(job.parts.top, par[channel]) - symbol;
    if (symbol == kEscapeSymbol) {
      if (escapes == job.parts.escapes) return false;
      exponent = job.strip[job.parts.escape + escapes++];
    }
    JoinElement(job, uint64_t{token} * shape.dim + channel, exponent);
    return true;
  };
  return DecodeStream(job.strip + job.parts.coded, job.parts.stream_bytes, shape.tokens, shape.dim,
                      table_of, emit) &&
         escapes == job.parts.escapes;
}

bool DecodePlanes(const StripJob& job) {
  const StripShape& shape = job.shape;
  const uint8_t* par = job.strip + strip::kPar;
  uint32_t escapes = 0;
  uint32_t raws = 0;
  for (uint64_t i = 0; i < ElementCount(shape); ++i) {
    uint32_t distance = LoadRunCode(job.strip + job.parts.coded, i);
    if (distance == kPlanesReach) {
      if (escapes == job.parts.escapes) return false;
      const uint32_t nibble = job.strip[job.parts.escape + escapes / 2] >> (escapes % 2 * 4) & 15;
      ++escapes;
      if (nibble != kRawNibble) {
        distance = DistanceOf(nibble);
      } else {
        if (raws == job.parts.raws) return false;
        distance = job.strip[job.parts.raw + raws++];
      }
    }
    JoinElement(job, i, TopOf(job.parts.top, par[i % shape.dim]) - distance);
  }
  return escapes == job.parts.escapes && raws == job.parts.raws;
}

}  // namespace

bool DecodeStrips(const StripJob* jobs, uint32_t count) {
  bool is_ok = true;
  for (uint32_t i = 0; i < count; ++i) {
    const StripJob& job = jobs[i];
    switch (job.parts.mode) {
      case StripMode::kRaw:
        std::memcpy(job.target, job.strip + job.parts.coded, job.parts.end - job.parts.coded);
        break;
      case StripMode::kPlanes:
        is_ok &= DecodePlanes(job);
        break;
      case StripMode::kLanes32:
        is_ok &= DecodeLanes32(job);
        break;
    }
  }
  return is_ok;
}

}  // namespace cairn::codecs::reference
