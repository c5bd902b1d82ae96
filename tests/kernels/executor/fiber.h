// SPDX-License-Identifier: Apache-2.0
#pragma once
// A stack of its own, and where it goes on: what a thread of a kernel is on a CPU. Address and
// thread sanitizers are told of every switch, and the thread sanitizer takes none for
// synchronisation.
//
// Thread-safety: all fibers of a process run on one thread at a time.

#include <cstddef>
#include <cstdint>

namespace cairn::kernels::emulated {

class Fiber {
 public:
  // Without a stack: what the caller runs on.
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Without a stack, too: from now on it is what the caller runs on, maybe on another thread.
  void Adopt();

  // Makes the next switch to this fiber call `entry` on a fresh stack, wherever it was.
  // `entry` never returns.
  void Start(void (*entry)());

  // Goes on with `to`, until somebody switches back. REQUIRES: this fiber is running.
  //   is_over  this fiber will not be switched to before it is started anew
  void SwitchTo(Fiber& to, bool is_over);

 private:
  static void Enter();
  void MakeStack();

  void* place_ = nullptr;  // the stack pointer while it is not running, below saved registers
  uint8_t* stack_ = nullptr;
  size_t stack_bytes_ = 0;
  bool owns_stack_ = false;
  void (*entry_)() = nullptr;
  void* asan_ = nullptr;
  void* tsan_ = nullptr;
};

// For data that fibers hand each other, to the thread sanitizer.
void Acquire(const void* at);
void Release(const void* at);
void NoteWrite(void* at, size_t bytes);

}  // namespace cairn::kernels::emulated
