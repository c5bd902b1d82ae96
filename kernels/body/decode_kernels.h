// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which kernel does which list of a plan. Whoever launches kernels, on a device or on the executor
// of tests, goes through here.

#include <cstddef>
#include <cstdint>

#include "kernels/body/affine_decode.h"
#include "kernels/body/crc.h"
#include "kernels/body/fp8_decode.h"
#include "kernels/body/hot_decode.h"
#include "kernels/body/kept_decode.h"
#include "kernels/body/mixed_decode.h"
#include "kernels/body/patterned_decode.h"
#include "kernels/body/raw_decode.h"
#include "kernels/body/step_decode.h"
#include "kernels/body/step_decode_fast.h"
#include "kernels/body/strips.h"
#include "kernels/body/strips_fast.h"
#include "kernels/body/strips_planes.h"
#include "kernels/records.h"

namespace cairn::kernels {

template <uint32_t kBits, codecs::DType kDType, typename Launch>
void ForEachAffineKernel(Launch&& launch) {
  constexpr uint32_t kBytes = sizeof(AffineShared);
  launch.template Kernel<&DecodeAffine<kBits, kDType, false>>(
      KernelShape{AffineFastList(kBits, kDType, false), kBytes});
  launch.template Kernel<&DecodeAffine<kBits, kDType, true>>(
      KernelShape{AffineFastList(kBits, kDType, true), kBytes});
}

// Calls launch.Kernel<kernel>(shape) for every decoding kernel; each takes DecodeArgs.
template <typename Launch>
void ForEachDecodeKernel(Launch&& launch) {
  using codecs::DType;
  launch.template Kernel<&VerifyCrcs>(
      KernelShape{static_cast<uint32_t>(DecodeList::kVerify), sizeof(CrcTable)});
  launch.template Kernel<&DecodeRaw>(
      KernelShape{static_cast<uint32_t>(DecodeList::kRaw), sizeof(TokenPlaces)});
  launch.template Kernel<&DecodeAffineAny>(
      KernelShape{static_cast<uint32_t>(DecodeList::kAffineAny), sizeof(TokenPlaces)});
  launch.template Kernel<&DecodeFp8Any>(
      KernelShape{static_cast<uint32_t>(DecodeList::kFp8Any), sizeof(TokenPlaces)});
  launch.template Kernel<&DecodeFp8<DType::kBf16>>(
      KernelShape{static_cast<uint32_t>(DecodeList::kFp8Bf16), sizeof(AffineShared)});
  launch.template Kernel<&DecodeFp8<DType::kFp16>>(
      KernelShape{static_cast<uint32_t>(DecodeList::kFp8Fp16), sizeof(AffineShared)});
  launch.template Kernel<&DecodePatternedAny>(
      KernelShape{static_cast<uint32_t>(DecodeList::kPatternedAny), sizeof(PatternedShared)});
  launch.template Kernel<&DecodeMixedAny>(
      KernelShape{static_cast<uint32_t>(DecodeList::kMixedAny), sizeof(MixedShared)});
  launch.template Kernel<&DecodeKeptAny>(
      KernelShape{static_cast<uint32_t>(DecodeList::kKeptAny), sizeof(KeptShared)});
  launch.template Kernel<&DecodeStepsAny>(
      KernelShape{static_cast<uint32_t>(DecodeList::kStepsAny), sizeof(StepShared)});
  for (uint32_t tables = 0; tables < kStepsFastLists; ++tables) {
    launch.template Kernel<&DecodeStepsFast>(KernelShape{
        static_cast<uint32_t>(DecodeList::kStepsFast) + tables, sizeof(StepFastShared)});
  }
  launch.template Kernel<&DecodeHotAny>(
      KernelShape{static_cast<uint32_t>(DecodeList::kHotAny), sizeof(HotShared)});
  launch.template Kernel<&DecodeStripsAny>(
      KernelShape{static_cast<uint32_t>(DecodeList::kStripsAny), sizeof(StripsShared)});
  launch.template Kernel<&DecodeStripsFast<DType::kBf16>>(
      KernelShape{static_cast<uint32_t>(DecodeList::kStripsBf16), sizeof(FastShared)});
  launch.template Kernel<&DecodeStripsFast<DType::kFp16>>(
      KernelShape{static_cast<uint32_t>(DecodeList::kStripsFp16), sizeof(FastShared)});
  launch.template Kernel<&DecodePlanesFast<DType::kBf16>>(
      KernelShape{static_cast<uint32_t>(DecodeList::kPlanesBf16), sizeof(PlanesShared)});
  launch.template Kernel<&DecodePlanesFast<DType::kFp16>>(
      KernelShape{static_cast<uint32_t>(DecodeList::kPlanesFp16), sizeof(PlanesShared)});
  ForEachAffineKernel<8, DType::kBf16>(launch);
  ForEachAffineKernel<8, DType::kFp16>(launch);
  ForEachAffineKernel<4, DType::kBf16>(launch);
  ForEachAffineKernel<4, DType::kFp16>(launch);
  ForEachAffineKernel<2, DType::kBf16>(launch);
  ForEachAffineKernel<2, DType::kFp16>(launch);
}

}  // namespace cairn::kernels
