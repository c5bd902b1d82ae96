// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes strips of `cairn`, one warp per strip. Codes are first computed token by token, for all
// channels, and stored in the slot after the room for the raw tile. They are then entropy-coded
// channel by channel, from the last token to the first. Each strip has a part of the tile's slot,
// which is 16-byte aligned at both ends. After encoding the part has this content:
//
//  header | zeros                                       mode raw
//  header | low planes | escapes, last first … stream   mode coded
//
// In an image, the last word of the header is zero. In the slot it has another use if the input is
// a stored strip: it is the offset of the strip's source elements in the tile. The marks of rows
// are stored where the codes were. The source elements of rows are copied later, from the source.
// Escapes and stream can overlap only if the strip is not smaller than raw. The bytes that are
// written here are not used in that case.

#include <cstdint>

#include "codecs/pack/lanes32.h"
#include "codecs/pack/step_strip.h"
#include "kernels/body/centre.h"
#include "kernels/body/strips_encode.h"

namespace cairn::kernels {

struct StepsEncodeShared {
  struct Warp {
    const uint8_t* places[kTaskTokensMax];
    uint32_t is_row[kTaskTokensMax / 32];
    CentredToken centred;  // first used for norms
  } warps[kBlockWarps];
};
static_assert(codecs::kProfileDimMax >= codecs::kStripTokens);

// Returns the address at which the codes of a strip are stored at first, as i16 [token][channel].
CAIRN_DEVICE uint8_t* WaitingCodes(const EncodeTask& task, const PlaneRecord& plane,
                                   uint32_t token_first) {
  return task.slot + RawBytes(plane) + 2 * token_first * plane.dim;
}

// Computes the codes of a token. Returns false if the token must be a row.
CAIRN_DEVICE bool QuantizeToken(const PlaneRecord& plane, uint32_t head,
                                const CentredToken& centred, uint8_t* codes) {
  bool is_codable = true;
  for (uint32_t c = ThreadIndex() % kWarpLanes; c < plane.dim; c += kWarpLanes) {
    int16_t code = 0;
    const bool is_code =
        codecs::StepCodeAt(CentredValue(plane, head, c, centred),
                           LoadStep(plane, head, c).step_inverse, plane.level, &code);
    StoreGlobal(codes + 2 * c, code);
    is_codable &= is_code;
  }
  return !Any(!is_codable);
}

// Computes the codes of all tokens, and marks the tokens that cannot have codes.
CAIRN_DEVICE void QuantizeStrip(const StripItem& item, StepsEncodeShared::Warp* own) {
  const PlaneRecord& plane = item.plane;
  uint8_t* codes = WaitingCodes(item.task, plane, item.token_first);
  for (uint32_t at = 0; at < item.strip.shape.tokens; ++at) {
    if (IsMarked(own->is_row, at)) continue;
    const bool is_uncodable =
        CentreSource(plane, item.task.head, item.token_first + at, own->places[at], &own->centred);
    SyncWarp();
    const bool is_coded =
        QuantizeToken(plane, item.task.head, own->centred, codes + 2 * at * plane.dim) &&
        !Any(is_uncodable);
    if (!is_coded && ThreadIndex() % kWarpLanes == 0) {
      own->is_row[at / 32] |= 1U << at % 32;
    }
    SyncWarp();  // `centred` is reused for the next token
  }
}

// Writes the coded strip from both ends of its part.
struct StepWriter {
  const uint8_t* codes;
  const uint32_t* is_row;
  LaneWriter lanes;

  // Codes a channel for all tokens, from the last token to the first.
  //   low  the low planes of the channel, each of `plane_bytes` bytes
  CAIRN_DEVICE_MEMBER void Push(const codecs::StripShape& shape, uint32_t channel,
                                codecs::StepShape by, const SymbolStep* table, uint8_t* low,
                                uint32_t plane_bytes) {
    const uint32_t lane = ThreadIndex() % kWarpLanes;
    for (uint32_t group = codecs::CoderGroups(shape.tokens); group-- > 0;) {
      const uint32_t token = kWarpLanes * group + lane;
      const bool is_coded = token < shape.tokens && !IsMarked(is_row, token);
      int32_t code = 0;
      uint32_t symbol = kNoCodeSymbol;
      if (is_coded) {
        code = LoadRecord<int16_t>(codes + 2 * (token * shape.dim + channel));
        symbol = codecs::StepSymbol(code, by.low_bits);
        if (symbol > codecs::kEscapeSymbol) symbol = codecs::kEscapeSymbol;
      }
      const auto step = LoadGlobal<SymbolStep>(table + symbol);
      const bool is_escape = (step.step & kStepEscape) != 0;
      const uint32_t escaping = Ballot(is_escape);
      if (escaping != 0) {
        const int32_t to = lanes.floor + 2 * CountOf(escaping & LanesAbove());
        if (is_escape && to + 1 < lanes.stream) {
          StoreGlobal(lanes.part + static_cast<uint32_t>(to), static_cast<int16_t>(code));
        }
        lanes.floor += 2 * CountOf(escaping);
      }
      const uint32_t bits = is_coded && !is_escape ? codecs::StepLow(code, by.low_bits) : 0;
      for (uint32_t i = 0; i < by.low_bits; ++i) {
        const uint32_t word = Ballot((bits >> i & 1) != 0);
        if (lane == 0) StoreGlobal(low + i * plane_bytes + 4 * group, word);
      }
      lanes.Push(step);
    }
  }
};

// Returns the total number of low bits of the channels.
CAIRN_DEVICE uint32_t CountLowPlanes(const PlaneRecord& plane, uint32_t head) {
  uint32_t planes = 0;
  for (uint32_t c = ThreadIndex() % kWarpLanes; c < plane.dim; c += kWarpLanes) {
    planes += LoadStep(plane, head, c).shape.low_bits;
  }
  for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) planes += ShuffleXor(planes, lanes);
  return planes;
}

// Writes a strip in mode coded. In the result, bytes is 0 if the strip is not smaller than raw.
CAIRN_DEVICE codecs::StepStripParts WriteCodes(const StripItem& item,
                                               const EncodeStepTables& tables,
                                               const uint32_t* is_row) {
  const codecs::StripShape& shape = item.strip.shape;
  const PlaneRecord& plane = item.plane;
  const uint32_t plane_bytes = codecs::LowPlaneBytes(shape.tokens);
  codecs::StepStripParts parts{};
  parts.mode = codecs::StepStripMode::kCoded;
  parts.planes = CountLowPlanes(plane, item.task.head);
  for (uint32_t i = 0; i < kTaskTokensMax / 32; ++i) parts.rows += CountBits(is_row[i]);
  const uint32_t escapes_at = codecs::kStripHeaderBytes + parts.planes * plane_bytes;
  if (escapes_at > item.strip.part_bytes) return parts;
  const auto end = static_cast<int32_t>(item.strip.part_bytes);
  const auto floor = static_cast<int32_t>(escapes_at);
  StepWriter writer{
      WaitingCodes(item.task, plane, item.token_first), is_row, {item.strip.part, end, floor}};
  uint8_t* low = item.strip.part + escapes_at;
  for (uint32_t i = plane.dim; i-- > 0;) {
    const uint32_t channel = plane.vectors == nullptr ? ChannelInPairs(plane, i) : i;
    const codecs::StepShape by = LoadStep(plane, item.task.head, channel).shape;
    low -= by.low_bits * plane_bytes;
    writer.Push(shape, channel, by, tables.of[by.table], low, plane_bytes);
  }
  writer.lanes.Finish();
  parts.stream_bytes = static_cast<uint32_t>(end - writer.lanes.stream);
  parts.escapes = static_cast<uint32_t>(writer.lanes.floor - floor) / 2;
  codecs::PlaceStepParts(shape, &parts);
  if (parts.bytes >= codecs::RawStripBytes(shape)) parts.bytes = 0;
  return parts;
}

// Stores the parts of a strip other than its codes.
//   is_row     the marks of rows; ignored for a raw strip
//   source_at  for a stored strip: the offset of its source elements in its tile
CAIRN_DEVICE void LeaveSteps(const StripItem& item, const codecs::StepStripParts& parts,
                             const uint32_t* is_row, uint32_t source_at) {
  SyncWarp();  // the codes are not needed any more
  if (ThreadIndex() % kWarpLanes != 0) return;
  const auto first = static_cast<uint32_t>(parts.mode) | parts.rows << 8 | parts.planes << 16;
  StoreGlobal(item.strip.part, U32x4{first, parts.stream_bytes, parts.escapes, source_at});
  if (parts.mode == codecs::StepStripMode::kRaw) return;
  StoreGlobal(WaitingCodes(item.task, item.plane, item.token_first),
              U32x4{is_row[0], is_row[1], is_row[2], is_row[3]});
}

CAIRN_DEVICE void WriteSteps(const EncodeReader& reader, const StripItem& item,
                             StepsEncodeShared::Warp* own, Fault* fault) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  if (lane < kTaskTokensMax / 32) own->is_row[lane] = 0;
  SyncWarp();
  SelectStepRows(reader, item.tile, item.task, item.plane, item.strip.shape, item.token_first,
                 own->centred.of, own->is_row, fault);
  if (Any(*fault != Fault::kNone)) return;
  SyncWarp();
  QuantizeStrip(item, own);
  const auto* tables =
      reinterpret_cast<const EncodeStepTables*>(reader.plan + reader.header.tables_at);
  codecs::StepStripParts parts = WriteCodes(item, tables[item.plane.tables], own->is_row);
  if (parts.bytes == 0) parts = {};
  LeaveSteps(item, parts, own->is_row, 0);
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 3) EncodeStepsAny(EncodeArgs args) {
  CAIRN_SHARED(StepsEncodeShared, shared);
  auto& own = shared.warps[WarpOfBlock()];
  EncodeWarpStrips(args, own.places,
                   [&](const EncodeReader& reader, const StripItem& item, Fault* fault) {
                     WriteSteps(reader, item, &own, fault);
                   });
}

}  // namespace cairn::kernels
