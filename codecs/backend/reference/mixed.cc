// SPDX-License-Identifier: Apache-2.0
#include "codecs/numbers/mixed.h"

#include <cstring>

#include "codecs/backend/reference/reference.h"
#include "codecs/numbers/affine.h"
#include "codecs/pack/dense.h"
#include "codecs/types/shape.h"

namespace cairn::codecs::reference {

void DecodeMixed(const MixedTile& tile, uint8_t* target) {
  uint32_t counts[kChannelClasses] = {};
  for (uint32_t c = 0; c < tile.dim; ++c) ++counts[static_cast<uint8_t>(tile.classes[c])];
  const auto [two, four, source] = counts;
  const uint32_t bytes = ElementBytes(tile.dtype);
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    const uint64_t pairs = uint64_t{token / tile.group} * (four + two);
    const uint8_t* two_bits = tile.two_bits + uint64_t{token} * CodeRowBytes(two, 2);
    const uint8_t* four_bits = tile.four_bits + uint64_t{token} * CodeRowBytes(four, 4);
    const uint8_t* source_bits = tile.source_bits + uint64_t{token} * source * bytes;
    uint32_t next[kChannelClasses] = {};  // of a class
    for (uint32_t c = 0; c < tile.dim; ++c) {
      const uint32_t i = next[static_cast<uint8_t>(tile.classes[c])]++;
      const uint64_t element = uint64_t{token} * tile.dim + c;
      if (tile.classes[c] == ChannelClass::kSourceBits) {
        std::memcpy(target + element * bytes, source_bits + uint64_t{i} * bytes, bytes);
        continue;
      }
      const bool is_four = tile.classes[c] == ChannelClass::kFourBits;
      const uint32_t bits = is_four ? 4 : 2;
      const AffineParams params = LoadParams(tile.params, pairs + (is_four ? i : four + i));
      const uint8_t code = UnpackCode(is_four ? four_bits : two_bits, i, bits);
      StoreElement(tile.dtype, target, element,
                   AffineValue(code, Fp16ToFloat(params.min), Fp16ToFloat(params.range), bits));
    }
  }
}

}  // namespace cairn::codecs::reference
