// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/device_staging.h"

namespace cairn {

absl::Status DeviceStaging::Take(DeviceCalls& calls, size_t bytes,
                                 absl::FunctionRef<absl::StatusOr<Buffer>()> lend) {
  const bool is_current = !is_stale_ && (!lent_.has_value() || lent_->is_current());
  if (data_ != nullptr && is_current) {
    return absl::OkStatus();
  }
  GiveBack();
  kernels::Runtime& device = calls.device();
  absl::StatusOr<Buffer> lent = lend();
  if (lent.ok() && device.RegisterHost(lent->bytes().data(), bytes)) {
    lent_.emplace(*std::move(lent));
    data_ = lent_->bytes().data();
  } else if (lent.ok() || absl::IsResourceExhausted(lent.status())) {
    data_ = device.AllocateHost(bytes);
  } else {
    return lent.status();
  }
  if (data_ == nullptr) {
    return calls.NoRoom("images of a batch", bytes);
  }
  device_ = &device;
  return absl::OkStatus();
}

void DeviceStaging::GiveBack() {
  if (data_ != nullptr) {
    lent_.has_value() ? device_->UnregisterHost(data_) : device_->FreeHost(data_);
  }
  lent_.reset();
  data_ = nullptr;
  is_stale_ = false;
}

}  // namespace cairn
