// SPDX-License-Identifier: Apache-2.0
// What operators are told of the GPU tier, and what they may do with it.
#include "absl/strings/str_cat.h"
#include "service/tier/gpu/gpu_tier.h"

namespace cairn {
namespace {

constexpr MetricLabel kGpuLabel[] = {{"tier", "gpu"}};

}  // namespace

std::vector<DeviceReport> GpuTier::Devices() const {
  DeviceReport report;
  report.path = device_->path();
  report.capacity_bytes = capacity_bytes_;
  report.written_bytes = bytes_[kWrite].Value();
  report.read_bytes = bytes_[kRead].Value();
  report.fault_count = faults_.Value();
  report.engine = device_->runtime().name();
  const MutexLock lock(mutex_);
  const bool is_out = device_->is_out();
  report.state = is_out        ? DeviceState::kOut
                 : is_retired_ ? DeviceState::kReadOnly
                               : DeviceState::kOk;
  report.reason = is_out ? device_->reason() : is_retired_ ? "retired" : "";
  report.is_retired = is_retired_;
  report.used_bytes = used_bytes_;
  report.image_count = image_count_;
  for (size_t direction = 0; direction < kDirectionCount; ++direction) {
    report.transfer_count += waiting_[direction].size() + on_stream_[direction];
  }
  return {report};
}

absl::Status GpuTier::SetRetired(std::string_view path, bool is_retired) {
  if (path != device_->path()) {
    return CopyTier::SetRetired(path, is_retired);
  }
  if (device_->is_out()) {
    return absl::FailedPreconditionError(
        absl::StrCat(device_->path(), " is out until the daemon restarts: ", device_->reason()));
  }
  const MutexLock lock(mutex_);
  is_retired_ = is_retired;
  return absl::OkStatus();
}

void GpuTier::Report(MetricSink& sink) const {
  const DeviceReport device = Devices().front();
  sink.AddGauge("cairn_tier_capacity_bytes", "Capacity of a tier in bytes.", kGpuLabel,
                static_cast<double>(capacity_bytes_));
  sink.AddGauge("cairn_tier_used_bytes",
                "Bytes of images in a tier, as allocated (rounded), including unlinked ones that "
                "are still being read.",
                kGpuLabel, static_cast<double>(device.used_bytes));
  ReportGpuState(device.state, sink);
  sink.AddCounter("cairn_gpu_faults_total", "Copies to and from the device that failed.", {},
                  device.fault_count);
  constexpr std::string_view kDirections[kDirectionCount] = {"read", "write"};
  for (size_t direction = 0; direction < kDirectionCount; ++direction) {
    const MetricLabel label[] = {{"op", kDirections[direction]}};
    sink.AddCounter("cairn_gpu_bytes_total", "Bytes of images copied from and to the device.",
                    label, bytes_[direction].Value());
    sink.AddHistogram("cairn_gpu_copy_seconds",
                      "Time from the launch of a copy until its completion is seen.", label,
                      seconds_[direction].Snapshot());
  }
  sink.AddGauge("cairn_gpu_transfers", "Unfinished copies to and from the device.", {},
                static_cast<double>(device.transfer_count));
}

}  // namespace cairn
