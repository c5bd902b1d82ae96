// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks textual settings. Pure. Errors: InvalidArgument (says what is wrong).

#include <string_view>

#include "absl/status/status.h"

namespace cairn {

absl::Status CheckSocketPath(
    std::string_view text);  // fits sockaddr_un, absolute, printable, or "off"
absl::Status CheckPortRange(std::string_view text);
absl::Status CheckRecipe(std::string_view text);
absl::Status CheckWriteBudget(std::string_view text);
absl::Status CheckScrubRate(std::string_view text);
// The accepted forms, for people.
std::string_view WriteBudgetForm();
std::string_view ScrubRateForm();

}  // namespace cairn
