// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tells ThreadSanitizer that an object passes from one thread to another through an uninstrumented
// library, whose synchronization it cannot see. Does nothing without that sanitizer.
//
// Thread-safety: Thread-safe.

#ifdef __SANITIZE_THREAD__
extern "C" {
void __tsan_acquire(void* address);  // NOLINT(bugprone-reserved-identifier): the sanitizer's
void __tsan_release(void* address);  // NOLINT(bugprone-reserved-identifier): the sanitizer's
}
#endif

namespace cairn {

// Call it before the library can call the next thread.
inline void HandOver([[maybe_unused]] const void* object) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(const_cast<void*>(object));
#endif
}

// Call it first in the next thread.
inline void TakeOver([[maybe_unused]] const void* object) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(const_cast<void*>(object));
#endif
}

}  // namespace cairn
