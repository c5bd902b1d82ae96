// SPDX-License-Identifier: Apache-2.0
#pragma once
// The floating-point environment that codecs/numbers/math.h needs, for the life of a scope:
// rounding to nearest even, denormals kept, no traps. The caller's environment, its sticky flags
// included, is back when the scope ends. Every function of codecs/ that is called from outside and
// whose result depends on arithmetic has one: the threads are an engine's, and engines flush
// denormals.
//
// Thread-safety: the environment is the thread's own; construct and destroy it there.
// Cost: four instructions.

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
  // The clobber of memory keeps loads and stores, and so the arithmetic between them, in the scope.
#if defined(__x86_64__)
  using Environment = uint32_t;                 // MXCSR
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
  using Environment = uint64_t;  // FPCR; its sticky flags are in another register, and stay
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
