// SPDX-License-Identifier: Apache-2.0
#pragma once
// Drops rows of `logquant` images that a longer chain no longer needs. Codes stay as they are.
//
// Thread-safety: Thread-safe. Nothing allocates, keeps a pointer or throws.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/backend/backend.h"
#include "codecs/image/image.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Writes the image that the encoder would make from the source if the chain had chain_tokens. The
// new image is never larger than the view. It equals the view if the chain is not longer than
// before.
//   target  MaxImageBytes() suffices; may not overlap view
// Errors: kNotDemotable (another recipe), kTargetTooSmall.
Error Thin(const Backend& backend, const ImageView& view, uint64_t chain_tokens,
           std::span<std::byte> target, size_t* bytes);

}  // namespace cairn::codecs
