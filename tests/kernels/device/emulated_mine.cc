// SPDX-License-Identifier: Apache-2.0
// Kernels that mine, on the executor.
#include "kernels/body/mine_bank.h"
#include "kernels/body/mine_codes.h"
#include "tests/kernels/device/emulated_launch.h"

namespace cairn::kernels::device {

void Mine(const MinePlan& plan, const std::byte* bytes, std::byte* scratch, uint32_t* status,
          uint64_t seed) {
  Forget("mine", plan.counts, kMineLists, bytes);
  ForEachMineKernel(Launch(plan.counts.data(),
                           MineArgs{codecs::U8(bytes), codecs::U8(scratch), status, 0}, seed));
}

void MinePass(const MinePassPlan& plan, const std::byte* bytes, std::byte* sums, uint32_t* status,
              uint64_t seed) {
  Forget("mine", plan.counts, kPassLists, bytes);
  ForEachPassKernel(Launch(plan.counts.data(),
                           MinePassArgs{codecs::U8(bytes), codecs::U8(sums), status, 0}, seed));
}

}  // namespace cairn::kernels::device
