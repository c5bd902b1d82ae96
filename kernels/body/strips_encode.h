// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes strips of `exact` and `exact:fast`, one warp per strip. These functions write the parts
// that do not depend on where the strip will be in the image. Each strip has a part of its tile's
// slot, which is 16-byte aligned at both ends. After encoding, the part has this content:
//
//  header | par | …                                        mode raw: zeros alone
//  header | par | (dim bytes) escapes, last first … stream  mode lanes32
//  header | par | codes | nibbles … raw bytes, last first   mode planes
//
// StoreStrip() later reads planes and low bits from the source, and writes them at the strip's
// final place. The part has room for the source elements, and a coded strip is smaller than these.
// The room for planes (for 8-bit floats: for at least 3 low bits per element) is unused until then.
// It is large enough for the tops. If escapes and stream meet, the strip is not smaller than raw,
// and its bytes are not used.

#include <cstdint>

#include "codecs/pack/lanes32.h"
#include "codecs/pack/strip.h"
#include "kernels/body/strips_choice.h"

namespace cairn::kernels {

CAIRN_DEVICE uint32_t LanesAbove() { return ~1U << ThreadIndex() % kWarpLanes; }
CAIRN_DEVICE int32_t CountOf(uint32_t lanes) { return static_cast<int32_t>(CountBits(lanes)); }

// The encoder of mode lanes32; it works backwards. Each of the 32 entropy coders is a lane of the
// warp. The output starts `stream` bytes after `part`. The escapes end at `floor`. Below it, the
// encoder still counts bytes but writes none.
struct LaneWriter {
  uint8_t* part;
  int32_t stream, floor;
  uint32_t state = codecs::kCoderStateMin;

  CAIRN_DEVICE_MEMBER void Push(SymbolStep symbol) {
    const uint32_t frequency = symbol.step >> 8 & 0xFF;
    const bool is_full = state >= frequency << 8;
    const uint32_t full = Ballot(is_full);
    if (is_full) {
      Store(stream - 1 - CountOf(full & LanesAbove()), state);
      state >>= 8;
    }
    stream -= CountOf(full);
    const uint32_t quotient = state * symbol.inverse >> 24;
    state += (symbol.step & 0xFF) + quotient * (codecs::kCoderSlots - frequency);
  }
  CAIRN_DEVICE_MEMBER void Finish() {
    stream -= static_cast<int32_t>(codecs::kCoderStatesBytes);
    const int32_t own = stream + static_cast<int32_t>(2 * (ThreadIndex() % kWarpLanes));
    Store(own, state);
    Store(own + 1, state >> 8);
  }

 private:
  CAIRN_DEVICE_MEMBER void Store(int32_t at, uint32_t byte) const {
    if (at >= floor) StoreGlobal(part + static_cast<uint32_t>(at), static_cast<uint8_t>(byte));
  }
};

// Sets parts->bytes. It is 0 if the strip would not be smaller than raw.
CAIRN_DEVICE void MeasureParts(const codecs::StripShape& shape, codecs::StripParts* parts) {
  codecs::PlaceParts(shape, parts);
  if (parts->bytes >= codecs::RawStripBytes(shape)) parts->bytes = 0;
}

// Codes a channel for all tokens, from the last token to the first.
//   par  the par byte of the channel
//   at   the exponents of the channel
CAIRN_DEVICE void WriteChannel(const SourceStrip& strip, uint32_t par, uint32_t top,
                               const uint8_t* at, const EncodeTables& tables, LaneWriter* writer) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, table = par >> 4;
  const uint32_t likeliest = tables.likeliest[table];
  for (uint32_t group = codecs::CoderGroups(strip.shape.tokens); group-- > 0;) {
    const uint32_t token = kWarpLanes * group + lane;
    const bool is_there = token < strip.shape.tokens;
    const uint32_t exponent = is_there ? at[4 * kExponentWords * token] : 0;
    uint32_t symbol = likeliest;
    if (is_there) symbol = top - exponent;
    if (symbol > codecs::kEscapeSymbol) symbol = codecs::kEscapeSymbol;
    const SymbolStep step = tables.symbols[table][symbol];
    const bool is_escape = is_there && (step.step & kStepEscape) != 0;
    const uint32_t escaping = Ballot(is_escape);
    if (escaping != 0) {
      const int32_t to = writer->floor + CountOf(escaping & LanesAbove());
      if (is_escape && to < writer->stream) {
        StoreGlobal(writer->part + static_cast<uint32_t>(to), static_cast<uint8_t>(exponent));
      }
      writer->floor += CountOf(escaping);
    }
    writer->Push(step);
  }
}

// Codes a strip in mode lanes32. In the result, bytes is 0 if the strip is not smaller than raw.
// REQUIRES: the strip has at least kLanes32ElementsMin elements.
CAIRN_DEVICE codecs::StripParts WriteLanes(const SourceStrip& strip, const EncodeTables& tables,
                                           uint32_t* exponents) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, dim = strip.shape.dim;
  codecs::StripParts parts{};
  parts.mode = codecs::StripMode::kLanes32;
  const uint32_t highest = ChooseParams(strip, parts.mode, tables, exponents);
  parts.top = static_cast<uint8_t>(highest);
  const auto end = static_cast<int32_t>(strip.part_bytes);
  const auto escapes_at = static_cast<int32_t>(codecs::strip::kPar + 2 * dim);
  LaneWriter writer{strip.part, end, escapes_at};
  for (uint32_t first = (dim - 1) / kWarpLanes * kWarpLanes + kWarpLanes; first != 0;) {
    first -= kWarpLanes;
    SyncWarp();
    LoadExponents(strip, first, exponents);
    SyncWarp();
    uint32_t own = 0;  // par and top of this lane's channel
    if (first + lane < dim) {
      own = FinishPar(strip, first + lane, highest, [&](uint32_t top) {
        return TableOfTop(SampleChannel(strip.shape.tokens, exponents), top);
      });
      own |= codecs::TopOf(highest, own) << 8;
    }
    const uint32_t left = dim - first;
    for (uint32_t i = left < kWarpLanes ? left : kWarpLanes; i-- > 0;) {
      const uint32_t of = Shuffle(own, i);
      WriteChannel(strip, of & 0xFF, of >> 8, reinterpret_cast<const uint8_t*>(exponents) + i,
                   tables, &writer);
    }
  }
  writer.Finish();
  parts.escapes = static_cast<uint32_t>(writer.floor - escapes_at);
  parts.stream_bytes = static_cast<uint32_t>(end - writer.stream);
  MeasureParts(strip.shape, &parts);
  return parts;
}

// Stores the 3-bit codes of 32 elements, which are half a run. `first` is a multiple of 32.
CAIRN_DEVICE void StoreHalfRun(uint8_t* runs, uint32_t first, uint32_t code) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const uint32_t words[3] = {Ballot((code & 1) != 0), Ballot((code & 2) != 0),
                             Ballot((code & 4) != 0)};
  const uint32_t word = lane < 4 ? words[0] : lane < 8 ? words[1] : words[2];
  if (lane >= 12) return;
  uint8_t* half = runs + first / codecs::kRun * codecs::kRunBytes + first % codecs::kRun / 8;
  StoreGlobal(half + 8 * (lane / 4) + lane % 4, static_cast<uint8_t>(word >> (8 * (lane % 4))));
}

// Writes escapes from both ends: nibbles upward, two per byte, and raw bytes downward.
struct EscapeWriter {
  uint8_t* nibbles;
  uint8_t* raws_end;
  uint32_t escapes = 0, raws = 0;
  uint32_t pending = 0;  // the last nibble if escapes is odd; its byte is not written yet

  // Stores the distances of 32 elements. Only distances of at least kPlanesReach are escapes.
  // Returns false if they do not fit.
  CAIRN_DEVICE_MEMBER bool Push(uint32_t distance) {
    const bool is_escape = distance >= codecs::kPlanesReach;
    const uint32_t escaping = Ballot(is_escape);
    if (escaping == 0) return true;
    const uint32_t nibble = is_escape ? codecs::NibbleOf(distance) : 0;
    const uint32_t raw = Ballot(is_escape && nibble == codecs::kRawNibble);
    const uint32_t more = CountBits(escaping);
    const uint8_t* nibbles_end = nibbles + (escapes + more + 1) / 2;
    if (nibbles_end > raws_end - raws - CountBits(raw)) return false;
    const uint32_t above = LanesAbove(), next = escaping & above;
    const uint32_t other = Shuffle(nibble, next == 0 ? 0 : LowestBit(next));
    const uint32_t before = CountBits(escaping & ~above) - 1;  // among the 32 elements' escapes
    const uint32_t rank = escapes + before;
    if (is_escape && rank % 2 == 0 && next != 0) {
      StoreGlobal(nibbles + rank / 2, static_cast<uint8_t>(nibble | other << 4));
    } else if (is_escape && rank % 2 != 0 && before == 0) {
      StoreGlobal(nibbles + rank / 2, static_cast<uint8_t>(pending | nibble << 4));
    }
    if (is_escape && nibble == codecs::kRawNibble) {
      const uint32_t below = (1U << ThreadIndex() % kWarpLanes) - 1;
      StoreGlobal(raws_end - raws - 1 - CountBits(raw & below), static_cast<uint8_t>(distance));
    }
    pending = ReduceOr(is_escape && next == 0 ? nibble : 0);
    escapes += more;
    raws += CountBits(raw);
    return true;
  }
  CAIRN_DEVICE_MEMBER void Finish() const {
    if (escapes % 2 != 0 && ThreadIndex() % kWarpLanes == 0) {
      StoreGlobal(nibbles + escapes / 2, static_cast<uint8_t>(pending));
    }
  }
};

// Writes a strip in mode planes. In the result, bytes is 0 if the strip is not smaller than raw.
CAIRN_DEVICE codecs::StripParts WritePlanes(const SourceStrip& strip, const EncodeTables& tables,
                                            uint32_t* exponents) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, dim = strip.shape.dim;
  codecs::StripParts parts{};
  parts.mode = codecs::StripMode::kPlanes;
  MeasureParts(strip.shape, &parts);
  if (parts.bytes == 0) return parts;  // not smaller than raw, even without escapes
  const uint32_t highest = ChooseParams(strip, parts.mode, tables, exponents);
  parts.top = static_cast<uint8_t>(highest);
  for (uint32_t channel = lane; channel < dim; channel += kWarpLanes) {
    FinishPar(strip, channel, highest, [](uint32_t) { return 0U; });
  }
  SyncWarp();
  const uint32_t elements = strip.shape.tokens * dim;
  uint8_t* codes = strip.part + parts.coded;
  EscapeWriter writer{strip.part + parts.escape, strip.part + strip.part_bytes};
  const auto end = static_cast<uint32_t>(codecs::RunCount(strip.shape)) * codecs::kRun;
  parts.bytes = 0;
  for (uint32_t first = 0; first < end; first += kWarpLanes) {
    const uint32_t index = first + lane;
    uint32_t distance = 0;
    if (index < elements) {
      const uint32_t channel = index % dim;
      const uint32_t top = codecs::TopOf(highest, LoadRecord<uint8_t>(strip.Par(channel)));
      distance = (top - strip.Exponent(index / dim, channel)) & 0xFF;
    }
    StoreHalfRun(codes, first, distance < codecs::kPlanesReach ? distance : codecs::kPlanesReach);
    if (!writer.Push(distance)) return parts;
  }
  writer.Finish();
  parts.escapes = writer.escapes;
  parts.raws = writer.raws;
  MeasureParts(strip.shape, &parts);
  return parts;
}

// Codes a strip into its part of the slot. Chooses the mode as
// codecs/backend/reference/strip_encode.cc does.
CAIRN_DEVICE void WriteStrip(const SourceStrip& strip, const EncodeTables& tables,
                             uint32_t* exponents) {
  const codecs::StripShape& shape = strip.shape;
  codecs::StripParts best{};  // raw
  // Below this size there is no room for the tops, and a coded strip would not be smaller than raw.
  if (codecs::kStripHeaderBytes + 2 * shape.dim <= strip.part_bytes) {
    const bool is_laned =
        !shape.is_fast && codecs::ElementCount(shape) >= codecs::Lanes32ElementsMin(shape.dtype);
    const bool is_in_planes = shape.is_fast || shape.tokens < codecs::kPlanesTriedBelowTokens;
    codecs::StripParts planes{};
    if (is_in_planes) planes = WritePlanes(strip, tables, exponents);
    if (is_laned) best = WriteLanes(strip, tables, exponents);
    if (planes.bytes != 0 && (best.bytes == 0 || planes.bytes <= best.bytes)) {
      best = is_laned ? WritePlanes(strip, tables, exponents) : planes;
    }
    if (best.bytes == 0) best = {};
  }
  if (ThreadIndex() % kWarpLanes != 0) return;
  StoreGlobal(strip.part, U32x4{static_cast<uint32_t>(best.mode) | uint32_t{best.top} << 8,
                                best.stream_bytes, best.escapes, best.raws});
}

// A strip of a list, and the tile that it belongs to.
struct StripItem {
  uint32_t tile, token_first;
  EncodeTask task;
  PlaneRecord plane;
  SourceStrip strip;
};

// Calls `write` for those strips of a list that belong to this warp.
//   write(reader, item, fault)  called before the places of the strip's tokens are known
template <typename Write>
CAIRN_DEVICE void ForEachWarpStrip(const EncodeArgs& args, Write write) {
  const EncodeReader reader(args.plan);
  const auto list = LoadRecord<TaskList>(args.plan + args.list * sizeof(TaskList));
  const uint32_t step = GridBlocks() * kBlockWarps;
  for (uint32_t index = BlockIndex() * kBlockWarps + WarpOfBlock(); index < list.count;
       index += step) {
    const uint32_t number = reader.Item(list.first + index);
    StripItem item{};
    item.tile = number / kStripsOfTileMax;
    item.token_first = number % kStripsOfTileMax * codecs::kStripTokens;
    item.task = reader.Task(item.tile);
    item.plane = reader.Plane(item.task.plane);
    SourceStrip& strip = item.strip;
    strip.shape = ShapeOfStrip(item.plane, item.token_first);
    strip.part = item.task.slot + item.token_first * item.plane.row_bytes;
    strip.part_bytes = Align16(strip.shape.tokens * item.plane.row_bytes);
    strip.unit = item.plane.unit;
    Fault fault = Fault::kNone;
    write(reader, item, &fault);
    ReportFault(fault, item.plane, args.status);
    SyncWarp();  // shared memory is reused for the next strip
  }
}

// Calls `write` for those strips of sources that belong to this warp.
//   places  memory of the warp, for the places of a strip's tokens
//   write(reader, item, fault)  called when `places` is set
template <typename Write>
CAIRN_DEVICE void EncodeWarpStrips(const EncodeArgs& args, const uint8_t** places, Write write) {
  ForEachWarpStrip(args, [&](const EncodeReader& reader, StripItem& item, Fault* fault) {
    item.strip.places = places;
    for (uint32_t at = ThreadIndex() % kWarpLanes; at < item.strip.shape.tokens; at += kWarpLanes) {
      places[at] = SourcePlace(item.plane, item.task.source, item.token_first + at, fault);
    }
    SyncWarp();
    if (!Any(*fault != Fault::kNone)) write(reader, item, fault);
  });
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) EncodeStripsAny(EncodeArgs args) {
  CAIRN_SHARED(StripsEncodeShared, shared);
  FillEncodeTables(&shared.tables);
  SyncBlock();
  auto& own = shared.warps[WarpOfBlock()];
  EncodeWarpStrips(args, own.places, [&](const EncodeReader&, const StripItem& item, Fault*) {
    WriteStrip(item.strip, shared.tables, own.exponents);
  });
}

}  // namespace cairn::kernels
