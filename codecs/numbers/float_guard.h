// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sets the floating-point environment that codecs/numbers/math.h needs for a scope: rounding to
// nearest even, denormals kept, no traps. At the end of the scope, the caller's environment is
// restored, including its sticky flags. Every public function of codecs/ whose result depends on
// arithmetic has a guard, because these functions run on an engine's threads, and engines flush
// denormals.
//
// Thread-safety: the environment belongs to the thread; construct and destroy the guard on the same
// thread. Cost: four instructions.

#include <cstdint>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <cfenv>
#endif

namespace cairn::codecs {

class FloatGuard {
 public:
  FloatGuard() : caller_(Load()) { Store(kOurs); }
  ~FloatGuard() { Store(caller_); }
  FloatGuard(const FloatGuard&) = delete;
  FloatGuard& operator=(const FloatGuard&) = delete;

 private:
  // The memory clobber keeps loads and stores inside the scope, and with them the arithmetic.
#if defined(__x86_64__)
  using Environment = uint32_t;                 // the register MXCSR
  static constexpr Environment kOurs = 0x1F80;  // all exceptions masked, and nothing else
  static Environment Load() {
    Environment value = 0;
    asm volatile("stmxcsr %0" : "=m"(value) : : "memory");
    return value;
  }
  static void Store(const Environment& value) {
    asm volatile("ldmxcsr %0" : : "m"(value) : "memory");
  }
#elif defined(__aarch64__)
  using Environment = uint64_t;  // FPCR; its sticky flags are in another register and stay
  static constexpr Environment kOurs = 0;
  static Environment Load() {
    Environment value = 0;
    asm volatile("mrs %0, fpcr" : "=r"(value) : : "memory");
    return value;
  }
  static void Store(const Environment& value) {
    asm volatile("msr fpcr, %0" : : "r"(value) : "memory");
  }
#else
  using Environment = std::fenv_t;
  inline static const Environment kOurs = *FE_DFL_ENV;
  static Environment Load() {
    Environment value;
    std::fegetenv(&value);
    return value;
  }
  static void Store(const Environment& value) { std::fesetenv(&value); }
#endif

  const Environment caller_;
};

}  // namespace cairn::codecs
