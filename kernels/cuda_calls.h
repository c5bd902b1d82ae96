// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared by the files that call CUDA: how they record an error, and which devices they accept.
//
// Thread-safety: Thread-safe.

#include <cuda_runtime.h>

namespace cairn::kernels {

inline constexpr int kComputeMajorMin = 8;  // what kernels are compiled for, at least

// Returns true if a call of CUDA succeeded. If not, LastDeviceError() returns its error from then
// on, and the error of the thread is cleared. Else the engine's next check would take it for its
// own.
[[nodiscard]] bool IsOk(cudaError_t error);

}  // namespace cairn::kernels
