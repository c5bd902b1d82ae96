// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of cairnctl that are written in Python: `evaluate`, and the page of `replay`. They are
// modules of the package kvcairn, and need its extra `evaluate`.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace cairn::cli {

// The flag that names the interpreter to use instead of DefaultPython().
inline constexpr std::string_view kPythonFlag = "--python";

// Returns $CAIRN_PYTHON, or else python3.
std::string DefaultPython();

// Returns OK if `python` runs and has the packages.
//
// Errors: FailedPrecondition. The message says what to install.
absl::Status CheckPython(const std::string& python);

// Replaces this process by `python -m MODULE WORDS`. Returns only if that cannot be run.
absl::Status BecomeModule(const std::string& python, const std::string& module,
                          const std::vector<std::string>& words);

// Runs `python -m MODULE WORDS` to its end, with `input` as its standard input.
//
// Errors: FailedPrecondition if it cannot be run; Unknown if it fails. In the second case it has
// written the reason to stderr.
absl::Status RunModule(const std::string& python, const std::string& module,
                       const std::vector<std::string>& words, std::string_view input);

}  // namespace cairn::cli
