// SPDX-License-Identifier: Apache-2.0
// Kernels that decode, on the executor.
#include "kernels/body/decode_kernels.h"
#include "tests/kernels/device/emulated_launch.h"

namespace cairn::kernels::device {

void Decode(const DecodePlan& plan, const std::byte* bytes, uint32_t* status, uint64_t seed) {
  Forget("decode", plan.counts, kDecodeLists, bytes);
  ForEachDecodeKernel(Launch(plan.counts.data(), DecodeArgs{codecs::U8(bytes), status, 0}, seed));
}

}  // namespace cairn::kernels::device
