// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs kernel bodies on a CPU, and finds what a device would not say. A thread of a block is a
// fiber; which of them goes on is random, and every other block has some warps run far ahead.
//
// - Shared memory is as large as it was launched with, full of noise, and what CopyAsync brings is
//   noise until the wait for it.
// - A launch ends with a fault where lanes of a mask come to different collectives, a lane is not
//   in its own mask, reads one outside it or waits for one that has returned; where threads meet at
//   different barriers or wait for ever; where memory is touched that is not the kernel's or is
//   misaligned; where LoadGlobal() reads what the launch has stored; where a thread returns with
//   copies under way.
// - Under the thread sanitizer only SyncWarp() and SyncBlock() order what threads do, as CUDA has
//   it: it reports any two touches of memory, by threads of a block, that nothing orders. Blocks
//   run one after another, so it reports no race between two.
//
// Thread-safety: one launch at a time in a process.

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/device.h"

namespace cairn::kernels::emulated {

struct Options {
  uint64_t seed = 1;
};

struct Report {
  std::string fault;  // empty: none
};

// While it lives, kernels may load from these bytes, and store to them if they are writable.
class Region {
 public:
  Region(const void* begin, size_t bytes, bool is_writable);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  const uint8_t* begin_;
};

using Body = void (*)(const void* arguments);

// REQUIRES: threads <= 1024, a multiple of 32.
Report Run(uint32_t blocks, uint32_t threads, size_t shared_bytes, Body body, const void* arguments,
           const Options& options);

// Launches kernel(arguments).
template <auto kKernel, typename Arguments>
Report Launch(uint32_t blocks, uint32_t threads, size_t shared_bytes, const Arguments& arguments,
              const Options& options = {}) {
  const Body body = [](const void* given) { kKernel(*static_cast<const Arguments*>(given)); };
  return Run(blocks, threads, shared_bytes, body, &arguments, options);
}

}  // namespace cairn::kernels::emulated
