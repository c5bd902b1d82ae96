// SPDX-License-Identifier: Apache-2.0
#pragma once
// Code that the encode kernels share. It reads the tiles of a plan, finds their tokens in the
// source, and lists the rows of a tile. A row is a token that is stored as source elements instead
// of codes. A slot is the memory in which a tile is encoded before it is copied to its image.

#include <cstdint>

#include "codecs/numbers/math.h"
#include "codecs/pack/eight_bits.h"
#include "codecs/pack/strip.h"
#include "kernels/body/tasks.h"

namespace cairn::kernels {

inline constexpr uint32_t kRowWordsMax = kTileTokensMax / 32;

struct EncodeReader {
  const uint8_t* plan;
  EncodeHeader header;

  CAIRN_DEVICE_MEMBER explicit EncodeReader(const uint8_t* from)
      : plan(from), header(LoadRecord<EncodeHeader>(from)) {}
  CAIRN_DEVICE_MEMBER uint32_t Item(uint32_t index) const {
    return LoadGlobal<uint32_t>(plan + header.items_at + index * sizeof(uint32_t));
  }
  CAIRN_DEVICE_MEMBER EncodeTask Task(uint32_t tile) const {
    return LoadRecord<EncodeTask>(plan + header.tasks_at + tile * sizeof(EncodeTask));
  }
  CAIRN_DEVICE_MEMBER PlaneRecord Plane(uint32_t index) const {
    return LoadRecord<PlaneRecord>(plan + header.planes_at + index * sizeof(PlaneRecord));
  }
  CAIRN_DEVICE_MEMBER EncodeImage Image(uint32_t index) const {
    return LoadRecord<EncodeImage>(plan + header.images_at + index * sizeof(EncodeImage));
  }
};

CAIRN_DEVICE uint32_t RawBytes(const PlaneRecord& plane) {
  return Align16(plane.tokens * plane.row_bytes);
}

// Returns the address of a token in the source. If the token has none, returns null and sets
// *fault.
CAIRN_DEVICE const uint8_t* SourcePlace(const PlaneRecord& plane, uint8_t* source, uint32_t token,
                                        Fault* fault) {
  const uint8_t* place = PlaceOf(plane, source, token, fault);
  if (place == nullptr) *fault = Fault::kBadPage;
  return place;
}

// The bits of an element.
CAIRN_DEVICE uint32_t LoadElementBits(codecs::DType dtype, const uint8_t* row, uint32_t channel) {
  switch (dtype) {
    case codecs::DType::kFp32:
      return LoadGlobal<uint32_t>(row + 4 * channel);
    case codecs::DType::kFp8E4m3:
    case codecs::DType::kFp8E5m2:
      return LoadGlobal<uint8_t>(row + channel);
    default:
      return LoadGlobal<uint16_t>(row + 2 * channel);
  }
}

CAIRN_DEVICE float LoadValue(codecs::DType dtype, const uint8_t* row, uint32_t channel) {
  const uint32_t bits = LoadElementBits(dtype, row, channel);
  switch (dtype) {
    case codecs::DType::kFp32:
      return codecs::BitsFloat(bits);
    case codecs::DType::kFp16:
      return codecs::Fp16ToFloat(static_cast<uint16_t>(bits));
    case codecs::DType::kFp8E4m3:
    case codecs::DType::kFp8E5m2:
      return codecs::Fp8ToFloat(dtype, static_cast<uint8_t>(bits));
    default:
      return codecs::Bf16ToFloat(static_cast<uint16_t>(bits));
  }
}

// The tokens and rows of the tile that a thread block encodes. In shared memory.
struct EncodeShared {
  const uint8_t* places[kTileTokensMax];
  uint32_t is_row[kRowWordsMax];
  uint32_t is_found[kRowWordsMax];     // rows to add to is_row, which other threads still read
  uint16_t positions[kTileTokensMax];  // positions of the rows, as they are stored
  uint32_t row_count;
};

// The properties of a tile, and the places of its parts in its slot.
struct EncodeTile {
  uint32_t number;
  PlaneRecord plane;
  EncodeTask task;
  uint32_t rows;
  uint32_t codes_bytes, params_at, row_bits_at, scales_at, scales_bytes, positions_at;
  uint32_t chain_at, chain_bytes;  // used for ott
  uint32_t map_at, map_bytes;      // patterns and gates of the tokens, or their corrections
  uint32_t content_bytes;
  bool is_left;  // the general kernel must encode the tile
};

CAIRN_DEVICE bool IsMarked(const uint32_t* words, uint32_t token) {
  return (words[token / 32] >> token % 32 & 1) != 0;
}

// Marks the tokens in is_found as rows. Calls SyncBlock() before and after.
CAIRN_DEVICE void AddFound(EncodeShared* shared) {
  SyncBlock();
  if (ThreadIndex() < kRowWordsMax) {
    shared->is_row[ThreadIndex()] |= shared->is_found[ThreadIndex()];
  }
  SyncBlock();
}

// Marks the tokens that have a value that cannot be coded.
CAIRN_DEVICE void MarkUncodable(const EncodeTile& tile, EncodeShared* shared) {
  const uint32_t elements = tile.plane.tokens * tile.plane.dim;
  for (uint32_t i = ThreadIndex(); i < elements; i += kBlockThreads) {
    const uint32_t token = i / tile.plane.dim;
    const float value = LoadValue(tile.plane.dtype, shared->places[token], i % tile.plane.dim);
    if (codecs::IsRowValue(value)) AtomicOrShared(&shared->is_row[token / 32], 1U << token % 32);
  }
}

// Lists the rows in the order in which they are stored. Calls SyncBlock() inside and at the end.
CAIRN_DEVICE void ListRows(const EncodeReader& reader, const EncodeTile& tile,
                           EncodeShared* shared) {
  const uint32_t thread = ThreadIndex();
  if (thread == 0 && (tile.task.rules & kRuleFirstStays) != 0) shared->is_row[0] |= 1;
  SyncBlock();
  uint32_t count = 0;
  for (uint32_t word = 0; word < kRowWordsMax; ++word) count += CountBits(shared->is_row[word]);
  for (uint32_t token = thread; token < tile.plane.tokens; token += kBlockThreads) {
    if (!IsMarked(shared->is_row, token)) continue;
    uint32_t rank = CountBits(shared->is_row[token / 32] & ((1U << token % 32) - 1));
    for (uint32_t word = 0; word < token / 32; ++word) rank += CountBits(shared->is_row[word]);
    // These rows stay rows when the rows of older blocks are thinned. The bits above the token's
    // position mark them.
    shared->positions[rank] = static_cast<uint16_t>(token | ~uint32_t{tile.plane.token_bits});
  }
  if (thread < kWarpLanes && (tile.task.rules & kRuleAgeing) != 0) {
    const EncodeImage image = reader.Image(tile.plane.image);
    for (uint32_t first = 0; first < image.ageing_count; first += kWarpLanes) {
      const uint32_t at = first + thread;
      const uint32_t token = at < image.ageing_count
                                 ? LoadGlobal<uint16_t>(reader.plan + image.ageing_at + 2 * at)
                                 : 0;
      const bool is_more = at < image.ageing_count && !IsMarked(shared->is_row, token);
      const uint32_t more = Ballot(is_more);
      if (is_more) {
        shared->positions[count + CountBits(more & ((1U << thread) - 1))] =
            static_cast<uint16_t>(token);
      }
      count += CountBits(more);
    }
  }
  if (thread == 0) shared->row_count = count;
  SyncBlock();
}

// Computes the addresses of the parts that follow the rows. Returns false if the tile would not be
// smaller than raw.
CAIRN_DEVICE bool PlaceTile(const EncodeShared& shared, EncodeTile* tile) {
  tile->rows = shared.row_count;
  tile->scales_at = tile->row_bits_at + tile->rows * tile->plane.row_bytes;
  tile->positions_at = tile->scales_at + tile->scales_bytes;
  tile->map_at = tile->positions_at + 2 * tile->rows;
  tile->content_bytes = tile->map_at + tile->map_bytes;
  return Align16(tile->content_bytes) < RawBytes(tile->plane);
}

// Stores zeros to `bytes` bytes with several threads. `first` is the index of this thread, and
// `step` is the number of threads.
CAIRN_DEVICE void StoreZeros(uint8_t* target, uint32_t bytes, uint32_t first, uint32_t step) {
  for (uint32_t at = first; at < bytes; at += step) StoreGlobal(target + at, uint8_t{0});
}

// Stores the source elements and the positions of the rows, with one warp per row. Also stores the
// zeros between the parts of a tile.
CAIRN_DEVICE void StoreRowsOf(const EncodeTile& tile, const EncodeShared& shared) {
  const PlaneRecord& plane = tile.plane;
  uint8_t* slot = tile.task.slot;
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const uint32_t unit = 1U << LowestBit(plane.unit | (tile.row_bits_at & 15));
  for (uint32_t row = ThreadIndex() / kWarpLanes; row < tile.rows; row += kBlockWarps) {
    const uint32_t position = shared.positions[row];
    uint8_t* bits = slot + tile.row_bits_at + row * plane.row_bytes;
    CopyRow(shared.places[position & plane.token_bits], bits, plane.row_bytes, unit, lane,
            kWarpLanes);
    if (lane == 0) {
      StoreGlobal(slot + tile.positions_at + 2 * row, static_cast<uint16_t>(position));
    }
  }
  StoreZeros(slot + tile.codes_bytes, Align16(tile.codes_bytes) - tile.codes_bytes, ThreadIndex(),
             kBlockThreads);
  StoreZeros(slot + tile.content_bytes, Align16(tile.content_bytes) - tile.content_bytes,
             ThreadIndex(), kBlockThreads);
}

// Encodes the tiles of a list, one thread block per tile. Calls `encode` after `places` is set and
// all marks are cleared. `encode` returns true if it has stored the tile in its slot, and has set
// the rows and content_bytes of the tile. If it returns false, the tile is stored raw, unless
// is_left is set.
//   encode(reader, tile, fault)
template <typename Encode>
CAIRN_DEVICE void EncodeTiles(const EncodeArgs& args, EncodeShared* shared, Encode encode) {
  const EncodeReader reader(args.plan);
  const auto list = LoadRecord<TaskList>(args.plan + args.list * sizeof(TaskList));
  for (uint32_t index = BlockIndex(); index < list.count; index += GridBlocks()) {
    const uint32_t item = reader.Item(list.first + index), number = item / kStripsOfTileMax;
    if (item % kStripsOfTileMax == kItemIfLeft &&
        LoadRecord<TileResult>(args.results + number).form != kLeftTile) {
      continue;
    }
    EncodeTile tile{};
    tile.number = number;
    tile.task = reader.Task(number);
    tile.plane = reader.Plane(tile.task.plane);
    Fault fault = Fault::kNone;
    for (uint32_t token = ThreadIndex(); token < tile.plane.tokens; token += kBlockThreads) {
      shared->places[token] = SourcePlace(tile.plane, tile.task.source, token, &fault);
    }
    if (ThreadIndex() < kRowWordsMax) {
      shared->is_row[ThreadIndex()] = shared->is_found[ThreadIndex()] = 0;
    }
    TileResult result{0, 0, 0, 0, codecs::kRawForm};
    if (!SyncBlockOr(fault != Fault::kNone) && encode(reader, &tile, &fault)) {
      result = {0, Align16(tile.content_bytes), 0, static_cast<uint16_t>(tile.rows),
                tile.task.form};
    } else if (tile.is_left) {
      result.form = kLeftTile;
    }
    if (ThreadIndex() == 0) StoreGlobal(args.results + number, result);
    ReportFault(fault, tile.plane, args.status);
    SyncBlock();  // shared memory is reused for the next tile
  }
}

}  // namespace cairn::kernels
