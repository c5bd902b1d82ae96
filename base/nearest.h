// SPDX-License-Identifier: Apache-2.0
#pragma once
// Suggests the known name closest to a mistyped one ("did you mean"). Thread-safe.
#include <span>
#include <string>
#include <string_view>

namespace cairn {

// Returns the name that is the fewest edits away from `word`, at most two; the first of several. An
// edit adds, removes or replaces a letter or swaps two neighbours. Returns an empty view if no name
// is that close, or if `word` is so short that any name would be.
std::string_view Nearest(std::string_view word, std::span<const std::string_view> names);

// Returns " (did you mean NAME?)" or an empty string.
std::string DidYouMean(std::string_view word, std::span<const std::string_view> names);

}  // namespace cairn
