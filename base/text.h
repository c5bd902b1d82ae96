// SPDX-License-Identifier: Apache-2.0
#pragma once
// Pure functions for text: conversions between string views, JSON strings, and suggestions for
// mistyped names.
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "absl/strings/string_view.h"

namespace cairn {

// Convert between std::string_view and absl::string_view, which are different types in the Abseil
// of a Linux distribution. They copy nothing: the result borrows from the argument's owner.
inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }

// Quote an untrusted value for an error message. The result is printable and not too long. A name
// may be a secret that was given by mistake, such as a line of a private key: of a long one, only
// its length is shown.
inline constexpr size_t kQuotedNameBytesMax = 32;
std::string Quoted(std::string_view text);
std::string QuotedName(std::string_view name);

// Appends `text` in quotes, escaped. Each byte that is not UTF-8 becomes U+FFFD, so that a peer
// cannot make the line invalid JSON.
void AppendJsonString(std::string_view text, std::string* json);

// Returns the name that is the fewest edits away from `word`, if that is at most two edits. If
// several names are equally near, returns the first one. An edit adds, removes or replaces a
// letter, or swaps two neighbours. Returns an empty view if no name is so close, or if `word` is so
// short that any name would be close.
std::string_view Nearest(std::string_view word, std::span<const std::string_view> names);

// Returns " (did you mean NAME?)" or an empty string.
std::string DidYouMean(std::string_view word, std::span<const std::string_view> names);

}  // namespace cairn
