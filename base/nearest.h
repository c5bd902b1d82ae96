// SPDX-License-Identifier: Apache-2.0
#pragma once
// "Did you mean": the known name that a mistyped one is closest to. Thread-safe.
#include <span>
#include <string>
#include <string_view>

namespace cairn {

// The one of `names` that at most two edits (a letter added, left out, replaced, or two neighbours
// swapped) make of `word`; the first of those with fewest. Empty: none is that close, or `word` is
// so short that anything would be.
std::string_view Nearest(std::string_view word, std::span<const std::string_view> names);

// " (did you mean NAME?)", or empty.
std::string DidYouMean(std::string_view word, std::span<const std::string_view> names);

}  // namespace cairn
