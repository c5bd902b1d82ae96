// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernels that encode, in their order.

#include <cstdint>

#include "kernels/body/affine_encode.h"

namespace cairn::kernels {

// Calls launch.Kernel<kernel>(number, shared_bytes) for each; all take EncodeArgs.
template <typename Launch>
void ForEachEncodeKernel(Launch&& launch) {
  launch.template Kernel<&EncodeAffineAny>(uint32_t{0}, uint32_t{sizeof(EncodeShared)});
  launch.template Kernel<&SumCrcs>(uint32_t{1}, uint32_t{sizeof(CrcShared)});
}

}  // namespace cairn::kernels
