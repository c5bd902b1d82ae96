// SPDX-License-Identifier: Apache-2.0
#pragma once
// The place of one folder of the SSD tier: it has a device, or says why it has none, and tries to
// get one again, less and less often. A device that is out is closed once nobody has a place in it;
// what its folder holds then is found as at the start.
//
// Thread-safety: Thread-safe, but for Open(), Recover(), Tend() and Stop(): one thread at a time.
// Locks:         index < bay < device.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/tier/device_report.h"
#include "service/tier/ssd/device.h"
#include "service/tier/ssd/io_engine.h"

namespace cairn {

class SsdBay {
 public:
  struct Options {
    SsdDevice::Options device;
    // Unset: the larger of 1 GiB and 2 % of the file system.
    std::optional<uint64_t> keep_free_bytes;
    std::function<absl::StatusOr<std::unique_ptr<IoEngine>>()> make_engine;
  };

  // `tier` is whose places its devices hand out.
  SsdBay(Options options, const SsdBudget& budget, CopyTier& tier)
      : options_(std::move(options)), budget_(budget), tier_(tier) {}

  // Errors: those of SsdDevice::Open() and of the engine that stay until somebody changes the
  // configuration, InvalidArgument and FailedPrecondition. What else fails leaves it empty.
  absl::Status Open();
  void SetEvictor(Evictor* evictor) { evictor_ = evictor; }
  // Of the device that it has. One that cannot be recovered is out.
  void Recover(RecoverySink& sink);
  // Closes a device that is out, and tries to open one where there is none and it is time.
  void Tend(RecoverySink& sink);
  void Stop();

  // Null: there is none now. Whoever has it uses it for one call.
  std::shared_ptr<SsdDevice> device() const;
  // It serves, or did and still has places.
  bool is_present() const { return device() != nullptr; }

  const std::string& path() const { return options_.device.path; }
  // Also of a device that is missing.
  uint64_t capacity_bytes() const;
  uint64_t extents_max() const { return budget_.extents_max; }
  uint64_t image_bytes_max() const;
  DeviceReport Describe() const;
  // As CopyTier.
  absl::Status SetRetired(bool is_retired);
  void Report(MetricSink& sink) const;

 private:
  absl::Status OpenDevice(absl::Duration lock_wait);
  // False: somebody still has places in it.
  bool Close(std::shared_ptr<SsdDevice> device);
  void Missed(const absl::Status& status);
  uint64_t KeepFreeBytes() const;

  const Options options_;
  const SsdBudget budget_;  // by the configuration
  CopyTier& tier_;
  Evictor* evictor_ = nullptr;

  mutable Mutex mutex_;
  std::shared_ptr<SsdDevice> device_ ABSL_GUARDED_BY(mutex_);
  std::string why_ ABSL_GUARDED_BY(mutex_);  // there is none
  bool is_retired_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_trying_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time try_again_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration rest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
