// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes K of mixkvq, one block per tile. The salience of a channel decides its class, as in
// codecs/stages/allocate/salience.cc. Codes and source elements are then written as in
// codecs/forms/mixed.cc. Accepts every shape and dtype.

#include <cstdint>

#include "codecs/numbers/mixed.h"
#include "codecs/numbers/static_step.h"
#include "codecs/pack/dense.h"
#include "codecs/pack/eight_bits.h"
#include "kernels/body/affine_encode.h"
#include "kernels/body/step_values.h"

namespace cairn::kernels {

struct MixedEncodeShared {
  EncodeShared tile;
  float saliences[kMixedDimMax];
  uint8_t classes[kMixedDimMax];
  uint16_t order[kMixedDimMax];  // 4-bit channels, then 2-bit ones, then source elements
  uint32_t counts[codecs::kChannelClasses];
};

// Returns the magnitude of the queries in a channel.
CAIRN_DEVICE float MagnitudeOf(const EncodeTask& task, const PlaneRecord& plane, uint32_t channel) {
  if (task.scores != nullptr) return LoadGlobal<float>(task.scores + 4 * channel);
  if (plane.side == nullptr) return 1.0F;
  return codecs::Exp2(-LoadChannel(plane, task.head, channel).step_log);
}

CAIRN_DEVICE void FindSaliences(const EncodeTile& tile, MixedEncodeShared* shared) {
  const PlaneRecord& plane = tile.plane;
  for (uint32_t c = ThreadIndex(); c < plane.dim; c += kBlockThreads) {
    Extremes of;
    CAIRN_NO_UNROLL
    for (uint32_t token = 0; token < plane.tokens; ++token) {
      if (IsMarked(shared->tile.is_row, token)) continue;
      of.Add(LoadValue(plane.dtype, shared->tile.places[token], c));
    }
    shared->saliences[c] =
        of.is_empty ? 0.0F : codecs::Salience(MagnitudeOf(tile.task, plane, c), of.low, of.high);
  }
}

CAIRN_DEVICE codecs::ChannelClass ClassOf(const EncodeTile& tile, const MixedEncodeShared& shared,
                                          uint32_t channel) {
  const float own = shared.saliences[channel];
  if (!tile.plane.has_budget) {
    const auto variant = static_cast<codecs::MixedVariant>(tile.task.rules >> kRuleVariantShift);
    return codecs::ClassAbove(own, codecs::ThresholdsOf(variant));
  }
  uint32_t rank = 0;
  CAIRN_NO_UNROLL
  for (uint32_t c = 0; c < tile.plane.dim; ++c) {
    const float other = shared.saliences[c];
    rank += other > own || (other == own && c < channel) ? 1 : 0;
  }
  return rank < codecs::FourBitChannels(tile.plane.dim) ? codecs::ChannelClass::kFourBits
                                                        : codecs::ChannelClass::kTwoBits;
}

// Orders the channels by class, and by index within a class. Uses the first warp. The block must
// synchronize before and after the call.
CAIRN_DEVICE void OrderByClass(const PlaneRecord& plane, MixedEncodeShared* shared) {
  if (ThreadIndex() >= kWarpLanes) return;
  constexpr codecs::ChannelClass kOrder[] = {codecs::ChannelClass::kFourBits,
                                             codecs::ChannelClass::kTwoBits,
                                             codecs::ChannelClass::kSourceBits};
  const uint32_t lane = ThreadIndex(), below = (1U << lane) - 1;
  uint32_t next = 0;
  CAIRN_UNROLL
  for (const codecs::ChannelClass of : kOrder) {
    const uint32_t before = next;
    for (uint32_t first = 0; first < plane.dim; first += kWarpLanes) {
      const uint32_t channel = first + lane;
      const bool is_one =
          channel < plane.dim && shared->classes[channel] == static_cast<uint8_t>(of);
      const uint32_t all = Ballot(is_one);
      if (is_one) shared->order[next + CountBits(all & below)] = static_cast<uint16_t>(channel);
      next += CountBits(all);
    }
    if (lane == 0) shared->counts[static_cast<uint8_t>(of)] = next - before;
  }
}

// Where the codes of a class are in a tile, and where the channels of the class are in `order`.
struct ClassPlace {
  uint32_t codes, row_bytes, first, count, bits;
};

CAIRN_DEVICE void StoreClass(const EncodeTile& tile, const MixedEncodeShared& shared,
                             const ClassPlace& place, uint32_t columns) {
  const PlaneRecord& plane = tile.plane;
  const uint32_t of_byte = 8 / place.bits;
  for (uint32_t i = ThreadIndex(); i < plane.tokens * place.row_bytes; i += kBlockThreads) {
    const uint32_t token = i / place.row_bytes, first = i % place.row_bytes * of_byte;
    uint32_t byte = 0;
    for (uint32_t c = 0; c < of_byte && first + c < place.count; ++c) {
      if (IsMarked(shared.tile.is_row, token)) break;
      const uint32_t column = place.first + first + c;
      const float value = LoadValue(plane.dtype, shared.tile.places[token], shared.order[column]);
      const uint32_t pair = token / plane.group * columns + column;
      byte |= CodeOf(tile, pair, place.bits, value) << (c * place.bits);
    }
    StoreGlobal(tile.task.slot + place.codes + i, static_cast<uint8_t>(byte));
  }
}

// Stores the elements of the channels that are stored as source elements. Rows get zeros here.
CAIRN_DEVICE void StoreSourceChannels(const EncodeTile& tile, const MixedEncodeShared& shared,
                                      uint32_t at, uint32_t first) {
  const PlaneRecord& plane = tile.plane;
  const uint32_t count = plane.dim - first;
  for (uint32_t i = ThreadIndex(); i < plane.tokens * count; i += kBlockThreads) {
    const uint32_t token = i / count, channel = shared.order[first + i % count];
    uint32_t bits = 0;
    if (!IsMarked(shared.tile.is_row, token)) {
      bits = LoadElementBits(plane.dtype, shared.tile.places[token], channel);
    }
    if (plane.dtype == codecs::DType::kFp32) {
      StoreGlobal(tile.task.slot + at + 4 * i, bits);
    } else if (codecs::IsFp8(plane.dtype)) {
      StoreGlobal(tile.task.slot + at + i, static_cast<uint8_t>(bits));
    } else {
      StoreGlobal(tile.task.slot + at + 2 * i, static_cast<uint16_t>(bits));
    }
  }
}

// Stores the map of the channels' classes, and zeros after it up to `end`.
CAIRN_DEVICE void StoreMap(const EncodeTile& tile, const MixedEncodeShared& shared, uint32_t end) {
  for (uint32_t i = ThreadIndex(); i < end; i += kBlockThreads) {
    uint32_t byte = 0;
    for (uint32_t c = 0; c < 4 && 4 * i + c < tile.plane.dim; ++c) {
      byte |= static_cast<uint32_t>(shared.classes[4 * i + c]) << (2 * c);
    }
    StoreGlobal(tile.task.slot + i, static_cast<uint8_t>(byte));
  }
}

// Returns true if the tile must be stored raw, because all values of a group are equal and no code
// restores them.
CAIRN_DEVICE bool StoreParamsOfColumns(const EncodeTile& tile, const MixedEncodeShared& shared,
                                       uint32_t groups, uint32_t columns) {
  const auto value_at = [&](uint32_t token, uint32_t channel) {
    return LoadValue(tile.plane.dtype, shared.tile.places[token], channel);
  };
  bool is_raw = false;
  for (uint32_t pair = ThreadIndex(); pair < groups * columns; pair += kBlockThreads) {
    const uint32_t channel = shared.order[pair % columns];
    const Extremes of = ExtremesOf(tile, shared.tile, pair / columns, channel, value_at);
    is_raw |= codecs::IsInexactConstant(of.low, of.high);
    StorePair(tile, pair, codecs::MakeParams(of.low, of.high, 0.0F));
  }
  return is_raw;
}

CAIRN_DEVICE bool EncodeMixed(const EncodeReader& reader, EncodeTile* tile,
                              MixedEncodeShared* shared) {
  const PlaneRecord& plane = tile->plane;
  MarkUncodable(*tile, &shared->tile);
  SyncBlock();
  FindSaliences(*tile, shared);
  SyncBlock();
  for (uint32_t c = ThreadIndex(); c < plane.dim; c += kBlockThreads) {
    shared->classes[c] = static_cast<uint8_t>(ClassOf(*tile, *shared, c));
  }
  SyncBlock();
  OrderByClass(plane, shared);
  SyncBlock();
  const uint32_t four = shared->counts[static_cast<uint8_t>(codecs::ChannelClass::kFourBits)];
  const uint32_t two = shared->counts[static_cast<uint8_t>(codecs::ChannelClass::kTwoBits)];
  const uint32_t columns = four + two, groups = (plane.tokens + plane.group - 1) / plane.group;
  const uint32_t source_at = Align16(codecs::CodeRowBytes(plane.dim, 2));
  const uint32_t four_at =
      source_at + plane.tokens * (plane.dim - columns) * (plane.row_bytes / plane.dim);
  const ClassPlace of_four{four_at, codecs::CodeRowBytes(four, 4), 0, four, 4};
  const ClassPlace of_two{four_at + plane.tokens * of_four.row_bytes, codecs::CodeRowBytes(two, 2),
                          four, two, 2};
  tile->codes_bytes = of_two.codes + plane.tokens * of_two.row_bytes;
  tile->params_at = Align16(tile->codes_bytes);
  tile->row_bits_at = tile->params_at + 4 * groups * columns;
  ListRows(reader, *tile, &shared->tile);
  // If this fails, the slot has no room for the tile.
  if (!PlaceTile(shared->tile, tile)) return false;
  if (SyncBlockOr(StoreParamsOfColumns(*tile, *shared, groups, columns))) return false;
  StoreMap(*tile, *shared, source_at);
  StoreSourceChannels(*tile, *shared, source_at, columns);
  StoreClass(*tile, *shared, of_four, columns);
  StoreClass(*tile, *shared, of_two, columns);
  StoreRowsOf(*tile, shared->tile);
  return true;
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) EncodeMixedAny(EncodeArgs args) {
  CAIRN_SHARED(MixedEncodeShared, shared);
  EncodeTiles(args, &shared.tile, [&](const EncodeReader& reader, EncodeTile* tile, Fault*) {
    return EncodeMixed(reader, tile, &shared);
  });
}

}  // namespace cairn::kernels
