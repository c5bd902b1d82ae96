// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the multiplier with which `cairn-hot` uses a given number of bits per element with a
// profile.
//
// Thread-safety: functions are Thread-safe. They do not allocate.

#include <cstdint>
#include <optional>

#include "codecs/side/profile.h"

namespace cairn::codecs {

// Returns the multiplier with which all codes together have at most the target size, or nullopt if
// there is none. The search runs once per profile, which caches the result: see
// codecs/side/hot_rates.h. REQUIRES: kHotBitsMin <= bits_in_tenths <= kHotBitsMax.
[[nodiscard]] std::optional<int16_t> HotMultiplierOf(const Profile& profile,
                                                     uint32_t bits_in_tenths);
// HotMultiplierOf() without the cache. The search visits every channel of the profile about
// fourteen times.
[[nodiscard]] std::optional<int16_t> SearchHotMultiplier(const Profile& profile,
                                                         uint32_t bits_in_tenths);

}  // namespace cairn::codecs
