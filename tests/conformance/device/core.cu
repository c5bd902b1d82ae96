// SPDX-License-Identifier: Apache-2.0
// Prints the digests of tests/conformance/device/core.h, a line each: what the host has, and, where
// there is a device, "device" and what that has. Compiled by nvcc and, as C++, by the compiler of
// the tree.
#include <cstdio>
#include <memory>

#include "tests/conformance/device/core.h"

namespace {

using cairn::codecs::device_test::kForms;
using cairn::codecs::device_test::RunAll;
using cairn::codecs::device_test::StepMemory;

constexpr const char* kNames[kForms] = {"affine", "patterned", "mixed", "fp8", "strips",
                                        "planes", "steps",     "hot",   "rows"};
constexpr uint32_t kRuns = 16;

#if defined(__CUDACC__)
__global__ void RunOnDevice(StepMemory* memory, uint32_t* digests) {
  RunAll(1000 * threadIdx.x, memory + threadIdx.x, digests + kForms * threadIdx.x);
}

bool RunDevice(uint32_t (*digests)[kForms]) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return false;
  StepMemory* memory = nullptr;
  uint32_t* target = nullptr;
  const size_t bytes = kRuns * kForms * sizeof(uint32_t);
  bool is_ok = cudaMalloc(&memory, kRuns * sizeof(StepMemory)) == cudaSuccess &&
               cudaMalloc(&target, bytes) == cudaSuccess &&
               cudaMemset(memory, 0, kRuns * sizeof(StepMemory)) == cudaSuccess;
  if (is_ok) {
    RunOnDevice<<<1, kRuns>>>(memory, target);
    is_ok = cudaMemcpy(digests, target, bytes, cudaMemcpyDeviceToHost) == cudaSuccess;
  }
  cudaFree(memory);
  cudaFree(target);
  return is_ok;
}
#else
bool RunDevice(uint32_t (*)[kForms]) { return false; }
#endif

void Print(const char* side, const uint32_t (*digests)[kForms]) {
  for (uint32_t run = 0; run < kRuns; ++run) {
    for (uint32_t i = 0; i < kForms; ++i) {
      std::printf("%s %s %u %08x\n", side, kNames[i], run, digests[run][i]);
    }
  }
}

}  // namespace

int main() {
  static uint32_t digests[kRuns][kForms];
  for (uint32_t run = 0; run < kRuns; ++run) {
    const auto memory = std::make_unique<StepMemory>();
    RunAll(1000 * run, memory.get(), digests[run]);
  }
  Print("host", digests);
  if (RunDevice(digests)) Print("device", digests);
  return 0;
}
