// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tiles of `kivi` out of an engine's paged cache, a block a tile: rows, params, codes, and all that
// lies between them, as codecs/forms/affine.cc writes it; or the tile's source bits, where it has
// to be raw. Of every shape and dtype, an element a thread.

#include <cstdint>

#include "codecs/numbers/math.h"
#include "codecs/pack/dense.h"
#include "kernels/body/crc.h"
#include "kernels/body/tasks.h"

namespace cairn::kernels {

inline constexpr uint32_t kRowWordsMax = kTileTokensMax / 32;

struct EncodeShared {
  const uint8_t* places[kTileTokensMax];
  uint32_t is_row[kRowWordsMax];
  uint32_t is_constant[kRowWordsMax];  // V: a group of the token has no code that brings it back
};

// A tile, and what of it is known.
struct EncodeTile {
  PlaneRecord plane;
  uint8_t* slot;
  uint32_t rows;
  uint32_t params_at, row_bits_at, positions_at, content_bytes;
};

CAIRN_DEVICE bool IsMarked(const uint32_t* words, uint32_t token) {
  return (words[token / 32] >> token % 32 & 1) != 0;
}

CAIRN_DEVICE float LoadValue(codecs::DType dtype, const uint8_t* row, uint32_t channel) {
  switch (dtype) {
    case codecs::DType::kFp32:
      return codecs::BitsFloat(LoadGlobal<uint32_t>(row + 4 * channel));
    case codecs::DType::kFp16:
      return codecs::Fp16ToFloat(LoadGlobal<uint16_t>(row + 2 * channel));
    default:
      return codecs::Bf16ToFloat(LoadGlobal<uint16_t>(row + 2 * channel));
  }
}

// Values of a group that are no rows', or all of a token's.
struct Extremes {
  float low = 0.0F, high = 0.0F;
  bool is_empty = true;

  CAIRN_DEVICE_MEMBER void Add(float value) {
    if (is_empty || value < low) low = value;
    if (is_empty || value > high) high = value;
    is_empty = false;
  }
  CAIRN_DEVICE_MEMBER void MakeZerosPositive() {
    low = codecs::Add(low, 0.0F);
    high = codecs::Add(high, 0.0F);
  }
};

// Of a group: tokens of a channel of K, channels of a token of V.
CAIRN_DEVICE Extremes ExtremesOf(const EncodeTile& tile, const EncodeShared& shared, uint32_t group,
                                 uint32_t across) {
  const PlaneRecord& plane = tile.plane;
  Extremes extremes;
  const uint32_t first = group * plane.group,
                 left = (plane.is_v ? plane.dim : plane.tokens) - first;
  const uint32_t end = first + (left < plane.group ? left : plane.group);
  for (uint32_t along = first; along < end; ++along) {
    const uint32_t token = plane.is_v ? across : along, channel = plane.is_v ? along : across;
    if (IsMarked(shared.is_row, token)) continue;
    extremes.Add(LoadValue(plane.dtype, shared.places[token], channel));
  }
  extremes.MakeZerosPositive();
  return extremes;
}

CAIRN_DEVICE void StorePair(const EncodeTile& tile, uint32_t pair, codecs::AffineParams params) {
  StoreGlobal(tile.slot + tile.params_at + 4 * pair,
              params.min | static_cast<uint32_t>(params.range) << 16);
}

// Tokens with a value that has no code.
CAIRN_DEVICE void MarkUncodable(const EncodeTile& tile, EncodeShared* shared) {
  const uint32_t elements = tile.plane.tokens * tile.plane.dim;
  for (uint32_t i = ThreadIndex(); i < elements; i += kBlockThreads) {
    const uint32_t token = i / tile.plane.dim;
    const float value = LoadValue(tile.plane.dtype, shared->places[token], i % tile.plane.dim);
    if (codecs::IsRowValue(value)) AtomicOrShared(&shared->is_row[token / 32], 1U << token % 32);
  }
}

// Params of K. True where the tile has to be raw: a group is a constant that no code brings back.
CAIRN_DEVICE bool StoreParamsOfChannels(const EncodeTile& tile, const EncodeShared& shared) {
  const uint32_t groups = (tile.plane.tokens + tile.plane.group - 1) / tile.plane.group;
  bool is_raw = false;
  for (uint32_t pair = ThreadIndex(); pair < groups * tile.plane.dim; pair += kBlockThreads) {
    const Extremes of = ExtremesOf(tile, shared, pair / tile.plane.dim, pair % tile.plane.dim);
    is_raw |= codecs::IsInexactConstant(of.low, of.high);
    StorePair(tile, pair, codecs::MakeParams(of.low, of.high, 0.0F));
  }
  return is_raw;
}

// Params of V; tokens that have to be rows are marked, and rows' params are 0.
CAIRN_DEVICE void StoreParamsOfTokens(const EncodeTile& tile, EncodeShared* shared) {
  const uint32_t groups = (tile.plane.dim + tile.plane.group - 1) / tile.plane.group;
  const uint32_t pairs = groups * tile.plane.tokens;
  for (uint32_t pair = ThreadIndex(); pair < pairs; pair += kBlockThreads) {
    const uint32_t token = pair / groups;
    if (IsMarked(shared->is_row, token)) continue;
    const Extremes of = ExtremesOf(tile, *shared, pair % groups, token);
    if (codecs::IsInexactConstant(of.low, of.high)) {
      AtomicOrShared(&shared->is_constant[token / 32], 1U << token % 32);
    }
    StorePair(tile, pair, codecs::MakeParams(of.low, of.high, 0.0F));
  }
  SyncBlock();
  if (ThreadIndex() < kRowWordsMax) {
    shared->is_row[ThreadIndex()] |= shared->is_constant[ThreadIndex()];
  }
  SyncBlock();
  for (uint32_t pair = ThreadIndex(); pair < pairs; pair += kBlockThreads) {
    if (IsMarked(shared->is_row, pair / groups)) StorePair(tile, pair, {});
  }
}

// The code of an element, by params that the block has stored.
CAIRN_DEVICE uint32_t CodeAt(const EncodeTile& tile, const uint8_t* row, uint32_t token,
                             uint32_t channel) {
  const PlaneRecord& plane = tile.plane;
  const uint32_t pair_at = tile.params_at + 4 * PairOf(plane, token, channel);
  const auto params = LoadRecord<uint32_t>(tile.slot + pair_at);
  const float min = codecs::Fp16ToFloat(static_cast<uint16_t>(params));
  const float range = codecs::Fp16ToFloat(static_cast<uint16_t>(params >> 16));
  const float value = LoadValue(plane.dtype, row, channel);
  return codecs::Narrow(codecs::Code8(value, min, codecs::InverseStep(8, range)), plane.bits);
}

CAIRN_DEVICE void StoreCodes(const EncodeTile& tile, const EncodeShared& shared) {
  const PlaneRecord& plane = tile.plane;
  const uint32_t row_bytes = codecs::CodeRowBytes(plane.dim, plane.bits);
  const uint32_t of_byte = 8 / plane.bits;
  for (uint32_t i = ThreadIndex(); i < plane.tokens * row_bytes; i += kBlockThreads) {
    const uint32_t token = i / row_bytes, first = i % row_bytes * of_byte;
    uint32_t byte = 0;
    for (uint32_t c = 0; c < of_byte && first + c < plane.dim; ++c) {
      if (IsMarked(shared.is_row, token)) break;
      byte |= CodeAt(tile, shared.places[token], token, first + c) << (c * plane.bits);
    }
    StoreGlobal(tile.slot + i, static_cast<uint8_t>(byte));
  }
}

CAIRN_DEVICE void StoreZeros(const EncodeTile& tile, uint32_t from, uint32_t to) {
  for (uint32_t at = from + ThreadIndex(); at < to; at += kBlockThreads) {
    StoreGlobal(tile.slot + at, uint8_t{0});
  }
}

// A warp a row, in the order of tokens; of a raw tile all tokens are.
CAIRN_DEVICE void StoreTokens(const EncodeTile& tile, const EncodeShared& shared, bool is_raw) {
  const PlaneRecord& plane = tile.plane;
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const uint32_t unit = 1U << LowestBit(plane.unit | (is_raw ? 0 : tile.row_bits_at & 15));
  uint32_t row = 0;
  for (uint32_t token = 0; token < plane.tokens; ++token) {
    if (!is_raw && !IsMarked(shared.is_row, token)) continue;
    if (row % kBlockWarps == ThreadIndex() / kWarpLanes) {
      uint8_t* bits = tile.slot + (is_raw ? 0 : tile.row_bits_at) + row * plane.row_bytes;
      CopyRow(shared.places[token], bits, plane.row_bytes, unit, lane, kWarpLanes);
      if (!is_raw && lane == 0) {
        StoreGlobal(tile.slot + tile.positions_at + 2 * row, static_cast<uint16_t>(token));
      }
    }
    ++row;
  }
}

// Where the parts lie, once rows are known. False where the tile would not be smaller than raw.
CAIRN_DEVICE bool PlaceTile(const EncodeShared& shared, EncodeTile* tile) {
  const PlaneRecord& plane = tile->plane;
  tile->rows = 0;
  for (uint32_t i = 0; i < kRowWordsMax; ++i) tile->rows += CountBits(shared.is_row[i]);
  tile->positions_at = tile->row_bits_at + tile->rows * plane.row_bytes;
  tile->content_bytes = tile->positions_at + 2 * tile->rows;
  return Align16(tile->content_bytes) < Align16(plane.tokens * plane.row_bytes);
}

CAIRN_DEVICE void StoreResult(TileResult* result, TileResult value) {
  if (ThreadIndex() == 0) StoreGlobal(result, value);
}

// Fills in the slot. The block has found places and cleared the marks.
CAIRN_DEVICE TileResult EncodeOne(EncodeTile tile, EncodeShared* shared) {
  const PlaneRecord& plane = tile.plane;
  const uint32_t codes_bytes = plane.tokens * codecs::CodeRowBytes(plane.dim, plane.bits);
  const uint32_t groups = plane.is_v ? plane.tokens * ((plane.dim + plane.group - 1) / plane.group)
                                     : (plane.tokens + plane.group - 1) / plane.group * plane.dim;
  tile.params_at = Align16(codes_bytes);
  tile.row_bits_at = tile.params_at + 4 * groups;
  MarkUncodable(tile, shared);
  SyncBlock();
  // Params of a few tokens can be more than the tokens, and the slot has no room for them.
  bool is_raw = Align16(tile.row_bits_at) >= Align16(plane.tokens * plane.row_bytes);
  if (!is_raw && plane.is_v) {
    StoreParamsOfTokens(tile, shared);
  } else if (!is_raw) {
    is_raw = StoreParamsOfChannels(tile, *shared);
  }
  if (SyncBlockOr(is_raw) || !PlaceTile(*shared, &tile)) {
    const uint32_t bytes = plane.tokens * plane.row_bytes;
    StoreTokens(tile, *shared, true);
    StoreZeros(tile, bytes, Align16(bytes));
    return {Align16(bytes), 0, 0, 0, Fault::kNone};
  }
  StoreCodes(tile, *shared);
  StoreZeros(tile, codes_bytes, tile.params_at);
  StoreTokens(tile, *shared, false);
  StoreZeros(tile, tile.content_bytes, Align16(tile.content_bytes));
  const auto form = static_cast<uint16_t>(kAffineFormLow | plane.bits << 8);
  return {Align16(tile.content_bytes), 0, static_cast<uint16_t>(tile.rows), form, Fault::kNone};
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) EncodeAffineAny(EncodeArgs args) {
  CAIRN_SHARED(EncodeShared, shared);
  const auto header = LoadRecord<EncodeHeader>(args.plan);
  for (uint32_t index = BlockIndex(); index < header.task_count; index += GridBlocks()) {
    const auto task =
        LoadRecord<EncodeTask>(args.plan + header.tasks_at + index * sizeof(EncodeTask));
    EncodeTile tile{};
    tile.plane =
        LoadRecord<PlaneRecord>(args.plan + header.planes_at + task.plane * sizeof(PlaneRecord));
    tile.slot = task.slot;
    Fault fault = Fault::kNone;
    for (uint32_t token = ThreadIndex(); token < tile.plane.tokens; token += kBlockThreads) {
      const uint8_t* place = PlaceOf(tile.plane, task.source, token, &fault);
      if (place == nullptr) fault = Fault::kBadPage;  // a source has no holes
      shared.places[token] = place;
    }
    if (ThreadIndex() < kRowWordsMax) {
      shared.is_row[ThreadIndex()] = shared.is_constant[ThreadIndex()] = 0;
    }
    if (SyncBlockOr(fault != Fault::kNone)) {
      StoreResult(args.results + index, {0, 0, 0, 0, Fault::kBadPage});
    } else {
      StoreResult(args.results + index, EncodeOne(tile, &shared));
    }
    SyncBlock();  // shared memory is of the next task
  }
}

// CRC32C of what EncodeAffineAny() wrote, a warp a tile; 0 where it wrote nothing.
CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 3) SumCrcs(EncodeArgs args) {
  CAIRN_SHARED(CrcShared, shared);
  const auto header = LoadRecord<EncodeHeader>(args.plan);
  const uint32_t warp = WarpOfBlock();
  if (BlockIndex() * kBlockWarps >= header.task_count) return;  // nothing for the whole block
  FillWeights(&shared);
  for (uint32_t index = BlockIndex() * kBlockWarps + warp; index < header.task_count;
       index += GridBlocks() * kBlockWarps) {
    const auto task =
        LoadRecord<EncodeTask>(args.plan + header.tasks_at + index * sizeof(EncodeTask));
    const uint32_t bytes = LoadGlobal<uint32_t>(&args.results[index].bytes);
    if (bytes == 0) continue;
    const uint32_t crc = CrcOfTile(task.slot, bytes, shared);
    if (ThreadIndex() % kWarpLanes == 0) StoreGlobal(&args.results[index].crc, crc);
  }
}

}  // namespace cairn::kernels
