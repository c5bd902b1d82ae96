// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/cpu/cpu.h"

#include <cpuid.h>

namespace cairn::codecs {
namespace {

// __builtin_cpu_supports() of clang 14 does not know F16C.
bool SupportsF16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

bool SupportsAvx2() {
  return __builtin_cpu_supports("avx2") != 0 && SupportsF16c() &&
         __builtin_cpu_supports("bmi2") != 0;
}

bool SupportsAvx512() {
  return SupportsAvx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
}

}  // namespace cairn::codecs
