// SPDX-License-Identifier: Apache-2.0
#pragma once
// Side objects: immutable data that images refer to by the hash of its bytes. There is one kind, a
// profile, see docs/formats/profile.md.
//
// Thread-safety: pure functions.

#include <cstddef>
#include <span>

#include "codecs/image.h"

namespace cairn::proto {

// SHA-256: what an image names it by.
[[nodiscard]] codecs::Digest SideObjectId(std::span<const std::byte> bytes);

}  // namespace cairn::proto
