// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decodes strips of `cairn`: entropy-coded codes whose quantization steps are in a profile. One
// warp per strip. Codes are decoded channel by channel, for all tokens of the strip. Values are
// stored token by token, for all channels. In between, each code is kept at the place of its
// element in the target.

#include <cstdint>

#include "codecs/backend/step_tile.h"
#include "codecs/pack/step_strip.h"
#include "kernels/body/step_values.h"
#include "kernels/body/strips.h"

namespace cairn::kernels {

struct StepWarp {
  uint8_t* places[kTaskTokensMax];
  uint32_t is_row[kTaskTokensMax / 32];
  CentredToken centred;
};

struct StepsDecodeShared {
  StepWarp warps[kBlockWarps];
};

// A strip that was found in its tile, with the tables for its codes.
struct FoundSteps {
  codecs::StripShape shape;
  codecs::StepStripParts parts;
  const uint8_t* bytes;
  const StepTables* tables;
  uint32_t head;
};

// Parses only the header. Returns false if no encoder writes such a header, or if the parts would
// exceed `room`.
CAIRN_DEVICE bool ParseStepHead(const uint8_t* strip, uint32_t room,
                                const codecs::StripShape& shape, codecs::StepStripParts* parts) {
  if (room < codecs::kStripHeaderBytes) return false;
  const uint32_t first = LoadGlobal<uint32_t>(strip + codecs::step_strip::kMode);
  if ((first & 0xFF) > static_cast<uint32_t>(codecs::StepStripMode::kCoded)) return false;
  parts->mode = static_cast<codecs::StepStripMode>(first & 0xFF);
  parts->rows = first >> 8 & 0xFF;
  parts->planes = first >> 16;
  parts->stream_bytes = LoadGlobal<uint32_t>(strip + codecs::step_strip::kStream);
  parts->escapes = LoadGlobal<uint32_t>(strip + codecs::step_strip::kEscapes);
  if (LoadGlobal<uint32_t>(strip + codecs::step_strip::kZero) != 0) return false;
  if (!codecs::HasValidCounts(shape, *parts)) return false;
  codecs::PlaceStepParts(shape, parts);
  if (parts->bytes > room) return false;
  return parts->mode == codecs::StepStripMode::kRaw || parts->bytes < codecs::RawStripBytes(shape);
}

// Finds the strip of a task by skipping the strips before it. All lanes return the same result.
CAIRN_DEVICE bool FindSteps(const TileTask& task, const PlaneRecord& plane, FoundSteps* found) {
  uint32_t rows = 0;
  const uint32_t at = OffsetOfStrip(
      task, plane, [&](const uint8_t* strip, uint32_t room, const codecs::StripShape& shape) {
        if (!ParseStepHead(strip, room, shape, &found->parts)) return uint64_t{0};
        rows += found->parts.rows;
        return found->parts.bytes;
      });
  if (at == kNoStrip) return false;
  found->shape = ShapeOfStrip(plane, task.token_first);
  found->bytes = task.source + at;
  const bool is_last = task.token_first + found->shape.tokens == plane.tokens;
  return !is_last || (rows == task.rows && found->parts.bytes == task.bytes - at);
}

// Marks the strip's rows. Returns false if they are invalid.
CAIRN_DEVICE bool MarkStepRows(const FoundSteps& strip, uint32_t* is_row) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  if (lane < kTaskTokensMax / 32) is_row[lane] = 0;
  SyncWarp();
  bool is_wrong = false;
  for (uint32_t row = lane; row < strip.parts.rows; row += kWarpLanes) {
    const uint32_t token = LoadGlobal<uint8_t>(strip.bytes + strip.parts.position + row);
    const uint32_t bit = 1U << token % 32;
    is_wrong |=
        token >= strip.shape.tokens || (AtomicOrShared(&is_row[token / 32], bit) & bit) != 0;
  }
  SyncWarp();
  return !Any(is_wrong);
}

// Copies the source elements of rows to their places. Sets the places of rows in `places` to null,
// so that the decoder does not write decoded elements over the rows.
CAIRN_DEVICE void StoreStripRows(const FoundSteps& strip, const PlaneRecord& plane,
                                 uint8_t** places) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const uint32_t unit = 1U << LowestBit(plane.unit | (strip.parts.row_bits & 15));
  for (uint32_t row = 0; row < strip.parts.rows; ++row) {
    const uint32_t token = LoadGlobal<uint8_t>(strip.bytes + strip.parts.position + row);
    uint8_t* place = places[token];
    SyncWarp();
    if (lane == 0) places[token] = nullptr;
    if (place == nullptr) continue;
    const uint8_t* bits = strip.bytes + strip.parts.row_bits + row * plane.row_bytes;
    CopyRow(bits, place, plane.row_bytes, unit, lane, kWarpLanes);
  }
  SyncWarp();
}

// Returns the low bits of the lane's token. The bit planes are `step` bytes apart.
CAIRN_DEVICE uint32_t LoadLowBits(const uint8_t* low, uint32_t step, uint32_t bits) {
  uint32_t value = 0;
  CAIRN_NO_UNROLL
  for (uint32_t i = 0; i < bits; ++i) {
    const uint32_t word = LoadGlobal<uint32_t>(low + i * step);
    value |= (word >> ThreadIndex() % kWarpLanes & 1) << i;
  }
  return value;
}

// Stores the codes at the places of their elements. Returns false if the strip does not end as it
// must, or was coded with another profile.
CAIRN_DEVICE bool DecodeStepCodes(const PlaneRecord& plane, const FoundSteps& strip,
                                  const StepWarp& own) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, below = (1U << lane) - 1;
  const codecs::StepStripParts& parts = strip.parts;
  const uint32_t plane_bytes = codecs::LowPlaneBytes(strip.shape.tokens);
  const uint32_t element_bytes = plane.row_bytes / plane.dim;
  LaneCoder coder(strip.bytes + parts.stream, parts.stream_bytes);
  uint32_t planes = 0, escape = 0;
  for (uint32_t i = 0; i < plane.dim; ++i) {
    const uint32_t channel = plane.vectors == nullptr ? ChannelInPairs(plane, i) : i;
    const codecs::StepShape by = LoadStep(plane, strip.head, channel).shape;
    const uint8_t* low = strip.bytes + parts.low + static_cast<uint64_t>(planes) * plane_bytes;
    planes += by.low_bits;
    if (planes > parts.planes) return false;  // all lanes take the same branch
    const uint32_t* table = strip.tables->entries + by.table * codecs::kCoderSlots;
    for (uint32_t first = 0; first < strip.shape.tokens; first += kWarpLanes) {
      const uint32_t entry = LoadGlobal<uint32_t>(table + coder.Slot());
      coder.Pass(entry);
      const uint32_t token = first + lane;
      const bool is_coded = token < strip.shape.tokens && (own.is_row[first / 32] >> lane & 1) == 0;
      const bool is_escape = is_coded && (entry >> 24 & kEscapeFlag) != 0;
      const uint32_t escaping = Ballot(is_escape);
      const uint32_t from = escape + CountBits(escaping & below);
      escape += CountBits(escaping);
      if (!is_coded || own.places[token] == nullptr) continue;
      uint16_t code = 0;
      if (!is_escape) {
        const uint32_t bits = LoadLowBits(low + first / 8, plane_bytes, by.low_bits);
        code = static_cast<uint16_t>(codecs::StepCode(entry >> 24 & 15, bits, by.low_bits));
      } else if (from < parts.escapes) {
        code = LoadGlobal<uint16_t>(strip.bytes + parts.escape + 2 * from);
      }
      StoreGlobal(own.places[token] + channel * element_bytes, code);
    }
  }
  return coder.HasEnded() && planes == parts.planes && escape == parts.escapes;
}

// Does the same as codecs::StepCodeOf(), but needs no array of offsets in the memory of a thread.
// For magnitudes above 2 the offset is 0, which changes nothing.
CAIRN_DEVICE float StepCodeOf(int32_t code, U32x2 offsets) {
  const uint32_t magnitude = static_cast<uint32_t>(code < 0 ? -code : code);
  const float offset = codecs::BitsFloat(magnitude == 1   ? offsets.x
                                         : magnitude == 2 ? offsets.y
                                                          : 0);
  return codecs::Add(static_cast<float>(code), code < 0 ? -offset : offset);
}

// Converts the codes at a token's place to values, without adding the means.
CAIRN_DEVICE void CentreToken(const PlaneRecord& plane, const FoundSteps& strip,
                              const uint8_t* place, CentredToken* centred) {
  const uint32_t element_bytes = plane.row_bytes / plane.dim;
  for (uint32_t c = ThreadIndex() % kWarpLanes; c < plane.dim; c += kWarpLanes) {
    const codecs::StepChannel channel = LoadStep(plane, strip.head, c);
    const uint32_t offsets =
        channel.shape.low_bits == 0 ? channel.shape.table : codecs::kProfileTables;
    const auto of = LoadGlobal<U32x2>(strip.tables->offsets[offsets]);
    const auto code = LoadRecord<int16_t>(place + c * element_bytes);
    centred->of[c] = codecs::Multiply(StepCodeOf(code, of), channel.step);
  }
}

CAIRN_DEVICE bool DecodeSteps(const TileTask& task, const PlaneRecord& plane,
                              const FoundSteps& strip, StepWarp* own) {
  if (strip.parts.mode == codecs::StepStripMode::kRaw) {
    CopyTokensOfWarp(strip.bytes + strip.parts.low, strip.shape.tokens, own->places,
                     plane.row_bytes, plane.unit);
    return true;
  }
  if (!MarkStepRows(strip, own->is_row)) return false;
  StoreStripRows(strip, plane, own->places);
  if (!DecodeStepCodes(plane, strip, *own)) return false;
  SyncWarp();
  for (uint32_t token = 0; token < strip.shape.tokens; ++token) {
    if (own->places[token] == nullptr) continue;
    CentreToken(plane, strip, own->places[token], &own->centred);
    SyncWarp();
    StoreTurned(plane, strip.head, task.token_first + token, own->centred, own->places[token]);
    SyncWarp();  // `centred` is reused for the next token
  }
  return true;
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 2) DecodeStepsAny(DecodeArgs args) {
  CAIRN_SHARED(StepsDecodeShared, shared);
  const uint32_t warp = WarpOfBlock();
  StepWarp* own = &shared.warps[warp];
  const uint32_t tables_at = LoadGlobal<uint32_t>(args.plan + offsetof(PlanHeader, tables_at));
  const auto* tables = reinterpret_cast<const StepTables*>(args.plan + tables_at);
  DecodeWarpTasks(args, warp, own->places, [&](const TileTask& task, const PlaneRecord& plane) {
    FoundSteps strip;
    strip.tables = tables + plane.tables;
    strip.head = task.head;
    return FindSteps(task, plane, &strip) && DecodeSteps(task, plane, strip, own);
  });
}

}  // namespace cairn::kernels
