// SPDX-License-Identifier: Apache-2.0
#pragma once
// Says which kernel decodes which list of a plan. Each form has a general kernel named
// Decode<Name>Any(), whose shared memory is <Name>DecodeShared. All code that launches kernels, on
// a device or on the executor of the tests, uses this list.

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

// Calls launch.Kernel<kernel>(shape) for each decode kernel. Each kernel takes DecodeArgs.
template <typename Launch>
void ForEachDecodeKernel(Launch&& launch) {
  using codecs::DType;
  const auto shape = [](DecodeList list, uint32_t shared_bytes) {
    return KernelShape{static_cast<uint32_t>(list), shared_bytes};
  };
  launch.template Kernel<&VerifyCrcs>(shape(DecodeList::kVerify, sizeof(CrcTable)));
#define CAIRN_FORM(name, ...)                 \
  launch.template Kernel<&Decode##name##Any>( \
      shape(GeneralDecodeList(codecs::FormId::k##name), sizeof(name##DecodeShared)));
  CAIRN_TILE_FORMS(CAIRN_FORM, CAIRN_FORM)
#undef CAIRN_FORM
  launch.template Kernel<&DecodeFp8<DType::kBf16>>(
      shape(DecodeList::kFp8Bf16, sizeof(AffineShared)));
  launch.template Kernel<&DecodeFp8<DType::kFp16>>(
      shape(DecodeList::kFp8Fp16, sizeof(AffineShared)));
  for (uint32_t tables = 0; tables < kStepsFastLists; ++tables) {
    launch.template Kernel<&DecodeStepsFast>(KernelShape{
        static_cast<uint32_t>(DecodeList::kStepsFast) + tables, sizeof(StepFastShared)});
  }
  launch.template Kernel<&DecodeStripsFast<DType::kBf16>>(
      shape(DecodeList::kStripsBf16, sizeof(FastShared)));
  launch.template Kernel<&DecodeStripsFast<DType::kFp16>>(
      shape(DecodeList::kStripsFp16, sizeof(FastShared)));
  launch.template Kernel<&DecodePlanesFast<DType::kBf16>>(
      shape(DecodeList::kPlanesBf16, sizeof(PlanesShared)));
  launch.template Kernel<&DecodePlanesFast<DType::kFp16>>(
      shape(DecodeList::kPlanesFp16, sizeof(PlanesShared)));
  ForEachAffineKernel<8, DType::kBf16>(launch);
  ForEachAffineKernel<8, DType::kFp16>(launch);
  ForEachAffineKernel<4, DType::kBf16>(launch);
  ForEachAffineKernel<4, DType::kFp16>(launch);
  ForEachAffineKernel<2, DType::kBf16>(launch);
  ForEachAffineKernel<2, DType::kFp16>(launch);
}

}  // namespace cairn::kernels
