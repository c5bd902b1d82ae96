// SPDX-License-Identifier: Apache-2.0
#pragma once
// A device whose kernels run on the CPU, in memory of their own, and that fails as it is told.
// Thread-safety: Thread-compatible.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/runtime.h"
#include "tests/kernels/device/device.h"

namespace cairn {

class EmulatedDevice final : public kernels::Runtime {
 public:
  std::string_view name() const override { return "emulated"; }
  std::byte* AllocateDevice(size_t bytes) override {
    return is_full_ ? nullptr : kernels::device::Allocate(bytes, /*is_writable=*/true);
  }
  void FreeDevice(std::byte* bytes) override { kernels::device::Free(bytes); }
  std::byte* AllocateHost(size_t bytes) override { return new std::byte[bytes]; }
  void FreeHost(std::byte* bytes) override { delete[] bytes; }

  kernels::LaunchResult CopyIn(std::byte* to, const std::byte* from, size_t bytes,
                               kernels::Stream) override {
    absl::SleepFor(std::exchange(delay_, absl::ZeroDuration()));
    kernels::device::CopyIn(to, from, bytes);
    if (damaged_copy_ > 0 && bytes > kDamagedBytesMin && --damaged_copy_ == 0) {
      std::vector<std::byte> last(from + bytes - 1, from + bytes);
      last[0] ^= std::byte{1};
      kernels::device::CopyIn(to + bytes - 1, last.data(), 1);
    }
    return Step();
  }
  kernels::LaunchResult CopyOut(std::byte* to, const std::byte* from, size_t bytes,
                                kernels::Stream) override {
    kernels::device::CopyOut(to, from, bytes);
    return Step();
  }
  kernels::LaunchResult Clear(std::byte* at, size_t bytes, kernels::Stream) override {
    kernels::device::CopyIn(at, std::vector<std::byte>(bytes).data(), bytes);
    return Step();
  }
  kernels::LaunchResult Decode(const kernels::DecodePlan& plan, const std::byte* bytes,
                               uint32_t* status, kernels::Stream) override {
    kernels::device::Decode(plan, bytes, status);
    EXPECT_EQ(kernels::device::Finish(), "");
    return Step();
  }
  kernels::LaunchResult Encode(const kernels::EncodePlan& plan, const std::byte* bytes,
                               kernels::TileResult* results, uint32_t* status,
                               kernels::Stream) override {
    kernels::device::Encode(plan, bytes, results, status);
    for (uint32_t list = 0; list < kernels::kEncodeItemLists; ++list) {
      coded_ += plan.counts[list];
    }
    EXPECT_EQ(kernels::device::Finish(), "");
    return Step();
  }
  kernels::LaunchResult Poll(kernels::Stream, bool* is_over) override {
    *is_over = !hangs_;
    return is_dead_ ? kernels::LaunchResult::kDeviceError : kernels::LaunchResult::kOk;
  }

  // From the call of that number on, which counts from now, all fail.
  void DieAfter(int calls) { calls_left_ = calls; }
  // Damages the copy of that number, which counts from now, to the device, of those of images.
  void Damage(int copy) { damaged_copy_ = copy; }
  // The next copy to the device takes that long.
  void DelayCopy(absl::Duration delay) { delay_ = delay; }
  void SetHung(bool hangs) { hangs_ = hangs; }
  void SetFull() { is_full_ = true; }
  // Of what was encoded, all that is not left as it is.
  uint64_t coded() const { return coded_; }

 private:
  static constexpr size_t kDamagedBytesMin = 2000;  // pages and side objects are less, plans more

  kernels::LaunchResult Step() {
    is_dead_ |= calls_left_ >= 0 && calls_left_-- == 0;
    return is_dead_ ? kernels::LaunchResult::kDeviceError : kernels::LaunchResult::kOk;
  }

  int calls_left_ = -1, damaged_copy_ = 0;
  uint64_t coded_ = 0;
  absl::Duration delay_;
  bool is_dead_ = false, hangs_ = false, is_full_ = false;
};

}  // namespace cairn
