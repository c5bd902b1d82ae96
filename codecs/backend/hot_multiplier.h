// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the multiplier with which `cairn-hot` uses a given number of bits under a profile.
//
// Thread-safety: functions are Thread-safe. Nothing allocates.

#include <cstdint>
#include <optional>

#include "codecs/side/profile.h"

namespace cairn::codecs {

// Returns the multiplier with which all codes together keep to the target; nullopt if no multiplier
// does. It is searched once for a profile, which caches it: see codecs/side/hot_rates.h.
// REQUIRES: kHotBitsMin <= bits_in_tenths <= kHotBitsMax.
[[nodiscard]] std::optional<int16_t> HotMultiplierOf(const Profile& profile,
                                                     uint32_t bits_in_tenths);
// The same, without the cache: a search over every channel of the profile, about fourteen times.
[[nodiscard]] std::optional<int16_t> SearchHotMultiplier(const Profile& profile,
                                                         uint32_t bits_in_tenths);

}  // namespace cairn::codecs
