// SPDX-License-Identifier: Apache-2.0
#pragma once
// The plain loops of the recipe `fp8`, a tile at a time.
//
// Thread-safety: Thread-safe. Nothing allocates.

#include <cstdint>

#include "codecs/backend.h"

namespace cairn::codecs::reference {

// Of AffineTile tokens, dim and dtype are read.
//   source  elements; those of tokens outside `rows` are finite and at most kMagnitudeMax
//   codes   tokens * dim bytes, written whole; 0 in rows
//   scales  tokens * fp16, written whole; +0 in rows
void EncodeFp8(const AffineTile& tile, const uint8_t* source, const uint64_t* rows, uint8_t* codes,
               uint8_t* scales);

// The inverse, of every token. Codes and scales are any bits; where either is not finite, so is
// what is written.
void DecodeFp8(const AffineTile& tile, const uint8_t* codes, const uint8_t* scales,
               uint8_t* target);

}  // namespace cairn::codecs::reference
