// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decodes strips of `exact`, one warp per strip. The code in this file works for all dtypes, dims
// and modes. strips_fast.h decodes the most common strips.

#include <cstdint>

#include "codecs/pack/exponent_tables.h"
#include "codecs/pack/lanes32.h"
#include "codecs/pack/strip.h"
#include "kernels/body/tasks.h"

namespace cairn::kernels {

inline constexpr uint32_t kStripTableWords = codecs::kExponentTables * codecs::kCoderSlots;

// The CoderEntry() of every slot of every table.
struct StripTables {
  uint32_t of[kStripTableWords];
};

struct StripsDecodeShared {
  StripTables tables;
  uint8_t* places[kBlockWarps][kTaskTokensMax];
};

// Fills the tables. The block must synchronize before it reads them.
CAIRN_DEVICE void FillTables(StripTables* tables) {
  for (uint32_t i = ThreadIndex(); i < kStripTableWords; i += kBlockThreads) {
    const codecs::CoderTable& table = codecs::kExponentCoderTables.of[i / codecs::kCoderSlots];
    tables->of[i] = CoderEntry(table, i % codecs::kCoderSlots);
  }
}

// A strip that was found in its tile, and the places of its tokens.
struct FoundStrip {
  codecs::StripShape shape;
  codecs::StripParts parts;
  const uint8_t* bytes;
  uint32_t readable;       // number of bytes from `bytes` to the end of the tile
  uint8_t* const* places;  // in shared memory
  uint32_t unit;           // as in PlaneRecord
};

// Parses only the header. Returns false if no encoder writes such a header, or if the parts exceed
// `room`.
CAIRN_DEVICE bool ParseHead(const uint8_t* strip, uint32_t room, const codecs::StripShape& shape,
                            codecs::StripParts* parts) {
  if (room < codecs::kStripHeaderBytes) return false;
  const uint32_t first = LoadGlobal<uint32_t>(strip + codecs::strip::kMode);
  parts->mode = static_cast<codecs::StripMode>(first & 0xFF);
  parts->top = static_cast<uint8_t>(first >> 8);
  parts->stream_bytes = LoadGlobal<uint32_t>(strip + codecs::strip::kStream);
  parts->escapes = LoadGlobal<uint32_t>(strip + codecs::strip::kEscapes);
  parts->raws = LoadGlobal<uint32_t>(strip + codecs::strip::kRaws);
  if (first >> 16 != 0 || !codecs::HasValidCounts(shape, *parts)) return false;
  codecs::PlaceParts(shape, parts);
  if (parts->bytes > room) return false;
  return parts->mode == codecs::StripMode::kRaw || parts->bytes < codecs::RawStripBytes(shape);
}

CAIRN_DEVICE codecs::StripShape ShapeOfStrip(const PlaneRecord& plane, uint32_t token_first) {
  const uint32_t left = plane.tokens - token_first;
  return {left < codecs::kStripTokens ? left : codecs::kStripTokens, plane.dim, plane.dtype,
          plane.is_fast};
}

inline constexpr uint32_t kNoStrip = 0xFFFFFFFF;

// Returns the start of a task's strip, after skipping the strips before it. Returns kNoStrip if one
// of these is invalid. parse(strip, room, shape) returns the size of a strip, or 0 if it is
// invalid.
template <typename Parse>
CAIRN_DEVICE uint32_t OffsetOfStrip(const TileTask& task, const PlaneRecord& plane, Parse parse) {
  uint32_t at = 0;
  for (uint32_t first = 0;; first += codecs::kStripTokens) {
    const uint64_t bytes = parse(task.source + at, task.bytes - at, ShapeOfStrip(plane, first));
    if (bytes == 0) return kNoStrip;
    if (first == task.token_first) return at;
    at += static_cast<uint32_t>(bytes);
  }
}

// Finds the strip of a task, and checks it. All lanes return the same result.
CAIRN_DEVICE bool FindStrip(const TileTask& task, const PlaneRecord& plane, FoundStrip* found) {
  const uint32_t at = OffsetOfStrip(
      task, plane, [&](const uint8_t* strip, uint32_t room, const codecs::StripShape& shape) {
        return ParseHead(strip, room, shape, &found->parts) ? found->parts.bytes : 0;
      });
  if (at == kNoStrip) return false;
  found->shape = ShapeOfStrip(plane, task.token_first);
  found->bytes = task.source + at;
  found->readable = task.bytes - at;
  found->unit = plane.unit;
  const bool is_last = task.token_first + found->shape.tokens == plane.tokens;
  bool is_wrong = is_last && found->parts.bytes != found->readable;
  if (found->parts.mode != codecs::StripMode::kRaw) {
    const uint8_t* par = found->bytes + codecs::strip::kPar;
    for (uint32_t c = ThreadIndex() % kWarpLanes; c < found->shape.dim; c += kWarpLanes) {
      is_wrong |= !codecs::IsValidPar(found->parts, LoadGlobal<uint8_t>(par + c));
    }
  }
  return !Any(is_wrong);
}

// Returns a code of 3 bits, like codecs::LoadRunCode().
CAIRN_DEVICE uint32_t LoadThreeBits(const uint8_t* runs, uint32_t index) {
  const uint8_t* byte = runs + index / codecs::kRun * codecs::kRunBytes + index % codecs::kRun / 8;
  const uint32_t bit = index % 8;
  return (LoadGlobal<uint8_t>(byte) >> bit & 1) | (LoadGlobal<uint8_t>(byte + 8) >> bit & 1) << 1 |
         (LoadGlobal<uint8_t>(byte + 16) >> bit & 1) << 2;
}

// Joins the parts of an element, and stores the element at the place of its token.
CAIRN_DEVICE void StoreJoined(const FoundStrip& strip, uint32_t token, uint32_t channel,
                              uint32_t exponent) {
  uint8_t* place = strip.places[token];
  if (place == nullptr) return;
  const uint32_t index = token * strip.shape.dim + channel;
  const uint8_t* low = strip.bytes + strip.parts.low;
  codecs::Fields fields{exponent, 0, 0};
  if (codecs::IsFp8(strip.shape.dtype)) {
    if (strip.shape.dtype == codecs::DType::kFp8E4m3) {
      const uint32_t byte = LoadGlobal<uint8_t>(low + codecs::NibbleByte(index));
      fields.low = byte >> codecs::NibbleShift(index) & 15;
    } else {
      fields.low = LoadThreeBits(low, index);
    }
    StoreGlobal(place + channel, static_cast<uint8_t>(codecs::Join(strip.shape.dtype, fields)));
    return;
  }
  fields.plane = LoadGlobal<uint8_t>(strip.bytes + strip.parts.plane + index);
  if (strip.shape.dtype == codecs::DType::kFp32) {
    fields.low = LoadGlobal<uint8_t>(low + 2 * index) |
                 static_cast<uint32_t>(LoadGlobal<uint8_t>(low + 2 * index + 1)) << 8;
    StoreGlobal(place + 4 * channel, codecs::Join(strip.shape.dtype, fields));
    return;
  }
  if (strip.shape.dtype == codecs::DType::kFp16) fields.low = LoadThreeBits(low, index);
  StoreGlobal(place + 2 * channel, static_cast<uint16_t>(codecs::Join(strip.shape.dtype, fields)));
}

// Copies the source elements of consecutive tokens to their places. Uses one warp.
CAIRN_DEVICE void CopyTokensOfWarp(const uint8_t* bits, uint32_t tokens, uint8_t* const* places,
                                   uint32_t row_bytes, uint32_t unit) {
  for (uint32_t token = 0; token < tokens; ++token) {
    if (places[token] == nullptr) continue;
    CopyRow(bits + token * row_bytes, places[token], row_bytes, unit, ThreadIndex() % kWarpLanes,
            kWarpLanes);
  }
}

// Decodes a strip in mode planes, 32 elements at once. Returns false if the strip does not have the
// number of escapes that it states.
CAIRN_DEVICE bool DecodePlanes(const FoundStrip& strip) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, below = (1U << lane) - 1;
  const codecs::StripParts& parts = strip.parts;
  const uint32_t elements = strip.shape.tokens * strip.shape.dim;
  uint32_t escapes = 0;
  uint32_t raws = 0;
  for (uint32_t first = 0; first < elements; first += kWarpLanes) {
    const uint32_t index = first + lane;
    const bool is_there = index < elements;
    uint32_t distance = is_there ? LoadThreeBits(strip.bytes + parts.coded, index) : 0;
    const uint32_t escaping = Ballot(distance == codecs::kPlanesReach);
    if (escaping != 0) {
      const uint32_t from = escapes + CountBits(escaping & below);
      const bool is_escape = distance == codecs::kPlanesReach && from < parts.escapes;
      uint32_t nibble = 0;
      if (is_escape) {
        nibble = LoadGlobal<uint8_t>(strip.bytes + parts.escape + from / 2) >> from % 2 * 4 & 15;
      }
      const bool is_raw = is_escape && nibble == codecs::kRawNibble;
      const uint32_t raw = Ballot(is_raw);
      const uint32_t at = raws + CountBits(raw & below);
      if (is_escape && !is_raw) distance = codecs::DistanceOf(nibble);
      if (is_raw && at < parts.raws) {
        distance = LoadGlobal<uint8_t>(strip.bytes + parts.raw + at);
      }
      escapes += CountBits(escaping);
      raws += CountBits(raw);
    }
    if (!is_there) continue;
    const uint32_t channel = index % strip.shape.dim;
    const uint8_t par = LoadGlobal<uint8_t>(strip.bytes + codecs::strip::kPar + channel);
    StoreJoined(strip, index / strip.shape.dim, channel, codecs::TopOf(parts.top, par) - distance);
  }
  return escapes == parts.escapes && raws == parts.raws;
}

// The decoder of mode lanes32. Each of the 32 entropy coders is a lane of the warp.
struct LaneCoder {
  const uint8_t* stream;
  uint32_t bytes;
  uint32_t state, cursor = codecs::kCoderStatesBytes;
  bool is_wrong;

  CAIRN_DEVICE_MEMBER LaneCoder(const uint8_t* from, uint32_t count) : stream(from), bytes(count) {
    const uint8_t* own = from + 2 * (ThreadIndex() % kWarpLanes);
    state = LoadGlobal<uint8_t>(own) | static_cast<uint32_t>(LoadGlobal<uint8_t>(own + 1)) << 8;
    is_wrong = state < codecs::kCoderStateMin;
  }
  [[nodiscard]] CAIRN_DEVICE_MEMBER uint32_t Slot() const { return state & 0xFF; }
  // Advances past a symbol. `entry` is the CoderEntry() of the slot that Slot() returned.
  CAIRN_DEVICE_MEMBER void Pass(uint32_t entry) {
    const uint32_t below = (1U << ThreadIndex() % kWarpLanes) - 1;
    state = (entry >> 8 & 0xFF) * (state >> 8) + (entry >> 16 & 0xFF);
    const bool lacks = state < codecs::kCoderStateMin;
    const uint32_t lacking = Ballot(lacks);
    const uint32_t at = cursor + CountBits(lacking & below);
    if (lacks) state = state << 8 | (at < bytes ? LoadGlobal<uint8_t>(stream + at) : 0);
    cursor += CountBits(lacking);
  }
  [[nodiscard]] CAIRN_DEVICE_MEMBER bool HasEnded() const {
    return !Any(is_wrong || state != codecs::kCoderStateMin || cursor != bytes);
  }
};

// Decodes a strip in mode lanes32. Returns false if the stream does not end as it must, or if the
// strip does not have the number of escapes that it states.
CAIRN_DEVICE bool DecodeLanes(const FoundStrip& strip, const StripTables& tables) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, below = (1U << lane) - 1;
  const codecs::StripParts& parts = strip.parts;
  const uint8_t* escapes = strip.bytes + parts.escape;
  LaneCoder coder(strip.bytes + parts.coded, parts.stream_bytes);
  uint32_t escape = 0;
  for (uint32_t channel = 0; channel < strip.shape.dim; ++channel) {
    const uint8_t par = LoadGlobal<uint8_t>(strip.bytes + codecs::strip::kPar + channel);
    const uint32_t top = codecs::TopOf(parts.top, par);
    const uint32_t* table = tables.of + (par >> 4) * codecs::kCoderSlots;
    for (uint32_t first = 0; first < strip.shape.tokens; first += kWarpLanes) {
      const uint32_t entry = table[coder.Slot()];
      coder.Pass(entry);
      const uint32_t token = first + lane;
      uint32_t exponent = top - (entry >> 24 & 15);
      const bool is_escape = (entry >> 24 & kEscapeFlag) != 0 && token < strip.shape.tokens;
      const uint32_t escaping = Ballot(is_escape);
      const uint32_t from = escape + CountBits(escaping & below);
      if (is_escape && from < parts.escapes) exponent = LoadGlobal<uint8_t>(escapes + from);
      escape += CountBits(escaping);
      if (token < strip.shape.tokens) StoreJoined(strip, token, channel, exponent);
    }
  }
  return coder.HasEnded() && escape == parts.escapes;
}

CAIRN_DEVICE bool DecodeAnyStrip(const FoundStrip& strip, const StripTables& tables,
                                 uint32_t row_bytes) {
  switch (strip.parts.mode) {
    case codecs::StripMode::kRaw:
      CopyTokensOfWarp(strip.bytes + strip.parts.coded, strip.shape.tokens, strip.places, row_bytes,
                       strip.unit);
      return true;
    case codecs::StripMode::kPlanes:
      return DecodePlanes(strip);
    default:
      return DecodeLanes(strip, tables);
  }
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) DecodeStripsAny(DecodeArgs args) {
  CAIRN_SHARED(StripsDecodeShared, shared);
  FillTables(&shared.tables);
  SyncBlock();
  const uint32_t warp = WarpOfBlock();
  DecodeWarpTasks(args, warp, shared.places[warp],
                  [&](const TileTask& task, const PlaneRecord& plane) {
                    FoundStrip strip;
                    strip.places = shared.places[warp];
                    return FindStrip(task, plane, &strip) &&
                           DecodeAnyStrip(strip, shared.tables, plane.row_bytes);
                  });
}

}  // namespace cairn::kernels
