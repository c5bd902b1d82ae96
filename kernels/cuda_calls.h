// SPDX-License-Identifier: Apache-2.0
#pragma once
// Code for files that call CUDA: it records errors and states which devices are supported.
//
// Thread-safety: Thread-safe.

#include <cuda_runtime.h>

namespace cairn::kernels {

inline constexpr int kComputeMajorMin = 8;  // the lowest compute capability that kernels are
                                            // compiled for

// Returns true if a CUDA call succeeded. If not, LastDeviceError() returns its error from then on.
// The thread's CUDA error is then cleared, because the engine's next check would otherwise report
// it as the engine's own error.
[[nodiscard]] bool IsOk(cudaError_t error);

}  // namespace cairn::kernels
