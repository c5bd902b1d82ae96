// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decodes the most common strips of `exact:fast`: bf16 and fp16, dim a multiple of 32 up to
// kPlanesFastDimMax, token addresses at multiples of 16. One warp per strip decodes 32 runs of
// codes at a time, in three steps:
//
//  1. one lane per run: counts the run's escapes, which tells where the escapes of each run start
//  2. one lane per escape: finds how far its exponent is below the top
//  3. one lane per eight elements: subtracts from the tops, joins elements, stores 16 bytes
//
// No step waits for data that an earlier step has just read. Only two counts are carried over to
// the next 32 runs.

#include <cstdint>

#include "kernels/body/strips.h"
#include "kernels/body/strips_join.h"

namespace cairn::kernels {

inline constexpr uint32_t kUnitsAtOnce = kWarpLanes * kRunUnits;

struct PlanesWarp {
  alignas(16) uint8_t tops[kPlanesFastDimMax];
  // The bytes 0 to 2 of a unit have the bits of its codes. Byte 3 is the number of escapes in the
  // run before this unit.
  alignas(16) uint32_t codes[kUnitsAtOnce];
  alignas(16) uint32_t lows[kUnitsAtOnce];  // for fp16
  uint32_t starts[kWarpLanes];              // index in `toggles` of a run's first escape
  uint8_t toggles[kUnit * kUnitsAtOnce];    // XOR with the code of an escape gives its distance
  uint8_t* places[kTaskTokensMax];
};

struct PlanesShared {
  PlanesWarp warps[kBlockWarps];
};

// 64 codes of three bits: words[w] has bit w of each code.
struct Run {
  U32x2 words[3];

  CAIRN_DEVICE_MEMBER explicit Run(const uint8_t* from) {
    CAIRN_UNROLL
    for (uint32_t w = 0; w < 3; ++w) words[w] = LoadGlobal<U32x2>(from + 8 * w);
  }
  // Returns which elements are escapes: those with the highest code.
  [[nodiscard]] CAIRN_DEVICE_MEMBER U32x2 Escapes() const {
    return {words[0].x & words[1].x & words[2].x, words[0].y & words[1].y & words[2].y};
  }
};

// Stores the units of half a run, in the layout of PlanesWarp.
//   before  number of escapes in the run before this half
CAIRN_DEVICE void StoreHalfUnits(uint32_t lowest, uint32_t middle, uint32_t highest,
                                 uint32_t escapes, uint32_t before, uint32_t* units) {
  CAIRN_UNROLL
  for (uint32_t i = 0; i < kRunUnits / 2; ++i) {
    const uint32_t counted = before + CountBits(escapes & ((1U << kUnit * i) - 1));
    const uint32_t two = PermuteBytes(lowest, middle, 0x40 + 0x11 * i);
    units[i] = PermuteBytes(two, PermuteBytes(highest, counted, 0x40 + i), 0x5410);
  }
}

// Stores the codes of a lane's run. `left` is the number of elements from this run to the end.
//   returns how many of the run's elements are escapes
CAIRN_DEVICE uint32_t StoreCodesOfRun(const Run& run, uint32_t left, uint32_t* units) {
  U32x2 escapes = run.Escapes();
  if (left < codecs::kRun) escapes.y = 0;  // only half a run is left
  const uint32_t before = CountBits(escapes.x);
  StoreHalfUnits(run.words[0].x, run.words[1].x, run.words[2].x, escapes.x, 0, units);
  StoreHalfUnits(run.words[0].y, run.words[1].y, run.words[2].y, escapes.y, before,
                 units + kRunUnits / 2);
  return before + CountBits(escapes.y);
}

CAIRN_DEVICE void StoreLowsOfRun(const Run& run, uint32_t* units) {
  StoreHalfUnits(run.words[0].x, run.words[1].x, run.words[2].x, 0, 0, units);
  StoreHalfUnits(run.words[0].y, run.words[1].y, run.words[2].y, 0, 0, units + kRunUnits / 2);
}

// Stores the codes of 32 runs, one run per lane; `first` is the first run. Returns the total number
// of escapes.
template <codecs::DType kDType>
CAIRN_DEVICE uint32_t StoreRuns(const FoundStrip& strip, uint32_t first, PlanesWarp* own) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, run = first + lane;
  const uint32_t elements = strip.shape.tokens * strip.shape.dim;
  uint32_t escapes = 0;
  if (run * codecs::kRun < elements) {
    const Run codes(strip.bytes + strip.parts.coded + run * codecs::kRunBytes);
    escapes = StoreCodesOfRun(codes, elements - run * codecs::kRun, own->codes + kRunUnits * lane);
    if constexpr (kDType == codecs::DType::kFp16) {
      const Run lows(strip.bytes + strip.parts.low + run * codecs::kRunBytes);
      StoreLowsOfRun(lows, own->lows + kRunUnits * lane);
    }
  }
  const uint32_t end = SumToLane(escapes);
  own->starts[lane] = end - escapes;
  return Shuffle(end, kWarpLanes - 1);
}

// The number of nibbles and raw bytes read so far.
struct PlanesRead {
  uint32_t escapes = 0, raws = 0;
};

// Stores the next `count` escapes, one per lane. If a strip has more escapes than it states, reads
// still stay inside the tile, because a byte per element follows. The strip is then refused at its
// end.
CAIRN_DEVICE void StoreToggles(const FoundStrip& strip, uint32_t count, PlanesRead* read,
                               uint8_t* toggles) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, below = (1U << lane) - 1;
  const codecs::StripParts& parts = strip.parts;
  for (uint32_t first = 0; first < count; first += kWarpLanes) {
    const uint32_t at = first + lane, from = read->escapes + at;
    uint32_t nibble = 0;
    if (at < count) {
      nibble = LoadGlobal<uint8_t>(strip.bytes + parts.escape + from / 2) >> from % 2 * 4 & 15;
    }
    const uint32_t raw = Ballot(nibble == codecs::kRawNibble);
    uint32_t distance = codecs::DistanceOf(nibble);
    if (nibble == codecs::kRawNibble) {
      const uint32_t raw_from = read->raws + CountBits(raw & below);
      distance = LoadGlobal<uint8_t>(strip.bytes + parts.raw + raw_from);
    }
    if (at < count) toggles[at] = static_cast<uint8_t>(distance ^ codecs::kPlanesReach);
    read->raws += CountBits(raw);
  }
  read->escapes += count;
}

// Returns how far each element of a unit is below its top, one byte per element.
//   run  index of the unit's run in *own
CAIRN_DEVICE U32x2 DistancesOf(uint32_t unit, uint32_t run, const PlanesWarp& own) {
  U32x2 distances = SpreadUnit(unit);
  uint32_t escapes = unit & unit >> 8 & unit >> 16 & 0xFF;
  if (escapes == 0) return distances;
  const uint8_t* toggle = own.toggles + own.starts[run] + (unit >> 24);
  uint64_t toggles = 0;
  CAIRN_NO_UNROLL
  for (; escapes != 0; escapes &= escapes - 1) {
    toggles |= static_cast<uint64_t>(*toggle++) << 8 * LowestBit(escapes);
  }
  return {distances.x ^ static_cast<uint32_t>(toggles),
          distances.y ^ static_cast<uint32_t>(toggles >> 32)};
}

// The place of a lane's unit. Units continue from one token to the next.
struct UnitPlace {
  uint32_t token, part;  // a part is 8 channels of the token
  uint32_t tokens_step, parts_step, parts;

  CAIRN_DEVICE_MEMBER explicit UnitPlace(uint32_t dim) : parts(dim / kUnit) {
    const uint32_t lane = ThreadIndex() % kWarpLanes;
    token = lane / parts;
    part = lane % parts;
    tokens_step = kWarpLanes / parts;
    parts_step = kWarpLanes % parts;
  }
  // Moves on by 32 units.
  CAIRN_DEVICE_MEMBER void GoOn() {
    token += tokens_step;
    part += parts_step;
    if (part < parts) return;
    part -= parts;
    ++token;
  }
};

// Stores the units of 32 runs; `first` is the first unit.
template <codecs::DType kDType>
CAIRN_DEVICE void StoreUnits(const FoundStrip& strip, uint32_t first, const PlanesWarp& own,
                             UnitPlace* at) {
  constexpr uint32_t kLoads = 4, kUnitsBytes = kUnit * kWarpLanes;
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const uint32_t units = strip.shape.tokens * at->parts;
  const uint8_t* plane = strip.bytes + strip.parts.plane + kUnit * (first + lane);
  CAIRN_NO_UNROLL
  for (uint32_t step = 0; step < kRunUnits; step += kLoads, plane += kLoads * kUnitsBytes) {
    U32x2 planes[kLoads] = {};
    CAIRN_UNROLL
    for (uint32_t i = 0; i < kLoads; ++i) {  // all loads first, then their uses
      const bool is_there = first + kWarpLanes * (step + i) + lane < units;
      if (is_there) planes[i] = LoadGlobal<U32x2>(plane + i * kUnitsBytes);
    }
    CAIRN_UNROLL
    for (uint32_t i = 0; i < kLoads; ++i, at->GoOn()) {
      const uint32_t unit = kWarpLanes * (step + i) + lane;  // index in *own
      if (first + unit >= units) continue;
      uint8_t* place = strip.places[at->token];
      if (place == nullptr) continue;
      const auto* tops = reinterpret_cast<const uint32_t*>(own.tops + kUnit * at->part);
      const U32x2 distances = DistancesOf(own.codes[unit], unit / kRunUnits, own);
      const U32x2 exponents{SubtractBytes(tops[0], distances.x),
                            SubtractBytes(tops[1], distances.y)};
      U32x2 lows{};
      if constexpr (kDType == codecs::DType::kFp16) lows = SpreadUnit(own.lows[unit]);
      StoreGlobal(place + 16 * at->part, JoinUnit<kDType>(exponents, planes[i], lows));
    }
  }
}

// Decodes a strip. Returns false if the strip does not have the number of escapes that it states.
template <codecs::DType kDType>
CAIRN_DEVICE bool DecodeStripOfPlanes(const FoundStrip& strip, PlanesWarp* own) {
  const uint8_t* pars = strip.bytes + codecs::strip::kPar;
  for (uint32_t c = ThreadIndex() % kWarpLanes; c < strip.shape.dim; c += kWarpLanes) {
    const auto par = LoadGlobal<uint8_t>(pars + c);
    own->tops[c] = static_cast<uint8_t>(codecs::TopOf(strip.parts.top, par));
  }
  const auto runs = static_cast<uint32_t>(codecs::RunCount(strip.shape));
  UnitPlace at(strip.shape.dim);
  PlanesRead read;
  CAIRN_NO_UNROLL
  for (uint32_t first = 0; first < runs; first += kWarpLanes) {
    const uint32_t escapes = StoreRuns<kDType>(strip, first, own);
    StoreToggles(strip, escapes, &read, own->toggles);
    SyncWarp();
    StoreUnits<kDType>(strip, kRunUnits * first, *own, &at);
    SyncWarp();
  }
  return read.escapes == strip.parts.escapes && read.raws == strip.parts.raws;
}

template <codecs::DType kDType>
CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) DecodePlanesFast(DecodeArgs args) {
  CAIRN_SHARED(PlanesShared, shared);
  const uint32_t warp = WarpOfBlock();
  PlanesWarp* own = &shared.warps[warp];
  DecodeWarpTasks(args, warp, own->places, [&](const TileTask& task, const PlaneRecord& plane) {
    FoundStrip strip;
    strip.places = own->places;
    if (!FindStrip(task, plane, &strip)) return false;
    if (strip.parts.mode == codecs::StripMode::kPlanes) {
      return DecodeStripOfPlanes<kDType>(strip, own);
    }
    CopyTokensOfWarp(strip.bytes + strip.parts.coded, strip.shape.tokens, own->places,
                     plane.row_bytes, plane.unit);
    return true;
  });
}

}  // namespace cairn::kernels
