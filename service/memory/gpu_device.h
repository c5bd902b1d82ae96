// SPDX-License-Identifier: Apache-2.0
#pragma once
// A GPU that the GPU tier and the codec share. If one of them sees it fail, it is out for both
// until the process ends: no more work is put on its streams.
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
  // `path` is its name for operators, as in "gpu:0". REQUIRES: `runtime` is not null.
  GpuDevice(std::unique_ptr<kernels::Runtime> runtime, std::string path)
      : runtime_(std::move(runtime)), path_(std::move(path)) {}
  ~GpuDevice();  // REQUIRES: no memory is registered
  GpuDevice(const GpuDevice&) = delete;
  GpuDevice& operator=(const GpuDevice&) = delete;

  kernels::Runtime& runtime() const { return *runtime_; }
  const std::string& path() const { return path_; }

  // Returns ResourceExhausted: "gpu:0 (NVIDIA H200) has no stream left", for `what`.
  absl::Status Refused(std::string_view what) const;

  // Registers host memory, so that copies need no processor. All users of the device register the
  // same memory. Errors: ResourceExhausted if the driver refuses.
  absl::Status RegisterHost(std::span<std::byte> memory);
  // REQUIRES: as many calls as successful RegisterHost() calls; no work of the caller is on a
  // stream.
  void UnregisterHost();

  // Acquire: a thread that sees true also sees the reason.
  bool is_out() const { return is_out_.load(std::memory_order_acquire); }
  // Marks the device as out. The first call sets and logs the reason.
  void Lose(std::string_view why);
  std::string reason() const;  // empty: it works

 private:
  const std::unique_ptr<kernels::Runtime> runtime_;
  const std::string path_;
  std::atomic<bool> is_out_{false};  // released by Lose(), acquired by is_out()
  mutable Mutex mutex_;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  std::span<std::byte> registered_ ABSL_GUARDED_BY(mutex_);
  int registrations_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
