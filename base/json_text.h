// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text as JSON has it. Pure.

#include <string>
#include <string_view>

namespace cairn {

// Appends `text` in quotes. What is no UTF-8 becomes U+FFFD, a byte each, so that a peer's bytes
// make no line that a reader refuses.
void AppendJsonString(std::string_view text, std::string* json);

}  // namespace cairn
