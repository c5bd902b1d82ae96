// SPDX-License-Identifier: Apache-2.0
#pragma once
// The plain loops of the recipe `cairn-hot`, a strip of 128 tokens at a time. Nothing allocates;
// encoding takes 600 KiB of stack.
//
// Thread-safety: Thread-safe.

#include <cstdint>

#include "codecs/backend/hot_tile.h"
#include "codecs/backend/reference/step.h"

namespace cairn::codecs::reference {

// The steps of the same names.
void EncodeHotStrip(const HotTile& tile, const StepSource& source, uint8_t* codes,
                    uint8_t* corrections, StripTokens* rows);
void DecodeHotStrip(const HotStripJob& job);

}  // namespace cairn::codecs::reference
