// SPDX-License-Identifier: Apache-2.0
#pragma once
// Prepares a tile of a parsed image for the functions of its form.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "codecs/forms/form.h"
#include "codecs/image/image.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// REQUIRES: index < view.tile_count().
[[nodiscard]] StoredTile StoredTileOf(const ImageView& view, uint32_t index);
// Verifies a tile whose content has the CRC `crc`, and which the caller decodes, too. Only if that
// succeeds, the tile is verified.
Error VerifyDecoded(const StoredTile& tile, uint32_t crc);

}  // namespace cairn::codecs
