// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/reference/reference.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs::reference {

float LoadElement(DType dtype, const uint8_t* source, uint64_t index) {
  switch (dtype) {
    case DType::kBf16:
      return Bf16ToFloat(Load<uint16_t>(source + 2 * index));
    case DType::kFp16:
      return Fp16ToFloat(Load<uint16_t>(source + 2 * index));
    case DType::kFp32:
      return Load<float>(source + 4 * index);
    case DType::kBytes:
      break;
  }
  return 0.0F;
}

void StoreElement(DType dtype, uint8_t* target, uint64_t index, float value) {
  switch (dtype) {
    case DType::kBf16:
      Store(target + 2 * index, FloatToBf16(value));
      break;
    case DType::kFp16:
      Store(target + 2 * index, FloatToFp16(value, Fp16Rounding::kNearestEven));
      break;
    case DType::kFp32:
      Store(target + 4 * index, value);
      break;
    case DType::kBytes:
      break;
  }
}

float LoadPatternValue(const uint8_t* pattern, uint32_t channel) {
  return Fp16ToFloat(Load<uint16_t>(pattern + 2 * uint64_t{channel}));
}

AffineParams LoadParams(const uint8_t* params, uint64_t group) {
  return {Load<uint16_t>(params + 4 * group), Load<uint16_t>(params + 4 * group + 2)};
}

void StoreParams(uint8_t* params, uint64_t group, AffineParams pair) {
  Store(params + 4 * group, pair.min);
  Store(params + 4 * group + 2, pair.range);
}

}  // namespace cairn::codecs::reference
