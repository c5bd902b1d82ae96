// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lists the encode kernels in the order in which they run. Each form except raw has a general
// kernel named Encode<Name>Any(), whose shared memory is <Name>EncodeShared. All code that launches
// kernels, on a device or on the executor of the tests, uses this list.

#include <cstdint>

#include "kernels/body/affine_encode.h"
#include "kernels/body/affine_encode_fast.h"
#include "kernels/body/fp8_encode.h"
#include "kernels/body/hot_encode.h"
#include "kernels/body/image_encode.h"
#include "kernels/body/kept_encode.h"
#include "kernels/body/mixed_encode.h"
#include "kernels/body/narrow.h"
#include "kernels/body/patterned_encode.h"
#include "kernels/body/step_encode.h"
#include "kernels/body/step_narrow.h"
#include "kernels/body/strips_encode.h"
#include "kernels/records.h"

namespace cairn::kernels {

template <uint32_t kBits, codecs::DType kDType, typename Launch>
void LaunchAffineFast(Launch&& launch) {
  launch.template Kernel<&EncodeAffineFast<kBits, kDType>>(KernelShape{
      static_cast<uint32_t>(AffineEncodeList(kBits, kDType)), sizeof(AffineFastShared)});
}

// Calls launch.Kernel<kernel>(shape) for each kernel. Each takes EncodeArgs.
template <typename Launch>
void ForEachEncodeKernel(Launch&& launch) {
  const auto shape = [](EncodeList list, uint32_t shared_bytes) {
    return KernelShape{static_cast<uint32_t>(list), shared_bytes};
  };
  LaunchAffineFast<8, codecs::DType::kBf16>(launch);
  LaunchAffineFast<8, codecs::DType::kFp16>(launch);
  LaunchAffineFast<4, codecs::DType::kBf16>(launch);
  LaunchAffineFast<4, codecs::DType::kFp16>(launch);
  LaunchAffineFast<2, codecs::DType::kBf16>(launch);
  LaunchAffineFast<2, codecs::DType::kFp16>(launch);
#define CAIRN_FORM(name, ...)                 \
  launch.template Kernel<&Encode##name##Any>( \
      shape(GeneralEncodeList(codecs::FormId::k##name), sizeof(name##EncodeShared)));
  CAIRN_CODED_FORMS(CAIRN_FORM, CAIRN_FORM)
#undef CAIRN_FORM
  launch.template Kernel<&NarrowTiles>(shape(EncodeList::kNarrowed, sizeof(EncodeShared)));
  launch.template Kernel<&ThinTiles>(shape(EncodeList::kThinned, sizeof(EncodeShared)));
  launch.template Kernel<&NarrowSteps>(shape(EncodeList::kNarrowSteps, sizeof(StepsDecodeShared)));
  launch.template Kernel<&PlaceTiles>(shape(EncodeList::kPlace, 0));
  launch.template Kernel<&StoreTiles>(shape(EncodeList::kStore, sizeof(StoreShared)));
  launch.template Kernel<&SumCrcs>(shape(EncodeList::kSum, sizeof(CrcTable)));
}

}  // namespace cairn::kernels
