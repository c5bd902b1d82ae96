// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies the source elements of raw tiles to the places of their tokens.

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

CAIRN_DEVICE void CopyAnyTokens(const TileTask& task, const PlaneRecord& plane,
                                const TokenPlaces& places) {
  switch (plane.unit) {
    case 16:
      return CopyTokens<U32x4>(task, plane, places);
    case 8:
      return CopyTokens<U32x2>(task, plane, places);
    case 4:
      return CopyTokens<uint32_t>(task, plane, places);
    case 2:
      return CopyTokens<uint16_t>(task, plane, places);
    default:
      return CopyTokens<uint8_t>(task, plane, places);
  }
}

using RawDecodeShared = TokenPlaces;

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 6) DecodeRawAny(DecodeArgs args) {
  DecodeTasks(args, [](const TileTask& task, const PlaneRecord& plane, const TokenPlaces& places,
                       Fault*) { CopyAnyTokens(task, plane, places); });
}

}  // namespace cairn::kernels
