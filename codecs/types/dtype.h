// SPDX-License-Identifier: Apache-2.0
#pragma once
// Element types. They have their own header, with only the integer types of the standard
// library, so that ISA files (codecs/backend/cpu/, each compiled for one instruction set) and CUDA
// can include it.

#include <cstdint>

namespace cairn::codecs {

// The values are part of the image format. kBytes: opaque bytes, copied and never interpreted.
// kFp8E4m3: 4 bits of exponent, 3 of mantissa, no infinity ("e4m3fn"). kFp8E5m2: 5 bits of exponent
// and 2 of mantissa, like the high byte of an fp16.
enum class DType : uint8_t {
  kBf16 = 1,
  kFp16 = 2,
  kFp32 = 3,
  kBytes = 4,
  kFp8E4m3 = 5,
  kFp8E5m2 = 6
};

}  // namespace cairn::codecs
