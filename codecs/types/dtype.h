// SPDX-License-Identifier: Apache-2.0
#pragma once
// Element types. They have their own header, without the standard library, so that ISA files and
// CUDA can include it.

#include <cstdint>

namespace cairn::codecs {

// The values are part of the image format. kBytes: opaque bytes, copied and never interpreted.
enum class DType : uint8_t { kBf16 = 1, kFp16 = 2, kFp32 = 3, kBytes = 4 };

}  // namespace cairn::codecs
