// SPDX-License-Identifier: Apache-2.0
#pragma once
// A device whose kernels run on the CPU, in memory of their own, and that fails as it is told.
// Thread-safety: Thread-safe, but for what is told and asked of a test's.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/mutex.h"
#include "kernels/runtime.h"
#include "tests/kernels/device/device.h"
#include "tests/support/emulated_memory.h"

namespace cairn {

class EmulatedDevice final : public EmulatedMemory {
 public:
  using EmulatedMemory::EmulatedMemory;

  std::byte* AllocateDevice(size_t bytes) override {
    if (faults().is_full || faults().is_dead) {
      return nullptr;
    }
    ++allocations_;
    return Allocate(bytes);
  }
  void FreeDevice(std::byte* bytes) override {
    --allocations_;
    Free(bytes);
  }
  // Memory that kernels of all such devices may touch.
  static std::byte* Allocate(size_t bytes) {
    const MutexLock lock(executor_);
    return kernels::device::Allocate(bytes, /*is_writable=*/true);
  }
  static void Free(std::byte* bytes) {
    const MutexLock lock(executor_);
    kernels::device::Free(bytes);
  }

  LaunchResult CopyIn(std::byte* to, const std::byte* from, size_t bytes, Stream stream) override {
    absl::SleepFor(absl::Nanoseconds(delay_ns_.exchange(0)));
    return EmulatedMemory::CopyIn(to, from, bytes, stream);
  }
  LaunchResult Decode(const kernels::DecodePlan& plan, const std::byte* bytes, uint32_t* status,
                      Stream stream) override {
    return Put(stream, [=] {
      const MutexLock lock(executor_);
      kernels::device::Decode(plan, bytes, status);
      CheckFinished();
    });
  }
  LaunchResult Encode(const kernels::EncodePlan& plan, const std::byte* bytes,
                      kernels::TileResult* results, uint32_t* status, Stream stream) override {
    for (uint32_t list = 0; list < kernels::kEncodeItemLists; ++list) {
      coded_ += plan.counts[list];
    }
    return Put(stream, [=] {
      const MutexLock lock(executor_);
      kernels::device::Encode(plan, bytes, results, status);
      CheckFinished();
    });
  }

  LaunchResult Attend(const kernels::AttendPlan& plan, const std::byte* bytes, std::byte* scratch,
                      uint32_t* status, Stream stream) override {
    return Put(stream, [=] {
      const MutexLock lock(executor_);
      CAIRN_CHECK(kernels::device::Attend(plan, bytes, scratch, status));
      CheckFinished();
    });
  }

  LaunchResult Mine(const kernels::MinePlan& plan, const std::byte* bytes, std::byte* scratch,
                    uint32_t* status, Stream stream) override {
    return Put(stream, [=] {
      kernels::device::Mine(plan, bytes, scratch, status);
      CheckFinished();
    });
  }
  LaunchResult MinePass(const kernels::MinePassPlan& plan, const std::byte* bytes, std::byte* sums,
                        uint32_t* status, Stream stream) override {
    return Put(stream, [=] {
      kernels::device::MinePass(plan, bytes, sums, status);
      CheckFinished();
    });
  }

  // The next copy to the device takes that long.
  void DelayCopy(absl::Duration delay) { delay_ns_ = absl::ToInt64Nanoseconds(delay); }
  // Of what was encoded, all that is not left as it is.
  uint64_t coded() const { return coded_; }
  // Of its memory, that were not freed.
  int allocations() const { return allocations_; }

 private:
  static void CheckFinished() ABSL_EXCLUSIVE_LOCKS_REQUIRED(executor_) {
    const std::string fault = kernels::device::Finish();
    CAIRN_CHECK(fault.empty(), fault);
  }

  static inline Mutex executor_;  // there is one, and it runs a kernel at a time
  std::atomic<uint64_t> coded_{0};
  std::atomic<int> allocations_{0};
  std::atomic<int64_t> delay_ns_{0};
};

}  // namespace cairn
