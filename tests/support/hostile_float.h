// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sets the floating-point environment to unusual values that a caller may have left. It rounds
// towards zero, and flushes denormals if the CPU can.

#include <gtest/gtest.h>

#include <cfenv>
#include <cstdint>

namespace cairn {

#if defined(__x86_64__)
// Returns the control bits, including those that the C library does not know.
inline uint32_t FloatControl() { return __builtin_ia32_stmxcsr(); }
inline void SetFloatControl(uint32_t control) { __builtin_ia32_ldmxcsr(control); }
inline constexpr uint32_t kFlushDenormals = 0x8040;  // FTZ and DAZ
#else
inline uint32_t FloatControl() { return static_cast<uint32_t>(std::fegetround()); }
inline void SetFloatControl(uint32_t control) { std::fesetround(static_cast<int>(control)); }
inline constexpr uint32_t kFlushDenormals = 0;
#endif

// Changes the environment of the calling thread while it exists. Fails the test if somebody has
// changed the environment meanwhile.
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

// Returns the result of call(), which must be the same in a hostile environment.
template <typename Call>
auto InAnyFloat(Call call) {
  auto result = call();
  const HostileFloat hostile;
  EXPECT_EQ(call(), result) << "another result in a hostile floating-point environment";
  return result;
}

}  // namespace cairn
