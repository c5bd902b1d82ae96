// SPDX-License-Identifier: Apache-2.0
// Kernels that attend, on the executor.
#include "kernels/body/attend_kernels.h"
#include "tests/kernels/device/emulated_launch.h"

namespace cairn::kernels::device {

bool Attend(const AttendPlan& plan, const std::byte* bytes, std::byte* scratch, uint32_t* status,
            uint64_t seed) {
  SharedMemoryCheck check(plan.counts.data());
  ForEachAttendKernel(check);
  if (!check.suffices()) return false;
  Forget("attend", plan.counts, kAttendPartLists, bytes);
  ForEachAttendKernel(
      Launch(plan.counts.data(),
             AttendArgs{codecs::U8(bytes), reinterpret_cast<float*>(scratch), status, 0}, seed));
  return true;
}

}  // namespace cairn::kernels::device
