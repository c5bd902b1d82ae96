// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/executor/fiber.h"

#include <sys/mman.h>

#include "base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// This file is compiled without the thread sanitizer, and says itself what it has to know.
#if defined(CAIRN_TSAN_FIBERS)
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_write_range(void* at, unsigned long bytes);
void __tsan_acquire(void* at);
void __tsan_release(void* at);
}
#endif

// Saves the registers that a call keeps and the stack pointer, and goes on where `to` was saved.
extern "C" void cairn_fiber_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl cairn_fiber_switch
.type cairn_fiber_switch,@function
cairn_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cairn_fiber_switch,.-cairn_fiber_switch
)");
#else
#error "tests/kernels/executor has no switch of stacks for this CPU"
#endif

namespace cairn::kernels::emulated {
namespace {

constexpr size_t kStackBytes = size_t{128} << 10;
constexpr size_t kGuardBytes = 4096;
constexpr int kSavedRegisters = 6;

Fiber* leaving = nullptr;
Fiber* arriving = nullptr;

}  // namespace

Fiber::Fiber() { Adopt(); }

void Fiber::Adopt() {
#if defined(CAIRN_TSAN_FIBERS)
  tsan_ = __tsan_get_current_fiber();
#endif
}

Fiber::~Fiber() {
  if (!owns_stack_) return;
  munmap(stack_ - kGuardBytes, kStackBytes + kGuardBytes);
#if defined(CAIRN_TSAN_FIBERS)
  __tsan_destroy_fiber(tsan_);
#endif
}

void Fiber::MakeStack() {
  void* room = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CAIRN_CHECK(room != MAP_FAILED && mprotect(room, kGuardBytes, PROT_NONE) == 0);
  stack_ = static_cast<uint8_t*>(room) + kGuardBytes;
  // Stacks that ended alike would all use the same few lines of the cache.
  static size_t made = 0;
  stack_bytes_ = kStackBytes - made++ % 32 * 128;
  owns_stack_ = true;
}

void Fiber::Start(void (*entry)()) {
#if defined(CAIRN_TSAN_FIBERS)
  if (!owns_stack_) tsan_ = __tsan_create_fiber(0);
#endif
  if (!owns_stack_) MakeStack();
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_, stack_bytes_);
#endif
  entry_ = entry;
  asan_ = nullptr;
  // As if Enter() had been called, by nobody, and had called the switch.
  auto** top = reinterpret_cast<void**>(stack_ + stack_bytes_ - 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Fiber::Enter);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  place_ = top;
}

void Fiber::SwitchTo(Fiber& to, [[maybe_unused]] bool is_over) {
  leaving = this;
  arriving = &to;
#if defined(CAIRN_TSAN_FIBERS)
  constexpr unsigned kNoSynchronisation = 1;
  __tsan_switch_to_fiber(to.tsan_, kNoSynchronisation);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(is_over ? nullptr : &asan_, to.stack_, to.stack_bytes_);
#endif
  cairn_fiber_switch(&place_, to.place_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(asan_, nullptr, nullptr);
#endif
}

void Fiber::Enter() {
#if defined(__SANITIZE_ADDRESS__)
  const void* stack = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  if (!leaving->owns_stack_) {  // nobody else knows what the caller of all runs on
    leaving->stack_ = static_cast<uint8_t*>(const_cast<void*>(stack));
    leaving->stack_bytes_ = bytes;
  }
#endif
  arriving->entry_();
}

#if defined(CAIRN_TSAN_FIBERS)
void Acquire(const void* at) { __tsan_acquire(const_cast<void*>(at)); }
void Release(const void* at) { __tsan_release(const_cast<void*>(at)); }
void NoteWrite(void* at, size_t bytes) { __tsan_write_range(at, bytes); }
#else
void Acquire(const void*) {}
void Release(const void*) {}
void NoteWrite(void*, size_t) {}
#endif

}  // namespace cairn::kernels::emulated
