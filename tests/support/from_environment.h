// SPDX-License-Identifier: Apache-2.0
#pragma once
// How often a test repeats something: a soak sets a variable to a larger number.

#include <cstdlib>

namespace cairn {

// Returns the number that the variable has, or `otherwise` if it is not set.
inline int FromEnvironment(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

}  // namespace cairn
