// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decodes patternkv. The encoder subtracts a pattern of a bank from each token and codes the
// remainder, with a (min, range) per group. Decoding adds the pattern in fp32 before values are
// rounded.

#include <cstdint>

#include "codecs/pack/dense.h"
#include "kernels/body/affine_decode.h"

namespace cairn::kernels {

struct PatternedDecodeShared {
  TokenPlaces places;
  const uint8_t* patterns[kTaskTokensMax];  // pattern of each token of the task; null: none
};

CAIRN_DEVICE void FindPatterns(const TileTask& task, const PlaneRecord& plane,
                               const uint8_t** patterns, Fault* fault) {
  const uint32_t at = ThreadIndex();
  if (at >= task.token_count) return;
  const uint32_t token = task.token_first + at, bits = codecs::NumberBits(plane.patterns);
  const uint32_t number = bits == 0 ? 0 : LoadBits(task.source + task.map_at, token * bits, bits);
  if (number >= plane.patterns) *fault = Worse(*fault, Fault::kBadTile);
  const bool has_pattern = task.gate_at == 0 || LoadBits(task.source + task.gate_at, token, 1) != 0;
  const uint64_t index = static_cast<uint64_t>(task.head) * plane.patterns + number;
  patterns[at] = has_pattern ? plane.side + 2 * index * plane.dim : nullptr;
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) DecodePatternedAny(DecodeArgs args) {
  CAIRN_SHARED(PatternedDecodeShared, shared);
  DecodeTasks(
      args, &shared.places,
      [&](TileTask& task, const PlaneRecord& plane, Fault* fault) {
        FindPatterns(task, plane, shared.patterns, fault);
      },
      [&](const TileTask& task, const PlaneRecord& plane, Fault* fault) {
        const auto pattern_at = [&](uint32_t at) { return shared.patterns[at]; };
        DecodeElements(task, plane, shared.places, pattern_at, fault);
      });
}

}  // namespace cairn::kernels
