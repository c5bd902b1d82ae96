// SPDX-License-Identifier: Apache-2.0
#pragma once
// The plain loops of the recipe `cairn`, a strip at a time. Nothing allocates; encoding and
// demoting take 300 KiB of stack.
//
// Thread-safety: Thread-safe.

#include <cstdint>

#include "codecs/backend/backend.h"
#include "codecs/backend/reference/small_norm.h"
#include "codecs/backend/step_tile.h"
#include "codecs/pack/step_strip.h"

namespace cairn::codecs::reference {

// Codes of a strip [token][channel], and the tokens that have none.
struct StepCodes {
  int16_t of[kStripTokens * kProfileDimMax];
  StripTokens rows = {};
};

// Adds the rows that need no arithmetic of the tile's: token 0 of a chain, and small norms of V.
void SelectStepRows(const StepTile& tile, const StepSource& source, StripTokens* rows);

// Decodes one strip, at most of parts.mode kCoded.
[[nodiscard]] bool DecodeStepStrip(const StepStripJob& job);

// The codes and rows of a coded strip. False where it does not end as it must or the profile is
// another one.
// REQUIRES: parts.mode is kCoded.
[[nodiscard]] bool LoadStepCodes(const StepTile& tile, uint32_t tokens, const StepStripParts& parts,
                                 const uint8_t* strip, StepCodes* codes);

// The row tokens of a coded strip. False where they are none.
[[nodiscard]] bool LoadStepRows(uint32_t tokens, const StepStripParts& parts, const uint8_t* strip,
                                StripTokens* rows);

// Writes the rows of a coded strip over what its codes gave. REQUIRES: LoadStepRows().
void StoreStepRows(const StepStripJob& job);

// A coded strip of `from` as one of `to`, the same tile at a higher level: rows stay. Bytes as
// EncodeStepStrip(); *is_valid is false, and 0 returned, where the strip is none.
uint64_t DemoteStepStrip(const StepTile& from, const StepTile& to, uint32_t tokens,
                         const StepStripParts& parts, const uint8_t* strip, uint8_t* target,
                         uint64_t room, bool* is_valid);

}  // namespace cairn::codecs::reference
