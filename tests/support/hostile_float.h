// SPDX-License-Identifier: Apache-2.0
#pragma once
// Floating point as a caller may leave it: rounds towards zero, and flushes denormals where the CPU
// can.

#include <gtest/gtest.h>

#include <cfenv>
#include <cstdint>

namespace cairn {

#if defined(__x86_64__)
// Beside rounding, control bits that are none of the C library's.
inline uint32_t FloatControl() { return __builtin_ia32_stmxcsr(); }
inline void SetFloatControl(uint32_t control) { __builtin_ia32_ldmxcsr(control); }
inline constexpr uint32_t kFlushDenormals = 0x8040;  // FTZ and DAZ
#else
inline uint32_t FloatControl() { return static_cast<uint32_t>(std::fegetround()); }
inline void SetFloatControl(uint32_t control) { std::fesetround(static_cast<int>(control)); }
inline constexpr uint32_t kFlushDenormals = 0;
#endif

// Of the calling thread while it lives; fails the test where somebody has changed it meanwhile.
class HostileFloat {
 public:
  HostileFloat() {
    std::fesetround(FE_TOWARDZERO);
    SetFloatControl(FloatControl() | kFlushDenormals);
    hostile_ = FloatControl();
  }
  ~HostileFloat() {
    const uint32_t now = FloatControl();
    SetFloatControl(caller_);
    EXPECT_EQ(now, hostile_) << "the caller's floating-point environment was changed";
  }
  HostileFloat(const HostileFloat&) = delete;
  HostileFloat& operator=(const HostileFloat&) = delete;

 private:
  const uint32_t caller_ = FloatControl();
  const int rounding_ = std::fegetround();
  uint32_t hostile_ = 0;
};

// What call() returns, which has to be the same in a hostile environment.
template <typename Call>
auto InAnyFloat(Call call) {
  auto result = call();
  const HostileFloat hostile;
  EXPECT_EQ(call(), result) << "another result in a hostile floating-point environment";
  return result;
}

}  // namespace cairn
