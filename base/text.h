// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts between std::string_view and absl::string_view, which are different types in a
// distribution's Abseil. Copies nothing: the result borrows what the argument borrows.
#include <string_view>

#include "absl/strings/string_view.h"

namespace cairn {

inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }

}  // namespace cairn
