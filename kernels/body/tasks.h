// SPDX-License-Identifier: Apache-2.0
#pragma once
// Code that the decode kernels share: the tasks of a plan, the places of tokens in the target,
// faults, and rows. In kernels, a row is a token that is stored as source elements instead of
// codes.

#include <cstddef>
#include <cstdint>

#include "kernels/device.h"
#include "kernels/records.h"

namespace cairn::kernels {

inline constexpr uint32_t kBlockThreads = 256;
inline constexpr uint32_t kBlockWarps = kBlockThreads / kWarpLanes;

// How to launch a kernel. A launch has at most one block per task.
struct KernelShape {
  uint32_t list;
  uint32_t shared_bytes;
  uint32_t threads = kBlockThreads;  // threads per block
};

// The addresses of a task's tokens in the target, and which of these tokens are rows. In shared
// memory.
struct TokenPlaces {
  uint8_t* of[kTaskTokensMax];  // null: the token is not stored
  uint32_t is_row[kTaskTokensMax / 32];
};

// Returns the index of the warp in its block. The shuffle shows the compiler that all lanes have
// the same value.
CAIRN_DEVICE uint32_t WarpOfBlock() { return Uniform(ThreadIndex() / kWarpLanes); }

// Returns the sum of `value` over the lanes 0 to this lane.
CAIRN_DEVICE uint32_t SumToLane(uint32_t value) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  CAIRN_UNROLL
  for (uint32_t lanes = 1; lanes < kWarpLanes; lanes *= 2) {
    const uint32_t before = Shuffle(value, lane < lanes ? lane : lane - lanes);
    if (lane >= lanes) value += before;
  }
  return value;
}

struct PlanReader {
  const uint8_t* plan;
  TaskList list;

  CAIRN_DEVICE_MEMBER PlanReader(const uint8_t* from, uint32_t number) : plan(from) {
    list = LoadGlobal<TaskList>(from + number * sizeof(TaskList));
  }
  CAIRN_DEVICE_MEMBER TileTask Task(uint32_t index) const {
    static_assert(sizeof(TileTask) == 64);
    const uint32_t tasks_at = LoadGlobal<uint32_t>(plan + offsetof(PlanHeader, tasks_at));
    return LoadRecord<TileTask>(plan + tasks_at + (list.first + index) * sizeof(TileTask));
  }
  CAIRN_DEVICE_MEMBER PlaneRecord Plane(uint32_t index) const {
    const uint32_t planes_at = LoadGlobal<uint32_t>(plan + offsetof(PlanHeader, planes_at));
    return LoadRecord<PlaneRecord>(plan + planes_at + index * sizeof(PlaneRecord));
  }
};

// Returns the index of an element's (min, range) in its tile.
CAIRN_DEVICE uint32_t PairOf(const PlaneRecord& plane, uint32_t token, uint32_t channel) {
  if (!plane.is_v) return token / plane.group * plane.dim + channel;
  return token * ((plane.dim + plane.group - 1) / plane.group) + channel / plane.group;
}

// Returns `bits` bits (at most 8), from bit number `bit` on.
CAIRN_DEVICE uint32_t LoadBits(const uint8_t* source, uint32_t bit, uint32_t bits) {
  uint32_t value = LoadGlobal<uint8_t>(source + bit / 8);
  if (bit % 8 + bits > 8)
    value |= static_cast<uint32_t>(LoadGlobal<uint8_t>(source + bit / 8 + 1)) << 8;
  return value >> bit % 8 & ((1U << bits) - 1);
}

CAIRN_DEVICE uint32_t WordOf(const U32x4& words, uint32_t i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

CAIRN_DEVICE uint32_t Align16(uint32_t bytes) { return (bytes + 15) / 16 * 16; }

CAIRN_DEVICE Fault Worse(Fault a, Fault b) { return a < b ? b : a; }

// Returns the address of a token of a tile in the target. Returns null for a hole, and for an
// invalid page, which also sets *fault.
CAIRN_DEVICE uint8_t* PlaceOf(const PlaneRecord& plane, uint8_t* target, uint32_t token,
                              Fault* fault) {
  const uint32_t slot = plane.first_slot + token;
  const uint32_t entry = slot / plane.page_tokens;
  const uint32_t within = slot - entry * plane.page_tokens;
  const int32_t page = plane.pages == nullptr ? static_cast<int32_t>(entry)
                                              : LoadGlobal<int32_t>(plane.pages + entry);
  if (page < 0) return nullptr;
  if (static_cast<uint32_t>(page) >= plane.page_count) {
    *fault = Worse(*fault, Fault::kBadPage);
    return nullptr;
  }
  return target + static_cast<uint32_t>(page) * plane.page_stride + within * plane.token_stride;
}

// Fills in *places. The block must synchronize before it reads them.
CAIRN_DEVICE void FindPlaces(const TileTask& task, const PlaneRecord& plane, TokenPlaces* places,
                             Fault* fault) {
  const uint32_t thread = ThreadIndex();
  if (thread < task.token_count) {
    places->of[thread] = PlaceOf(plane, task.target, task.token_first + thread, fault);
  }
  if (thread < kTaskTokensMax / 32) places->is_row[thread] = 0;
}

CAIRN_DEVICE uint32_t StoredToken(const TileTask& task, const PlaneRecord& plane, uint32_t row) {
  return LoadGlobal<uint16_t>(task.source + task.positions_at + 2 * row) & plane.token_bits;
}

// Marks the rows of the tile that are tokens of the task. The block must synchronize before and
// after.
CAIRN_DEVICE void MarkRows(const TileTask& task, const PlaneRecord& plane, TokenPlaces* places,
                           Fault* fault) {
  for (uint32_t row = ThreadIndex(); row < task.rows; row += kBlockThreads) {
    const uint32_t token = StoredToken(task, plane, row);
    if (token >= plane.tokens) *fault = Worse(*fault, Fault::kBadTile);
    const uint32_t at = token - task.token_first;
    if (at >= task.token_count) continue;  // also skips tokens before the first one
    const uint32_t bit = 1U << at % 32;
    const uint32_t before = AtomicOrShared(&places->is_row[at / 32], bit);
    if ((before & bit) != 0) *fault = Worse(*fault, Fault::kBadTile);  // the row is listed twice
  }
}

CAIRN_DEVICE bool IsRowAt(const TokenPlaces& places, uint32_t at) {
  return (places.is_row[at / 32] >> at % 32 & 1) != 0;
}

// Copies units of type T with several threads: this thread copies unit `first`, and every `step`-th
// after it.
template <typename T>
CAIRN_DEVICE void CopyUnits(const uint8_t* source, uint8_t* target, uint32_t bytes, uint32_t first,
                            uint32_t step) {
  for (uint32_t at = first * sizeof(T); at < bytes; at += step * sizeof(T)) {
    StoreGlobal(target + at, LoadGlobal<T>(source + at));
  }
}

// Copies a row, as thread `first` of `step` threads. source, target and bytes are multiples of
// unit.
CAIRN_DEVICE void CopyRow(const uint8_t* source, uint8_t* target, uint32_t bytes, uint32_t unit,
                          uint32_t first, uint32_t step) {
  switch (unit) {
    case 16:
      return CopyUnits<U32x4>(source, target, bytes, first, step);
    case 8:
      return CopyUnits<U32x2>(source, target, bytes, first, step);
    case 4:
      return CopyUnits<uint32_t>(source, target, bytes, first, step);
    case 2:
      return CopyUnits<uint16_t>(source, target, bytes, first, step);
    default:
      return CopyUnits<uint8_t>(source, target, bytes, first, step);
  }
}

// Copies the source elements of the task's rows to their places, with one warp per row.
CAIRN_DEVICE void StoreRows(const TileTask& task, const PlaneRecord& plane,
                            const TokenPlaces& places) {
  // The largest unit that divides the addresses and sizes of all rows.
  const uint32_t unit = 1U << LowestBit(plane.unit | (task.row_bits_at & 15));
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  for (uint32_t row = ThreadIndex() / kWarpLanes; row < task.rows; row += kBlockWarps) {
    const uint32_t at = StoredToken(task, plane, row) - task.token_first;
    if (at >= task.token_count || places.of[at] == nullptr) continue;
    const uint8_t* bits = task.source + task.row_bits_at + row * plane.row_bytes;
    CopyRow(bits, places.of[at], plane.row_bytes, unit, lane, kWarpLanes);
  }
}

CAIRN_DEVICE void ReportFault(Fault fault, const PlaneRecord& plane, uint32_t* status) {
  if (fault != Fault::kNone) AtomicMax(status + plane.image, static_cast<uint32_t>(fault));
}

// Runs the tasks of a list, one block per task.
//   places  in shared memory
//   ask(task, plane, fault)
//           starts copies of parts of the tile to shared memory, and finds what the plan does not
//           know
//   decode(task, plane, fault)
//           called when these copies and `places` are complete; stores the tokens that are not rows
template <typename Ask, typename Decode>
CAIRN_DEVICE void DecodeTasks(const DecodeArgs& args, TokenPlaces* places, Ask ask, Decode decode) {
  const PlanReader reader(args.plan, args.list);
  for (uint32_t index = BlockIndex(); index < reader.list.count; index += GridBlocks()) {
    TileTask task = reader.Task(index);
    const PlaneRecord plane = reader.Plane(task.plane);
    Fault fault = Fault::kNone;
    ask(task, plane, &fault);
    FindPlaces(task, plane, places, &fault);
    if (task.rows != 0) {
      SyncBlock();
      MarkRows(task, plane, places, &fault);
    }
    CopyWait<0>();
    if (!SyncBlockOr(fault != Fault::kNone)) {
      decode(task, plane, &fault);
      StoreRows(task, plane, *places);
    }
    ReportFault(fault, plane, args.status);
    SyncBlock();  // shared memory is reused for the next task
  }
}

// DecodeTasks() for kernels that read the tile without copying it to shared memory.
template <typename Decode>
CAIRN_DEVICE void DecodeTasks(const DecodeArgs& args, Decode decode) {
  CAIRN_SHARED(TokenPlaces, places);
  DecodeTasks(
      args, &places, [](TileTask&, const PlaneRecord&, Fault*) {},
      [&](const TileTask& task, const PlaneRecord& plane, Fault* fault) {
        decode(task, plane, places, fault);
      });
}

// Does the same as FindPlaces(), with one warp. The warp must synchronize before it reads the
// places.
CAIRN_DEVICE void FindWarpPlaces(const TileTask& task, const PlaneRecord& plane, uint8_t** places,
                                 Fault* fault) {
  for (uint32_t at = ThreadIndex() % kWarpLanes; at < task.token_count; at += kWarpLanes) {
    places[at] = PlaceOf(plane, task.target, task.token_first + at, fault);
  }
}

// Runs those tasks of a list that belong to `warp`, one warp per task.
//   decode(task, plane)  called when `places` of the warp is set; returns false if the tile is
//                        invalid
template <typename Decode>
CAIRN_DEVICE void DecodeWarpTasks(const DecodeArgs& args, uint32_t warp, uint8_t** places,
                                  Decode decode) {
  const PlanReader reader(args.plan, args.list);
  const uint32_t step = GridBlocks() * kBlockWarps;
  for (uint32_t index = BlockIndex() * kBlockWarps + warp; index < reader.list.count;
       index += step) {
    const TileTask task = reader.Task(index);
    const PlaneRecord plane = reader.Plane(task.plane);
    Fault fault = Fault::kNone;
    FindWarpPlaces(task, plane, places, &fault);
    SyncWarp();
    if (!decode(task, plane)) fault = Fault::kBadTile;
    ReportFault(fault, plane, args.status);
    SyncWarp();  // shared memory is reused for the next task
  }
}

}  // namespace cairn::kernels
