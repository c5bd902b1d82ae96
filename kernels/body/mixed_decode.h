// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decodes K of mixkvq. Each channel is in one of three classes: 2-bit codes, 4-bit codes, and
// source elements. The map at the start of a tile says which class each channel is in. So the map
// also determines where the parts of the tile are.

#include <cstdint>

#include "codecs/numbers/mixed.h"
#include "codecs/pack/dense.h"
#include "codecs/pack/eight_bits.h"
#include "kernels/body/affine_decode.h"

namespace cairn::kernels {

inline constexpr uint32_t kMixedClassShift = 12;

struct MixedDecodeShared {
  TokenPlaces places;
  uint32_t counts[4];               // number of channels of each class in the map
  uint16_t channels[kMixedDimMax];  // index of a channel in its class; upper bits: the class
};

// Offsets of the codes and elements of each class, in bytes from the start of the tile.
struct MixedParts {
  uint32_t source_bits = 0, four_bits = 0, two_bits = 0;
};

// Finds the class of each channel, with the first warp. The block must synchronize before it reads
// them.
CAIRN_DEVICE void FindClasses(const TileTask& task, const PlaneRecord& plane,
                              MixedDecodeShared* shared) {
  if (ThreadIndex() >= kWarpLanes) return;
  const uint32_t lane = ThreadIndex(), below = (1U << lane) - 1;
  uint32_t counts[4] = {};
  for (uint32_t first = 0; first < plane.dim; first += kWarpLanes) {
    const uint32_t channel = first + lane;
    const uint32_t of = channel < plane.dim
                            ? LoadGlobal<uint8_t>(task.source + channel / 4) >> channel % 4 * 2 & 3
                            : 4;
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t same = Ballot(of == i);
      const uint32_t number = counts[i] + CountBits(same & below);
      if (of == i)
        shared->channels[channel] = static_cast<uint16_t>(number | i << kMixedClassShift);
      counts[i] += CountBits(same);
    }
  }
  if (lane != 0) return;
  CAIRN_UNROLL
  for (uint32_t i = 0; i < 4; ++i) shared->counts[i] = counts[i];
}

// Computes the offsets of the parts that follow the class map. They depend on the map, so the plan
// of the batch does not have them. Returns false if the map is invalid for the recipe, or does not
// match the size of the tile.
CAIRN_DEVICE bool PlaceMixed(const uint32_t* counts, const PlaneRecord& plane, TileTask* task,
                             MixedParts* parts) {
  const uint32_t two = counts[0], four = counts[1], source = counts[2];
  const uint32_t groups = (plane.tokens + plane.group - 1) / plane.group;
  parts->source_bits = Align16(codecs::CodeRowBytes(plane.dim, 2));
  parts->four_bits = parts->source_bits + plane.tokens * source * (plane.row_bytes / plane.dim);
  parts->two_bits = parts->four_bits + plane.tokens * codecs::CodeRowBytes(four, 4);
  task->params_at = Align16(parts->two_bits + plane.tokens * codecs::CodeRowBytes(two, 2));
  task->row_bits_at = task->params_at + 4 * groups * (two + four);
  task->positions_at = task->row_bits_at + task->rows * plane.row_bytes;
  const bool is_budget = source == 0 && four == codecs::FourBitChannels(plane.dim);
  return counts[3] == 0 && (is_budget || !plane.has_budget) &&
         Align16(task->positions_at + 2 * task->rows) == task->bytes;
}

CAIRN_DEVICE void DecodeClasses(const TileTask& task, const PlaneRecord& plane,
                                const MixedParts& parts, const MixedDecodeShared& shared,
                                Fault* fault) {
  const uint32_t two = shared.counts[0], four = shared.counts[1], source = shared.counts[2];
  for (uint32_t i = ThreadIndex(); i < task.token_count * plane.dim; i += kBlockThreads) {
    const uint32_t at = i / plane.dim, channel = i % plane.dim, token = task.token_first + at;
    uint8_t* place = shared.places.of[at];
    if (place == nullptr || IsRowAt(shared.places, at)) continue;
    const uint32_t number = shared.channels[channel] & ((1U << kMixedClassShift) - 1);
    const auto of = static_cast<codecs::ChannelClass>(shared.channels[channel] >> kMixedClassShift);
    if (of == codecs::ChannelClass::kSourceBits) {
      const uint8_t* elements = task.source + parts.source_bits;
      const uint32_t element = token * source + number;
      if (plane.dtype == codecs::DType::kFp32) {
        StoreGlobal(place + 4 * channel, LoadGlobal<uint32_t>(elements + 4 * element));
      } else if (codecs::IsFp8(plane.dtype)) {
        StoreGlobal(place + channel, LoadGlobal<uint8_t>(elements + element));
      } else {
        StoreGlobal(place + 2 * channel, LoadGlobal<uint16_t>(elements + 2 * element));
      }
      continue;
    }
    const bool is_four = of == codecs::ChannelClass::kFourBits;
    const uint32_t bits = is_four ? 4 : 2, bit = number * bits;
    const uint32_t row_at = is_four ? parts.four_bits + token * codecs::CodeRowBytes(four, 4)
                                    : parts.two_bits + token * codecs::CodeRowBytes(two, 2);
    const uint32_t code =
        LoadGlobal<uint8_t>(task.source + row_at + bit / 8) >> bit % 8 & ((1U << bits) - 1);
    const uint32_t pair = token / plane.group * (two + four) + (is_four ? number : four + number);
    const float value = LoadAndDequantize(task, pair, code, bits, fault);
    StoreValue(plane.dtype, place, channel, value);
  }
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) DecodeMixedAny(DecodeArgs args) {
  CAIRN_SHARED(MixedDecodeShared, shared);
  MixedParts parts;
  DecodeTasks(
      args, &shared.places,
      [&](TileTask& task, const PlaneRecord& plane, Fault* fault) {
        FindClasses(task, plane, &shared);
        SyncBlock();
        if (PlaceMixed(shared.counts, plane, &task, &parts)) return;
        *fault = Fault::kBadTile;
        task.rows = 0;  // the plan does not know where they are
      },
      [&](const TileTask& task, const PlaneRecord& plane, Fault* fault) {
        DecodeClasses(task, plane, parts, shared, fault);
      });
}

}  // namespace cairn::kernels
