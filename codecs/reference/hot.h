// SPDX-License-Identifier: Apache-2.0
#pragma once
// The plain loops of the recipe `cairn-hot`, a strip of 128 tokens at a time. Nothing allocates;
// encoding takes 600 KiB of stack.
//
// Thread-safety: Thread-safe.

#include <cstdint>

#include "codecs/hot_tile.h"
#include "codecs/reference/step.h"

namespace cairn::codecs::reference {

// Codes of a strip, and which of its tokens are rows.
//   codes        tokens * tile.row_bytes, written whole; those of rows are 0
//   corrections  HotCorrectionBytes(dim), written whole where tile.is_corrected; else not touched
//   rows         those found are added
void EncodeHotStrip(const HotTile& tile, const StepSource& source, uint8_t* codes,
                    uint8_t* corrections, StripTokens* rows);

// The inverse, of every token.
//   corrections  read where tile.is_corrected
//   target       tokens * dim elements
void DecodeHotStrip(const HotTile& tile, uint32_t tokens, uint64_t position, const uint8_t* codes,
                    const uint8_t* corrections, uint8_t* target);

}  // namespace cairn::codecs::reference
