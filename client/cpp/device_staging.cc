// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/device_staging.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"

namespace cairn {

absl::Status DeviceStaging::Take(kernels::Runtime& device, size_t bytes,
                                 absl::FunctionRef<absl::StatusOr<Buffer>()> lend) {
  const bool is_current = !is_stale_ && (!lent_.has_value() || lent_->is_current());
  if (data_ != nullptr && is_current) {
    return absl::OkStatus();
  }
  GiveBack();
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
    return absl::ResourceExhaustedError(absl::StrCat("a batch of images takes ", bytes,
                                                     " bytes of the host, for which ",
                                                     ToAbsl(device.name()), " has no room"));
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
