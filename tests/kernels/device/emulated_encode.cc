// SPDX-License-Identifier: Apache-2.0
// Kernels that encode, on the executor.
#include "kernels/body/encode_kernels.h"
#include "tests/kernels/device/emulated_launch.h"

namespace cairn::kernels::device {

void Encode(const EncodePlan& plan, const std::byte* bytes, TileResult* results, uint32_t* status,
            uint64_t seed) {
  Forget("encode", plan.counts, kEncodeItemLists, bytes);
  ForEachEncodeKernel(
      Launch(plan.counts.data(), EncodeArgs{codecs::U8(bytes), results, status, 0}, seed));
}

}  // namespace cairn::kernels::device
