// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared by the files that call CUDA: how they record an error, and which devices they accept.
//
// Thread-safety: Thread-safe.

#include <cuda_runtime.h>

namespace cairn::kernels {

inline constexpr int kComputeMajorMin = 8;  // what kernels are compiled for, at least

// Whether a call of CUDA succeeded. If not, its error is what LastDeviceError() says from then on,
// and is taken off the thread: the engine's next check would take it for an error of its own.
[[nodiscard]] bool IsOk(cudaError_t error);

}  // namespace cairn::kernels
