// SPDX-License-Identifier: Apache-2.0
#pragma once
// Side objects: immutable bytes that images refer to by the hash of them.
//
// Thread-safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/image.h"

namespace cairn::proto {

// The values are those of cairn.v1.SideObjectKind.
enum class SideObjectKind : uint8_t { kProfile = 1 };  // docs/formats/profile.md

// "profile". Static storage.
[[nodiscard]] const char* Name(SideObjectKind kind);

// SHA-256: what an image names it by.
[[nodiscard]] codecs::Digest SideObjectId(std::span<const std::byte> bytes);

}  // namespace cairn::proto
