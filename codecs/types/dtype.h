// SPDX-License-Identifier: Apache-2.0
#pragma once
// Element types. A header of its own, free of the standard library, so that ISA files and CUDA may
// include it.

#include <cstdint>

namespace cairn::codecs {

// The values are part of the image format. kBytes: opaque, copied and never interpreted.
enum class DType : uint8_t { kBf16 = 1, kFp16 = 2, kFp32 = 3, kBytes = 4 };

}  // namespace cairn::codecs
