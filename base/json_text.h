// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes text as JSON strings. Pure.

#include <string>
#include <string_view>

namespace cairn {

// Appends `text` in quotes, escaped. Each byte that is not UTF-8 becomes U+FFFD, so that the line
// stays valid JSON whatever a peer sends.
void AppendJsonString(std::string_view text, std::string* json);

}  // namespace cairn
