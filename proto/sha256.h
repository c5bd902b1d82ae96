// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace cairn::proto {

// Thread-safety: pure.
std::array<std::byte, 32> Sha256(std::span<const std::byte> bytes);

}  // namespace cairn::proto
