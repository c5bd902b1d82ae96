// SPDX-License-Identifier: Apache-2.0
#pragma once
// How fast kernels are, as fractions of a copy that the same device did in the same round.
//
// Thread-safety: Owned by the main thread.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernels/gpu_check/engine_cache.h"

namespace cairn::kernels {

// What kernels do in batches of so many images: medians of rounds.
struct Cell {
  uint32_t batch = 0;    // images a plan; 0: none
  uint32_t taken = 0;    // that it took
  double rate = 0;       // bytes a second; what is counted, Row says
  double over_copy = 0;  // bytes a second that are read and written, over those of the copy
};

// A line of the table. Counted is what decoding writes into a cache, what encoding reads there,
// what CRCs are of, and what a copy reads and writes.
struct Row {
  std::string kernels;  // "decode"
  std::string recipe;   // empty: of none
  std::vector<Cell> cells;
};

struct Measured {
  std::string fault;                  // what went wrong; empty: nothing
  std::vector<Row> rows;              // the copy first; none where nothing is timed
  std::vector<std::string> left_out;  // recipes, since time was up
  // "attend raw", since a kernel needs more shared memory than a block of the device has.
  std::vector<std::string> refused = {};
};

using Deadline = std::chrono::steady_clock::time_point;

// Once everything ran, and gave the CPU's bytes, it is timed; a recipe that starts after the
// deadline is left out.
Measured RunBench(const Scale& scale, Deadline deadline);

}  // namespace cairn::kernels
