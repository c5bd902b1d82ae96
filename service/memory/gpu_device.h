// SPDX-License-Identifier: Apache-2.0
#pragma once
// A device of the daemon's, for those who work on it: the GPU tier and the codec. Either finds that
// it fails, and from then on it is out for both, until the process ends: nothing more is put on any
// of its streams.
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
  // `path`: how operators name it: "gpu:0". REQUIRES: `runtime` is not null.
  GpuDevice(std::unique_ptr<kernels::Runtime> runtime, std::string path)
      : runtime_(std::move(runtime)), path_(std::move(path)) {}
  ~GpuDevice();  // REQUIRES: what was registered is let go
  GpuDevice(const GpuDevice&) = delete;
  GpuDevice& operator=(const GpuDevice&) = delete;

  kernels::Runtime& runtime() const { return *runtime_; }
  const std::string& path() const { return path_; }

  // ResourceExhausted: "gpu:0 (NVIDIA H200) has no stream left", of `what`.
  absl::Status Refused(std::string_view what) const;

  // Memory of the host that copies go from and to without help of the processor; each who works on
  // the device asks for the same. ResourceExhausted: the driver refuses.
  absl::Status RegisterHost(std::span<std::byte> memory);
  // REQUIRES: as often as RegisterHost() was OK, and nothing of the caller's is on a stream.
  void UnregisterHost();

  // Acquire: who sees it out sees why.
  bool is_out() const { return is_out_.load(std::memory_order_acquire); }
  // From now on it is out. The first call says why, and logs it.
  void Lose(std::string_view why);
  std::string reason() const;  // why it is out; empty: it is not

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
