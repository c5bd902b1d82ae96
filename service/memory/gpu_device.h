// SPDX-License-Identifier: Apache-2.0
#pragma once
// A GPU that the GPU tier and the codec share. If one of them finds that the GPU has failed, the
// GPU counts as failed for both until the process ends. No more work is then put on its streams.
//
// Thread-safety: Thread-safe.

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "kernels/runtime.h"

namespace cairn {

class GpuDevice {
 public:
  // `path` is the name for operators, such as "gpu:0". REQUIRES: `runtime` is not null.
  GpuDevice(std::unique_ptr<kernels::Runtime> runtime, std::string path)
      : runtime_(std::move(runtime)), path_(std::move(path)) {}
  ~GpuDevice();  // REQUIRES: no memory is registered
  GpuDevice(const GpuDevice&) = delete;
  GpuDevice& operator=(const GpuDevice&) = delete;

  kernels::Runtime& runtime() const { return *runtime_; }
  const std::string& path() const { return path_; }

  // Returns ResourceExhausted with a text like "gpu:0 (NVIDIA H200) has no stream left". `what` is
  // the missing resource.
  absl::Status Refused(std::string_view what) const;

  // Registers host memory, so that the device can copy it without the CPU. All users of the device
  // must register the same memory. Errors: ResourceExhausted if the driver refuses.
  absl::Status RegisterHost(std::span<std::byte> memory);
  // Undoes a RegisterHost(). REQUIRES: that call has succeeded, each is undone only once, and the
  // caller has no work on a stream.
  void UnregisterHost();

  // Loads with acquire order, so that a thread that sees true also sees the reason.
  bool is_out() const { return is_out_.load(std::memory_order_acquire); }
  // Marks the device as failed. The first call sets and logs the reason.
  void Lose(std::string_view why);
  std::string reason() const;  // empty while the device works

 private:
  const std::unique_ptr<kernels::Runtime> runtime_;
  const std::string path_;
  std::atomic<bool> is_out_{false};  // stored with release order by Lose()
  mutable Mutex mutex_;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  std::span<std::byte> registered_ ABSL_GUARDED_BY(mutex_);
  int registrations_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
