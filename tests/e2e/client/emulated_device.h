// SPDX-License-Identifier: Apache-2.0
#pragma once
// A device whose kernels run on the CPU, in memory of their own, and that fails as it is told.
// Thread-safety: Thread-compatible.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/runtime.h"
#include "tests/kernels/device/device.h"
#include "tests/support/emulated_memory.h"

namespace cairn {

class EmulatedDevice final : public EmulatedMemory {
 public:
  std::byte* AllocateDevice(size_t bytes) override {
    return faults().is_full ? nullptr : kernels::device::Allocate(bytes, /*is_writable=*/true);
  }
  void FreeDevice(std::byte* bytes) override { kernels::device::Free(bytes); }

  LaunchResult CopyIn(std::byte* to, const std::byte* from, size_t bytes, Stream stream) override {
    absl::SleepFor(std::exchange(delay_, absl::ZeroDuration()));
    return EmulatedMemory::CopyIn(to, from, bytes, stream);
  }
  LaunchResult Decode(const kernels::DecodePlan& plan, const std::byte* bytes, uint32_t* status,
                      Stream stream) override {
    return Put(stream, [=] {
      kernels::device::Decode(plan, bytes, status);
      EXPECT_EQ(kernels::device::Finish(), "");
    });
  }
  LaunchResult Encode(const kernels::EncodePlan& plan, const std::byte* bytes,
                      kernels::TileResult* results, uint32_t* status, Stream stream) override {
    for (uint32_t list = 0; list < kernels::kEncodeItemLists; ++list) {
      coded_ += plan.counts[list];
    }
    return Put(stream, [=] {
      kernels::device::Encode(plan, bytes, results, status);
      EXPECT_EQ(kernels::device::Finish(), "");
    });
  }

  // The next copy to the device takes that long.
  void DelayCopy(absl::Duration delay) { delay_ = delay; }
  // Of what was encoded, all that is not left as it is.
  uint64_t coded() const { return coded_; }

 private:
  uint64_t coded_ = 0;
  absl::Duration delay_;
};

}  // namespace cairn
