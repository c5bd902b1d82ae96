// SPDX-License-Identifier: Apache-2.0
#include "codecs/cpu/cpu.h"

namespace cairn::codecs {

bool SupportsAvx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0 &&
         __builtin_cpu_supports("bmi2") != 0;
}

bool SupportsAvx512() {
  return SupportsAvx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
}

}  // namespace cairn::codecs
