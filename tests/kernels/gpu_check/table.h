// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table that docs/benchmarks.md has.
//
// Thread-safety: pure functions.

#include <string>

#include "tests/kernels/device/device.h"
#include "tests/kernels/gpu_check/bench.h"

namespace cairn::kernels {

// In Markdown, under a line that says of what it is.
//   command  that made it
//   tests    of conformance that passed before
std::string TableOf(const device::Description& device, const std::string& command, int tests,
                    const Scale& scale, const Measured& measured);

}  // namespace cairn::kernels
