// SPDX-License-Identifier: Apache-2.0
#pragma once
// Owns the device of one folder of the SSD tier. If there is no device, the bay has the reason, and
// tries to open one at growing intervals. It closes a failed device once no copy uses a place in
// it. When the device is opened again, its contents are recovered as at start.
//
// Thread-safety: Thread-safe, except Open(), Recover(), Tend() and Stop(), which only one thread at
//                a time may call.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/tier/ssd/device.h"
#include "service/tier/ssd/io_engine.h"

namespace cairn {

class SsdBay {
 public:
  struct Options {
    SsdDevice::Options device;
    // nullopt: the larger of 1 GiB and 2 % of the file system.
    std::optional<uint64_t> keep_free_bytes;
    std::function<absl::StatusOr<std::unique_ptr<IoEngine>>()> make_engine;
  };

  // `tier` owns the places that the bay's devices reserve.
  SsdBay(Options options, const SsdBudget& budget, CopyTier& tier)
      : options_(std::move(options)), budget_(budget), tier_(tier) {}

  // Opens the device. Errors: InvalidArgument and FailedPrecondition of SsdDevice::Open() and of
  // the engine, because these errors remain until somebody changes the configuration. After any
  // other error the bay has no device and returns OK.
  absl::Status Open();
  void SetEvictor(Evictor* evictor) { evictor_ = evictor; }
  // Recovers its device. If this fails, the device counts as failed.
  void Recover(RecoverySink& sink);
  // Closes a failed device. Tries to open a missing one when its next attempt is due.
  void Tend(RecoverySink& sink);
  void Stop();

  // Returns null if there is no device. Callers keep the result for one call only.
  std::shared_ptr<SsdDevice> device() const;
  const std::string& path() const { return options_.device.path; }
  // Valid even if the device is missing.
  uint64_t capacity_bytes() const;
  uint64_t extents_max() const { return budget_.extents_max; }
  uint64_t image_bytes_max() const;
  DeviceReport Describe() const;
  // As in CopyTier.
  absl::Status SetRetired(bool is_retired);
  void Report(MetricSink& sink) const;

 private:
  absl::Status OpenDevice(absl::Duration lock_wait);
  // Returns false if copies still use places in the device.
  bool Close(std::shared_ptr<SsdDevice> device);
  void Missed(const absl::Status& status);
  uint64_t KeepFreeBytes() const;

  const Options options_;
  const SsdBudget budget_;  // from the configuration
  CopyTier& tier_;
  Evictor* evictor_ = nullptr;

  mutable Mutex mutex_;
  std::shared_ptr<SsdDevice> device_ ABSL_GUARDED_BY(mutex_);
  std::string why_ ABSL_GUARDED_BY(mutex_);  // why there is no device
  bool is_retired_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_trying_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time try_again_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration rest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
