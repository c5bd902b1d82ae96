// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/cpu/cpu.h"
#include "codecs/backend/cpu/simd_avx512.h"
#include "codecs/backend/cpu/simd_blocks.h"
#include "codecs/backend/cpu/simd_groups.h"
#include "codecs/backend/cpu/simd_patterns.h"
#include "codecs/backend/cpu/simd_spread.h"
#include "codecs/backend/cpu/simd_strips.h"
// The operations, in the primitives above.
#include "codecs/backend/cpu/operations.inl"

namespace cairn::codecs {

#define CAIRN_OPERATION(member, function) .member = function,
extern const Backend kAvx512Backend = {
    .name = "avx512", .is_supported = SupportsAvx512, CAIRN_BACKEND_OPERATIONS(CAIRN_OPERATION)};
#undef CAIRN_OPERATION

}  // namespace cairn::codecs
