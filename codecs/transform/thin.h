// SPDX-License-Identifier: Apache-2.0
#pragma once
// Images of `logquant` as their chain grows: rows go, codes stay.
//
// Thread-safety: Thread-safe. Nothing allocates, keeps a pointer or throws.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/backend/backend.h"
#include "codecs/image/image.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// The image that encoding the source in a chain of chain_tokens gives, without the source; never
// larger than the view. Where the chain is no longer than it was, the same image.
//   target  MaxImageBytes() suffices; may not overlap view
// Errors: kNotDemotable (another recipe), kTargetTooSmall.
Error Thin(const Backend& backend, const ImageView& view, uint64_t chain_tokens,
           std::span<std::byte> target, size_t* bytes);

}  // namespace cairn::codecs
