// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the multiplier under which `cairn-hot` codes with a given number of bits, for a profile.
//
// Thread-safety: functions are Thread-safe. Nothing allocates.

#include <cstdint>
#include <optional>

#include "codecs/side/profile.h"

namespace cairn::codecs {

// The multiplier under which all codes together keep to the target; none where no multiplier does.
// Found once for a profile, which keeps it: see codecs/side/hot_rates.h.
// REQUIRES: kHotBitsMin <= bits_in_tenths <= kHotBitsMax.
[[nodiscard]] std::optional<int16_t> HotMultiplierOf(const Profile& profile,
                                                     uint32_t bits_in_tenths);
// The same, searched for anew: looks at every channel of the profile some fourteen times.
[[nodiscard]] std::optional<int16_t> SearchHotMultiplier(const Profile& profile,
                                                         uint32_t bits_in_tenths);

}  // namespace cairn::codecs
