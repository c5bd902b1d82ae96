// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/bay.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/units.h"

namespace cairn {
namespace {

// The first pause between two tries is this part of the longest one.
constexpr int kFirstRestShare = 32;
// The time between checks whether calls still use the device.
constexpr absl::Duration kCallStep = absl::Milliseconds(1);

absl::Status InFolder(const absl::Status& status, const std::string& path) {
  return absl::Status(status.code(), absl::StrCat("ssd ", path, ": ", status.message()));
}

}  // namespace

uint64_t SsdBay::KeepFreeBytes() const {
  struct statvfs space = {};
  if (options_.keep_free_bytes.has_value() || ::statvfs(path().c_str(), &space) != 0) {
    return options_.keep_free_bytes.value_or(1_GiB);
  }
  return std::max<uint64_t>(1_GiB, uint64_t{space.f_blocks} * space.f_frsize / 50);
}

// --- Devices come and go -------------------------------------------------------------------------

absl::Status SsdBay::OpenDevice(absl::Duration lock_wait) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<IoEngine> engine, options_.make_engine());
  SsdDevice::Options options = options_.device;
  options.keep_free_bytes = KeepFreeBytes();
  options.lock_wait = lock_wait;
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<SsdDevice> opened,
                         SsdDevice::Open(std::move(options), std::move(engine), tier_));
  opened->SetEvictor(evictor_);
  const MutexLock lock(mutex_);
  device_ = std::move(opened);
  return absl::OkStatus();
}

absl::Status SsdBay::Open() {
  const absl::Status status = OpenDevice(options_.device.lock_wait);
  if (absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status)) {
    return InFolder(status, path());
  }
  if (!status.ok()) {
    Missed(status);
  }
  return absl::OkStatus();
}

void SsdBay::Recover(RecoverySink& sink) {
  const std::shared_ptr<SsdDevice> device = this->device();
  if (device == nullptr) {
    return;
  }
  device->SetEvictor(evictor_);
  if (const absl::Status status = device->Recover(sink); !status.ok()) {
    Missed(status);
  }
}

void SsdBay::Missed(const absl::Status& status) {
  bool is_first = false;
  {
    const MutexLock lock(mutex_);
    is_first = rest_ == absl::ZeroDuration();
    rest_ = is_first ? options_.device.probe_after / kFirstRestShare
                     : std::min(2 * rest_, options_.device.probe_after);
    try_again_ = MonotonicNow() + rest_;
    why_ = ToStd(status.message());
  }
  if (is_first) {
    LogError("ssd", "device is missing: the daemon continues without it and tries again",
             {{"path", path()}, {"error", status}});
  }
}

bool SsdBay::Close(std::shared_ptr<SsdDevice> device) {
  if (device->used_bytes() > 0) {
    const uint64_t begin = options_.device.number << SsdDevice::kNumberShift;
    evictor_->LoseCopies(TierId::kSsd, begin, begin + (uint64_t{1} << SsdDevice::kNumberShift));
  }
  if (!device->is_idle()) {
    return false;
  }
  device->Stop();
  {
    const MutexLock lock(mutex_);
    if (why_.empty()) {
      why_ = device->Describe().reason;
    }
    device_.reset();
  }
  while (device.use_count() > 1) {  // other owners are in calls, which do not wait
    absl::SleepFor(kCallStep);
  }
  return true;
}

void SsdBay::Tend(RecoverySink& sink) {
  if (std::shared_ptr<SsdDevice> device = this->device();
      device != nullptr && (!device->is_out() || !Close(std::move(device)))) {
    return;
  }
  const absl::Time began = MonotonicNow();
  bool is_retired = false;
  {
    const MutexLock lock(mutex_);
    if (began < try_again_) {
      return;
    }
    is_trying_ = true;
    is_retired = is_retired_;
  }
  absl::Status status = OpenDevice(absl::ZeroDuration());
  if (status.ok()) {
    const std::shared_ptr<SsdDevice> opened = device();
    (void)opened->SetRetired(is_retired);  // cannot fail, because the device works
    // The device may know deletions that the other devices missed.
    if (const auto& history = opened->history(); history.has_value()) {
      for (const Deletion& deletion : options_.device.deletions->Join(*history)) {
        TellSink(sink, deletion);
      }
    }
    status = opened->Recover(sink);
    sink.Finish(MonotonicNow() - began);
  }
  if (!status.ok()) {
    Missed(status);
  }
  {
    const MutexLock lock(mutex_);
    is_trying_ = false;
    if (!status.ok()) {
      return;
    }
    rest_ = absl::ZeroDuration();
    try_again_ = absl::InfinitePast();
    why_.clear();
  }
  LogInfo("ssd", "device is back", {{"path", path()}});
}

void SsdBay::Stop() {
  if (const std::shared_ptr<SsdDevice> device = this->device(); device != nullptr) {
    device->Stop();
  }
}

std::shared_ptr<SsdDevice> SsdBay::device() const {
  const MutexLock lock(mutex_);
  return device_;
}

// --- For the operator ----------------------------------------------------------------------------

uint64_t SsdBay::capacity_bytes() const {
  const std::shared_ptr<SsdDevice> device = this->device();
  return device != nullptr ? device->capacity_bytes() : budget_.slot_count * budget_.segment_bytes;
}

uint64_t SsdBay::image_bytes_max() const {
  const std::shared_ptr<SsdDevice> device = this->device();
  return device != nullptr ? device->image_bytes_max() : budget_.segment_bytes / 4;
}

absl::Status SsdBay::SetRetired(bool is_retired) {
  const std::shared_ptr<SsdDevice> device = this->device();
  const MutexLock lock(mutex_);
  if (device != nullptr && !device->is_out()) {
    is_retired_ = is_retired;
    return device->SetRetired(is_retired);
  }
  if (is_retired) {
    return absl::FailedPreconditionError(absl::StrCat(path(), " is out (", why_, ")"));
  }
  is_retired_ = false;
  try_again_ = absl::InfinitePast();
  return absl::OkStatus();
}

DeviceReport SsdBay::Describe() const {
  const std::shared_ptr<SsdDevice> device = this->device();
  DeviceReport report;
  if (device != nullptr) {
    report = device->Describe();
  } else {
    report.path = path();
    report.state = DeviceState::kOut;
    report.capacity_bytes = capacity_bytes();
  }
  const MutexLock lock(mutex_);
  if (report.state == DeviceState::kOut) {
    report.reason = why_.empty() ? report.reason : why_;
    report.is_trying = MonotonicNow() >= try_again_;
  }
  report.is_trying = report.is_trying || is_trying_;
  return report;
}

void SsdBay::Report(MetricSink& sink) const {
  if (const std::shared_ptr<SsdDevice> device = this->device(); device != nullptr) {
    return device->Report(sink);
  }
  SsdDevice::ReportState(sink, options_.device.number, DeviceState::kOut);
}

}  // namespace cairn
