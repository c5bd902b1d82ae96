// SPDX-License-Identifier: Apache-2.0
#pragma once
// The plain loops of the recipe `fp8`, a tile at a time.
//
// Thread-safety: Thread-safe. Nothing allocates.

#include <cstdint>

#include "codecs/backend/backend.h"

namespace cairn::codecs::reference {

// The steps of the same names.
void EncodeFp8(const AffineTile& tile, const uint8_t* source, const uint64_t* rows, uint8_t* codes,
               uint8_t* scales);
void DecodeFp8(const AffineTile& tile, const uint8_t* codes, const uint8_t* scales,
               uint8_t* target);

}  // namespace cairn::codecs::reference
