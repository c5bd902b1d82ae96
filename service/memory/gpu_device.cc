// SPDX-License-Identifier: Apache-2.0
#include "service/memory/gpu_device.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "base/units.h"

namespace cairn {

GpuDevice::~GpuDevice() {
  const MutexLock lock(mutex_);
  CAIRN_CHECK(registrations_ == 0, "memory of the host is still registered");
}

absl::Status GpuDevice::Refused(std::string_view what) const {
  return absl::ResourceExhaustedError(
      absl::StrCat(path_, " (", ToAbsl(runtime_->name()), ") ", ToAbsl(what)));
}

absl::Status GpuDevice::RegisterHost(std::span<std::byte> memory) {
  const MutexLock lock(mutex_);
  CAIRN_CHECK(registrations_ == 0 || registered_.data() == memory.data());
  if (registrations_ == 0 && !memory.empty() &&
      !runtime_->RegisterHost(memory.data(), memory.size())) {
    return Refused(absl::StrCat("does not take ", FormatBytes(memory.size()),
                                " of the host's memory: its driver refuses to register them"));
  }
  registered_ = memory;
  ++registrations_;
  return absl::OkStatus();
}

void GpuDevice::UnregisterHost() {
  const MutexLock lock(mutex_);
  CAIRN_CHECK(registrations_ > 0);
  if (--registrations_ == 0 && !registered_.empty()) {
    runtime_->UnregisterHost(registered_.data());
  }
}

void GpuDevice::Lose(std::string_view why) {
  const std::string reason(why.empty() ? std::string_view("the device failed") : why);
  {
    const MutexLock lock(mutex_);
    if (is_out_.load(std::memory_order_relaxed)) {
      return;
    }
    reason_ = reason;
    is_out_.store(true, std::memory_order_release);
  }
  LogError("gpu", "device is out: its copies are dropped, other tiers and the processor take over",
           {{"path", path_}, {"device", runtime_->name()}, {"error", reason}});
}

std::string GpuDevice::reason() const {
  const MutexLock lock(mutex_);
  return reason_;
}

}  // namespace cairn
