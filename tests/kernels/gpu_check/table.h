// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table that docs/results/benchmarks.md has.
//
// Thread-safety: pure functions.

#include <string>
#include <vector>

#include "tests/kernels/device/device.h"
#include "tests/kernels/gpu_check/bench.h"

namespace cairn::kernels {

struct Conformance {
  int tests = 0;                     // that passed
  std::vector<std::string> refused;  // tests of whose plans the device refused some
};

// A line each: what conformance found; and what of the benchmark the device refused, empty where
// that is nothing.
std::string SummaryOf(const Conformance& conformance);
std::string RefusalsOf(const Measured& measured);

// In Markdown, under a line that says of what it is.
//   command  that made it
std::string TableOf(const device::Description& device, const std::string& command,
                    const Conformance& conformance, const Scale& scale, const Measured& measured);

}  // namespace cairn::kernels
