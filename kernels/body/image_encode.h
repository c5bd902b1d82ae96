// SPDX-License-Identifier: Apache-2.0
#pragma once
// Assembles images from encoded tiles. Computes the offsets of the tiles, copies the tiles there,
// and computes their CRCs. The other encode kernels have written each coded tile to its slot. The
// tile is copied from there. Raw tiles, and the sign and mantissa planes of strips, are read from
// the source.

#include <cstdint>

#include "codecs/pack/strip.h"
#include "kernels/body/crc.h"
#include "kernels/body/encode_tasks.h"
#include "kernels/body/step_encode.h"
#include "kernels/body/strips_encode.h"

namespace cairn::kernels {

// Reads the header that an earlier kernel wrote to the slot of a strip. Returns the header and the
// offsets of the strip's parts.
CAIRN_DEVICE codecs::StripParts PartsOf(const EncodeTask& task, const PlaneRecord& plane,
                                        uint32_t token_first) {
  const auto header = LoadGlobal<U32x4>(task.slot + token_first * plane.row_bytes);
  codecs::StripParts parts{};
  parts.mode = static_cast<codecs::StripMode>(header.x & 0xFF);
  parts.top = static_cast<uint8_t>(header.x >> 8);
  parts.stream_bytes = header.y;
  parts.escapes = header.z;
  parts.raws = header.w;
  codecs::PlaceParts(ShapeOfStrip(plane, token_first), &parts);
  return parts;
}

// Returns the total size of the strips of a tile.
CAIRN_DEVICE uint32_t BytesOfStrips(const EncodeTask& task, const PlaneRecord& plane) {
  uint64_t bytes = 0;
  for (uint32_t first = 0; first < plane.tokens; first += codecs::kStripTokens) {
    bytes += PartsOf(task, plane, first).bytes;
  }
  return static_cast<uint32_t>(bytes);
}

// PartsOf() for strips of `cairn`.
CAIRN_DEVICE codecs::StepStripParts StepPartsOf(const EncodeTask& task, const PlaneRecord& plane,
                                                uint32_t token_first) {
  const auto header = LoadGlobal<U32x4>(task.slot + token_first * plane.row_bytes);
  codecs::StepStripParts parts{};
  parts.mode = static_cast<codecs::StepStripMode>(header.x & 0xFF);
  parts.rows = header.x >> 8 & 0xFF;
  parts.planes = header.x >> 16;
  parts.stream_bytes = header.y;
  parts.escapes = header.z;
  codecs::PlaceStepParts(ShapeOfStrip(plane, token_first), &parts);
  return parts;
}

// Returns the size and the rows that a tile of strips of `cairn` has if it is not stored raw.
CAIRN_DEVICE TileResult MeasureSteps(const EncodeTask& task, const PlaneRecord& plane) {
  uint64_t bytes = 0;
  uint32_t rows = 0;
  for (uint32_t first = 0; first < plane.tokens; first += codecs::kStripTokens) {
    const codecs::StepStripParts parts = StepPartsOf(task, plane, first);
    bytes += parts.bytes;
    rows += parts.rows;
  }
  return {0, static_cast<uint32_t>(bytes), 0, static_cast<uint16_t>(rows), codecs::kStepsForm};
}

// Returns the address of a token's source elements in a stored strip of `cairn`. Returns null if
// the token is not a row.
CAIRN_DEVICE const uint8_t* StoredPlace(const EncodeTask& task, const PlaneRecord& plane,
                                        uint32_t token) {
  const uint32_t at = token % codecs::kStripTokens, first = token - at;
  const auto header = LoadGlobal<U32x4>(task.slot + first * plane.row_bytes);
  const bool is_raw = (header.x & 0xFF) == static_cast<uint32_t>(codecs::StepStripMode::kRaw);
  const uint8_t* marks_at = WaitingCodes(task, plane, first);
  uint32_t row = at;
  if (!is_raw) {
    const auto marks = LoadGlobal<uint32_t>(marks_at + at / 32 * 4);
    if ((marks >> at % 32 & 1) == 0) return nullptr;
    row = CountBits(marks & ((1U << at % 32) - 1));
    for (uint32_t word = 0; word < at / 32; ++word) {
      row += CountBits(LoadGlobal<uint32_t>(marks_at + 4 * word));
    }
  }
  return task.source + header.w + row * plane.row_bytes;
}

// Returns the result of a tile. Its offset and its CRC are not set.
CAIRN_DEVICE TileResult MeasureTile(const EncodeTask& task, const PlaneRecord& plane,
                                    const TileResult& coded, Fault* fault) {
  if (task.form == codecs::kStripsForm) {
    const uint32_t bytes = BytesOfStrips(task, plane);
    if (bytes < RawBytes(plane)) return {0, bytes, 0, 0, codecs::kStripsForm};
  } else if (task.form == codecs::kStepsForm) {
    const TileResult steps = MeasureSteps(task, plane);
    if (steps.bytes < RawBytes(plane)) return steps;
    if (task.stored_bytes != 0) {
      *fault = Fault::kNotDemotable;  // a raw tile needs a source
      return {};
    }
  } else if (task.form != codecs::kRawForm && coded.form != codecs::kRawForm) {
    return coded;
  }
  return {0, RawBytes(plane), 0, 0, codecs::kRawForm};
}

// Sets the offsets of the tiles, with one warp per image. If an image has a fault, its tiles get no
// bytes.
CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) PlaceTiles(EncodeArgs args) {
  const EncodeReader reader(args.plan);
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  for (uint32_t index = BlockIndex() * kBlockWarps + WarpOfBlock();
       index < reader.header.image_count; index += GridBlocks() * kBlockWarps) {
    const EncodeImage image = reader.Image(index);
    const bool is_wrong = LoadRecord<uint32_t>(args.status + index) != 0;
    uint32_t offset = (kHeaderBytesOfImage + image.tile_count * kEntryBytesOfImage) / 16;
    for (uint32_t first = 0; first < image.tile_count; first += kWarpLanes) {
      const bool is_there = first + lane < image.tile_count;
      const uint32_t number = image.tile_first + first + lane;
      TileResult result{};
      if (is_there && !is_wrong) {
        const EncodeTask task = reader.Task(number);
        const PlaneRecord plane = reader.Plane(task.plane);
        Fault fault = Fault::kNone;
        result = MeasureTile(task, plane, LoadRecord<TileResult>(args.results + number), &fault);
        ReportFault(fault, plane, args.status);
      }
      const uint32_t end = SumToLane(result.bytes / 16);
      result.offset = offset + end - result.bytes / 16;
      if (is_there) StoreGlobal(args.results + number, result);
      offset += Shuffle(end, kWarpLanes - 1);
    }
  }
}

// Both functions copy bytes with the whole block. The first keeps the order of the bytes; the
// second reverses it.
CAIRN_DEVICE void CopyBytes(uint8_t* target, const uint8_t* source, uint32_t bytes) {
  for (uint32_t at = ThreadIndex(); at < bytes; at += kBlockThreads) {
    StoreGlobal(target + at, LoadGlobal<uint8_t>(source + at));
  }
}
CAIRN_DEVICE void CopyReversed(uint8_t* target, const uint8_t* source, uint32_t bytes) {
  for (uint32_t at = ThreadIndex(); at < bytes; at += kBlockThreads) {
    StoreGlobal(target + at, LoadGlobal<uint8_t>(source + (bytes - 1 - at)));
  }
}

// Stores the source elements of tokens one after another, with one warp per token. Pads them to 16
// bytes.
CAIRN_DEVICE void StoreSourceBits(const PlaneRecord& plane, const uint8_t* const* places,
                                  uint32_t tokens, uint8_t* target) {
  for (uint32_t token = WarpOfBlock(); token < tokens; token += kBlockWarps) {
    CopyRow(places[token], target + token * plane.row_bytes, plane.row_bytes, plane.unit,
            ThreadIndex() % kWarpLanes, kWarpLanes);
  }
  const uint32_t bytes = tokens * plane.row_bytes;
  StoreZeros(target + bytes, Align16(bytes) - bytes, ThreadIndex(), kBlockThreads);
}

// The part of StorePlaneAndLow() for whole units, with one thread per unit.
template <codecs::DType kDType>
CAIRN_DEVICE void StorePlaneUnits(const codecs::StripShape& shape, const uint8_t* const* places,
                                  const codecs::StripParts& parts, uint8_t* target) {
  const uint32_t units_of_token = shape.dim / kUnit, units = shape.tokens * units_of_token;
  const auto end = static_cast<uint32_t>(codecs::RunCount(shape)) * kRunUnits;
  for (uint32_t unit = ThreadIndex(); unit < end; unit += kBlockThreads) {
    const bool is_there = unit < units;
    U32x4 bits{};
    if (is_there) {
      const uint32_t token = unit / units_of_token, part = unit % units_of_token;
      bits = LoadGlobal<U32x4>(places[token] + 16 * part);
    }
    const U32x2 first{bits.x, bits.y}, second{bits.z, bits.w};
    if (is_there) {
      StoreGlobal(target + parts.plane + kUnit * unit,
                  U32x2{PlanesOfFour<kDType>(first), PlanesOfFour<kDType>(second)});
    }
    if constexpr (kDType == codecs::DType::kFp16) {
      const uint32_t lows = LowsOfFour(first) | LowsOfFour(second) << 4;
      uint8_t* low = target + parts.low + UnitOfRuns(unit);
      CAIRN_UNROLL
      for (uint32_t w = 0; w < 3; ++w) {
        StoreGlobal(low + 8 * w, static_cast<uint8_t>(lows >> 8 * w));
      }
    }
  }
}

// Stores a run: the nibbles of 32 elements. `first` is a multiple of 32. If the last run is not
// full, its other nibbles are 0.
CAIRN_DEVICE void StoreNibbleRun(uint8_t* runs, uint32_t first, uint32_t end, uint32_t nibble) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const uint32_t other = Shuffle(nibble, lane % 16 + 16);
  if (lane >= 16 || first >= end) return;
  StoreGlobal(runs + codecs::NibbleByte(first + lane), static_cast<uint8_t>(nibble | other << 4));
}

// Stores the plane byte and the low bits of each element. A warp processes 32 elements at a time.
CAIRN_DEVICE void StorePlaneAndLow(const codecs::StripShape& shape, const uint8_t* const* places,
                                   uint32_t unit, const codecs::StripParts& parts,
                                   uint8_t* target) {
  if (HasUnits(shape, unit)) {
    return shape.dtype == codecs::DType::kBf16
               ? StorePlaneUnits<codecs::DType::kBf16>(shape, places, parts, target)
               : StorePlaneUnits<codecs::DType::kFp16>(shape, places, parts, target);
  }
  const auto elements = static_cast<uint32_t>(codecs::ElementCount(shape));
  const auto end = static_cast<uint32_t>(codecs::RunCount(shape)) * codecs::kRun;
  uint8_t* low = target + parts.low;
  for (uint32_t first = WarpOfBlock() * kWarpLanes; first < end; first += kBlockThreads) {
    const uint32_t index = first + ThreadIndex() % kWarpLanes;
    codecs::Fields fields{0, 0, 0};
    if (index < elements) {
      const uint32_t bits =
          LoadElementBits(shape.dtype, places[index / shape.dim], index % shape.dim);
      fields = codecs::Split(shape.dtype, bits);
      if (!codecs::IsFp8(shape.dtype)) {
        StoreGlobal(target + parts.plane + index, static_cast<uint8_t>(fields.plane));
      }
      if (shape.dtype == codecs::DType::kFp32) {
        StoreGlobal(low + 2 * index, static_cast<uint8_t>(fields.low));
        StoreGlobal(low + 2 * index + 1, static_cast<uint8_t>(fields.low >> 8));
      }
    }
    if (codecs::HasLowRuns(shape.dtype)) StoreHalfRun(low, first, fields.low);
    if (shape.dtype == codecs::DType::kFp8E4m3) StoreNibbleRun(low, first, elements, fields.low);
  }
}

// Stores the zeros after the parts of a strip. Returns the strip's size.
template <typename Parts>
CAIRN_DEVICE uint32_t StoreEnd(const Parts& parts, uint8_t* target) {
  StoreZeros(target + parts.end, static_cast<uint32_t>(parts.bytes - parts.end), ThreadIndex(),
             kBlockThreads);
  return static_cast<uint32_t>(parts.bytes);
}

// Writes a strip of `exact` from its part of the slot and from the source. Returns its size.
CAIRN_DEVICE uint32_t StoreStrip(const EncodeTask& task, const PlaneRecord& plane,
                                 const uint8_t* const* places, uint32_t token_first,
                                 uint8_t* target) {
  const codecs::StripShape shape = ShapeOfStrip(plane, token_first);
  const codecs::StripParts parts = PartsOf(task, plane, token_first);
  const uint8_t* part = task.slot + token_first * plane.row_bytes;
  const uint8_t* end = part + Align16(shape.tokens * plane.row_bytes);
  const auto coded = static_cast<uint32_t>(parts.coded);
  CopyBytes(target, part, codecs::kStripHeaderBytes);
  if (parts.mode == codecs::StripMode::kRaw) {
    StoreSourceBits(plane, places, shape.tokens, target + coded);
    return static_cast<uint32_t>(parts.bytes);
  }
  constexpr uint32_t kHead = codecs::kStripHeaderBytes;
  if (parts.mode == codecs::StripMode::kLanes32) {
    CopyBytes(target + kHead, part + kHead, shape.dim);
    CopyBytes(target + coded, end - parts.stream_bytes, parts.stream_bytes);
    CopyReversed(target + parts.escape, part + kHead + 2 * shape.dim, parts.escapes);
  } else {
    CopyBytes(target + kHead, part + kHead, static_cast<uint32_t>(parts.raw) - kHead);
    CopyReversed(target + parts.raw, end - parts.raws, parts.raws);
  }
  StoreZeros(target + parts.coded_end, static_cast<uint32_t>(parts.plane - parts.coded_end),
             ThreadIndex(), kBlockThreads);
  StorePlaneAndLow(shape, places, plane.unit, parts, target);
  return StoreEnd(parts, target);
}

// Stores the source elements and the positions of a strip's rows, one warp per row.
//   marks_at  offset of the marks; bit (token mod 32) of word (token / 32) is set for a row
CAIRN_DEVICE void StoreStepRows(const PlaneRecord& plane, const codecs::StepStripParts& parts,
                                const uint8_t* const* places, const uint8_t* marks_at,
                                uint8_t* target) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const auto bits_at = static_cast<uint32_t>(parts.row_bits);
  const uint32_t unit = 1U << LowestBit(plane.unit | (bits_at & 15));
  for (uint32_t first = 0, row = 0; row < parts.rows; first += 32) {
    auto marks = LoadGlobal<uint32_t>(marks_at + first / 8);
    for (; marks != 0; marks &= marks - 1, ++row) {
      if (row % kBlockWarps != WarpOfBlock()) continue;
      const uint32_t token = first + LowestBit(marks);
      CopyRow(places[token], target + bits_at + row * plane.row_bytes, plane.row_bytes, unit, lane,
              kWarpLanes);
      if (lane == 0) StoreGlobal(target + parts.position + row, static_cast<uint8_t>(token));
    }
  }
}

// Does the same as StoreStrip() for a strip of `cairn`.
CAIRN_DEVICE uint32_t StoreSteps(const EncodeTask& task, const PlaneRecord& plane,
                                 const uint8_t* const* places, uint32_t token_first,
                                 uint8_t* target) {
  const codecs::StripShape shape = ShapeOfStrip(plane, token_first);
  const codecs::StepStripParts parts = StepPartsOf(task, plane, token_first);
  const uint8_t* part = task.slot + token_first * plane.row_bytes;
  const uint8_t* end = part + Align16(shape.tokens * plane.row_bytes);
  if (ThreadIndex() == 0) {
    auto header = LoadGlobal<U32x4>(part);
    header.w = 0;
    StoreGlobal(target, header);
  }
  if (parts.mode == codecs::StepStripMode::kRaw) {
    StoreSourceBits(plane, places, shape.tokens, target + parts.low);
    return static_cast<uint32_t>(parts.bytes);
  }
  CopyUnits<uint32_t>(part + parts.low, target + parts.low,
                      static_cast<uint32_t>(parts.row_bits - parts.low), ThreadIndex(),
                      kBlockThreads);
  StoreStepRows(plane, parts, places, WaitingCodes(task, plane, token_first), target);
  for (uint32_t i = ThreadIndex(); i < parts.escapes; i += kBlockThreads) {
    const uint8_t* last = part + parts.row_bits + 2 * (parts.escapes - 1);
    StoreGlobal(target + parts.escape + 2 * i, LoadGlobal<uint16_t>(last - 2 * i));
  }
  CopyBytes(target + parts.stream, end - parts.stream_bytes, parts.stream_bytes);
  return StoreEnd(parts, target);
}

struct StoreShared {
  const uint8_t* places[kTileTokensMax];
};

CAIRN_DEVICE void StoreTile(const EncodeTask& task, const PlaneRecord& plane, TileResult result,
                            const StoreShared& shared, uint8_t* target) {
  switch (result.form) {
    case codecs::kRawForm:
      return StoreSourceBits(plane, shared.places, plane.tokens, target);
    case codecs::kStripsForm:
      for (uint32_t first = 0; first < plane.tokens; first += codecs::kStripTokens) {
        target += StoreStrip(task, plane, shared.places + first, first, target);
      }
      return;
    case codecs::kStepsForm:
      for (uint32_t first = 0; first < plane.tokens; first += codecs::kStripTokens) {
        target += StoreSteps(task, plane, shared.places + first, first, target);
      }
      return;
    default:
      return CopyUnits<U32x4>(task.slot, target, result.bytes, ThreadIndex(), kBlockThreads);
  }
}

// Copies the tiles to their images, with one block per tile.
CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) StoreTiles(EncodeArgs args) {
  CAIRN_SHARED(StoreShared, shared);
  const EncodeReader reader(args.plan);
  for (uint32_t number = BlockIndex(); number < reader.header.tile_count; number += GridBlocks()) {
    const auto result = LoadGlobal<TileResult>(args.results + number);
    if (result.bytes == 0) continue;
    const EncodeTask task = reader.Task(number);
    const PlaneRecord plane = reader.Plane(task.plane);
    Fault fault = Fault::kNone;
    for (uint32_t token = ThreadIndex(); token < plane.tokens; token += kBlockThreads) {
      shared.places[token] = task.stored_bytes != 0 && task.form == codecs::kStepsForm
                                 ? StoredPlace(task, plane, token)
                                 : SourcePlace(plane, task.source, token, &fault);
    }
    if (!SyncBlockOr(fault != Fault::kNone)) {
      StoreTile(task, plane, result, shared,
                reader.Image(plane.image).bytes + uint64_t{result.offset} * 16);
    }
    ReportFault(fault, plane, args.status);  // for tiles that no earlier kernel has read
    SyncBlock();                             // shared memory is reused for the next tile
  }
}

// Computes the CRCs of tiles, with one warp per tile. The CRC of a tile without bytes is 0.
CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 3) SumCrcs(EncodeArgs args) {
  CAIRN_SHARED(CrcTable, shared);
  const EncodeReader reader(args.plan);
  const uint32_t tiles = reader.header.tile_count;
  if (BlockIndex() * kBlockWarps >= tiles) return;  // the block has no tiles
  LoadCrcTable(&shared);
  for (uint32_t number = BlockIndex() * kBlockWarps + WarpOfBlock(); number < tiles;
       number += GridBlocks() * kBlockWarps) {
    const auto result = LoadRecord<TileResult>(args.results + number);
    if (result.bytes == 0) continue;
    const EncodeImage image = reader.Image(reader.Plane(reader.Task(number).plane).image);
    const uint32_t crc =
        CrcOfTile(image.bytes + uint64_t{result.offset} * 16, result.bytes, shared);
    SyncWarp();  // all lanes have the result
    if (ThreadIndex() % kWarpLanes == 0) StoreGlobal(&args.results[number].crc, crc);
  }
}

}  // namespace cairn::kernels
