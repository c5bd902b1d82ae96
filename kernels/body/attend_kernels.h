// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lists the kernels that compute attention, in the order in which they run. All code that launches
// them, on a device or on the executor of the tests, uses this list.

#include <cstdint>

#include "kernels/attend_records.h"
#include "kernels/body/attend_affine.h"
#include "kernels/body/attend_any.h"
#include "kernels/body/attend_fp8.h"
#include "kernels/body/attend_merge.h"
#include "kernels/body/attend_plain.h"

namespace cairn::kernels {

// Calls launch.Kernel<kernel>(shape) for each kernel. All take AttendArgs.
template <typename Launch>
void ForEachAttendKernel(Launch&& launch) {
  const auto shape = [](AttendList list, uint32_t shared_bytes, uint32_t threads) {
    return KernelShape{static_cast<uint32_t>(list), shared_bytes, threads};
  };
  launch.template Kernel<&AttendAffine<8>>(
      shape(AttendList::kAffine8, sizeof(AffineAttendShared<8>), kAttendThreads));
  launch.template Kernel<&AttendAffine<4>>(
      shape(AttendList::kAffine4, sizeof(AffineAttendShared<4>), kAttendThreads));
  launch.template Kernel<&AttendAffine<2>>(
      shape(AttendList::kAffine2, sizeof(AffineAttendShared<2>), kAttendThreads));
  launch.template Kernel<&AttendFp8<kAttendDim>>(
      shape(AttendList::kFp8, sizeof(Fp8AttendShared<kAttendDim>), kAttendThreads));
  launch.template Kernel<&AttendFp8<kAttendSmallDim>>(
      shape(AttendList::kFp8Of64, sizeof(Fp8AttendShared<kAttendSmallDim>), kAttendThreads));
  launch.template Kernel<&AttendPlain<codecs::DType::kBf16, kAttendDim>>(
      shape(AttendList::kPlainBf16, sizeof(PlainAttendShared<kAttendDim>), kAttendThreads));
  launch.template Kernel<&AttendPlain<codecs::DType::kFp16, kAttendDim>>(
      shape(AttendList::kPlainFp16, sizeof(PlainAttendShared<kAttendDim>), kAttendThreads));
  launch.template Kernel<&AttendPlain<codecs::DType::kBf16, kAttendSmallDim>>(
      shape(AttendList::kPlain64Bf16, sizeof(PlainAttendShared<kAttendSmallDim>), kAttendThreads));
  launch.template Kernel<&AttendPlain<codecs::DType::kFp16, kAttendSmallDim>>(
      shape(AttendList::kPlain64Fp16, sizeof(PlainAttendShared<kAttendSmallDim>), kAttendThreads));
  launch.template Kernel<&AttendAny<NarrowShared>>(
      shape(AttendList::kNarrow, sizeof(NarrowShared), kBlockThreads));
  launch.template Kernel<&AttendAny<WideShared>>(
      shape(AttendList::kWide, sizeof(WideShared), kBlockThreads));
  launch.template Kernel<&MergeAttended>(shape(AttendList::kMerge, 0, kBlockThreads));
}

}  // namespace cairn::kernels
