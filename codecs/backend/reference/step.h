// SPDX-License-Identifier: Apache-2.0
#pragma once
// The reference loops of the recipe `cairn`, for one strip. Nothing allocates; encoding and
// demoting take 300 KiB of stack.
//
// Thread-safety: Thread-safe.

#include <cstdint>

#include "codecs/backend/backend.h"
#include "codecs/backend/reference/small_norm.h"
#include "codecs/backend/step_tile.h"
#include "codecs/pack/step_strip.h"

namespace cairn::codecs::reference {

// The codes of a strip, [token][channel], and which tokens have no codes.
struct StepCodes {
  int16_t of[kStripTokens * kProfileDimMax];
  StripTokens rows = {};
};

// Adds the tokens that are rows whatever their codes: token 0 of a chain, and tokens of V with a
// small norm.
void SelectStepRows(const StepTile& tile, const StepSource& source, StripTokens* rows);

// Decodes one strip whose mode is kRaw or kCoded.
[[nodiscard]] bool DecodeStepStrip(const StepStripJob& job);

// Loads the codes and rows of a coded strip. Returns false if the strip does not end as a valid
// strip does, or was encoded with another profile. REQUIRES: parts.mode is kCoded.
[[nodiscard]] bool LoadStepCodes(const StepTile& tile, uint32_t tokens, const StepStripParts& parts,
                                 const uint8_t* strip, StepCodes* codes);

// Loads the rows of a coded strip. Returns false if their positions are invalid.
[[nodiscard]] bool LoadStepRows(uint32_t tokens, const StepStripParts& parts, const uint8_t* strip,
                                StripTokens* rows);

// Writes the rows of a coded strip over its decoded codes. REQUIRES: LoadStepRows() has returned
// true.
void StoreStepRows(const StepStripJob& job);

// Recodes a strip of the tile `from` to the tile `to`, which is the same tile at a higher level.
// Rows stay. Returns the number of bytes, as EncodeStepStrip() does. If the strip is invalid, sets
// *is_valid to false and returns 0.
uint64_t DemoteStepStrip(const StepTile& from, const StepTile& to, uint32_t tokens,
                         const StepStripParts& parts, const uint8_t* strip, uint8_t* target,
                         uint64_t room, bool* is_valid);

}  // namespace cairn::codecs::reference
