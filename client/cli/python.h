// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of cairnctl that are in Python: `evaluate`, and the page of `replay`. They are modules
// of the package kvcairn, with its extra `evaluate`.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace cairn::cli {

// The flag that names another interpreter than DefaultPython().
inline constexpr std::string_view kPythonFlag = "--python";

// $CAIRN_PYTHON, else python3.
std::string DefaultPython();

// Returns OK if `python` runs and has the packages.
//
// Errors: FailedPrecondition, with what to install.
absl::Status CheckPython(const std::string& python);

// Becomes `python -m MODULE WORDS`. Returns only if that cannot be run.
absl::Status BecomeModule(const std::string& python, const std::string& module,
                          const std::vector<std::string>& words);

// Runs `python -m MODULE WORDS` to its end, with `input` as its standard input.
//
// Errors: FailedPrecondition, if it cannot be run; Unknown, if it fails, which it has explained on
// stderr.
absl::Status RunModule(const std::string& python, const std::string& module,
                       const std::vector<std::string>& words, std::string_view input);

}  // namespace cairn::cli
