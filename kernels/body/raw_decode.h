// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tiles that are their source bits, to where their tokens go.

#include <cstdint>

#include "kernels/body/tasks.h"

namespace cairn::kernels {

template <typename T>
CAIRN_DEVICE void CopyTokens(const TileTask& task, const PlaneRecord& plane,
                             const TokenPlaces& places) {
  const uint32_t units = plane.row_bytes / sizeof(T);
  const uint32_t across = units < kBlockThreads ? units : kBlockThreads;
  const uint32_t step = kBlockThreads / across;
  const uint32_t thread = ThreadIndex();
  if (thread >= across * step) return;
  const uint8_t* source = task.source + static_cast<uint64_t>(task.token_first) * plane.row_bytes;
  for (uint32_t at = thread / across; at < task.token_count; at += step) {
    if (places.of[at] == nullptr) continue;
    CopyUnits<T>(source + static_cast<uint64_t>(at) * plane.row_bytes, places.of[at],
                 plane.row_bytes, thread % across, across);
  }
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 6) DecodeRaw(DecodeArgs args) {
  CAIRN_SHARED(TokenPlaces, places);
  const PlanReader reader(args.plan, args.list);
  for (uint32_t index = BlockIndex(); index < reader.list.count; index += GridBlocks()) {
    const TileTask task = reader.Task(index);
    const PlaneRecord plane = reader.Plane(task.plane);
    Fault fault = Fault::kNone;
    FindPlaces(task, plane, &places, &fault);
    SyncBlock();
    switch (plane.unit) {
      case 16:
        CopyTokens<Words4>(task, plane, places);
        break;
      case 8:
        CopyTokens<Words2>(task, plane, places);
        break;
      case 4:
        CopyTokens<uint32_t>(task, plane, places);
        break;
      case 2:
        CopyTokens<uint16_t>(task, plane, places);
        break;
      default:
        CopyTokens<uint8_t>(task, plane, places);
    }
    ReportFault(fault, plane, args.status);
    SyncBlock();  // places are of the next task
  }
}

}  // namespace cairn::kernels
