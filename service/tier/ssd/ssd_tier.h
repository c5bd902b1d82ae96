// SPDX-License-Identifier: Apache-2.0
#pragma once
// The SSD tier: images in folders on one or more devices, which the next process recovers. Each
// device is independent, with its own segments and ledger (device.h), so that a failing one does
// not affect the others. Devices come and go in bays (bay.h).
//
// A chain is either on one device, chosen by its first block, or striped over all devices. The
// thread `ssd-tend` closes failed devices and opens them again.
//
// Thread-safety: Thread-safe, except Make(), Recover() and Stop(): one thread.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/limits.h"
#include "service/tier/ssd/bay.h"
#include "service/tier/ssd/deletions.h"
#include "service/tier/ssd/device.h"
#include "service/tier/ssd/io_engine.h"
#include "service/tier/tier.h"

namespace cairn {

enum class SsdPlacement {
  kChain,   // losing a device loses the prefixes on it and shortens no other
  kStripe,  // a chain is striped: all devices read one prefix, and losing one shortens every chain
};

class SsdTier final : public CopyTier {
 public:
  struct Device {
    std::string path;  // a folder; made if it is missing
    uint64_t budget_bytes = 0;
  };
  struct Options {
    std::vector<Device> devices;  // 1 to limits::kSsdDevicesMax
    IoChoice io = IoChoice::kAuto;
    SsdPlacement placement = SsdPlacement::kChain;
    uint64_t segment_bytes = 0, extents_max = 0;  // of a device; 0: a default for its budget
    // Of all devices, in proportion to their budgets; 0: extents_max of each.
    uint64_t images_max = 0;
    // Free space to leave on each file system. Unset: the larger of 1 GiB and 2 %.
    std::optional<uint64_t> keep_free_bytes;
    absl::Duration lock_wait = absl::Seconds(30);
    std::string fstab =
        "/etc/fstab";  // the folder of a disk that should be mounted is missing until it is
    // Reports the current step of Make(), from its thread.
    std::function<void(std::string_view what)> on_step = [](std::string_view) {};
    // Longest time until a failed device is tested again.
    absl::Duration probe_after = absl::Seconds(30);
    size_t deletions_max = limits::kDeletionsMax;  // kept for absent devices
    // Makes the engine of a device. Null: MakeIoEngine(io).
    std::function<absl::StatusOr<std::unique_ptr<IoEngine>>()> make_engine = nullptr;
  };

  // Opens the devices. Errors name the folder and remain until somebody changes the configuration.
  // A device that cannot be opened for another reason is missing, and is added when it becomes
  // available.
  static absl::StatusOr<std::unique_ptr<SsdTier>> Make(const Options& options);
  ~SsdTier() override { Stop(); }

  const TierTraits& traits() const override;
  void SetEvictor(Evictor* evictor) override;
  using CopyTier::Reserve;
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes, const Placement& placement) override;
  TransferId Read(const TierRead& read, TierDone done) override;
  TransferId Write(const TierWrite& write, TierDone done) override;
  void Cancel(TransferId id) override;
  // Always OK. The other devices take over the share of a missing one.
  absl::Status Recover(RecoverySink& sink) override;
  void Deleted(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys) override;
  void PolicyChanged(const SpaceRecord& space) override;
  // On each device.
  void SaveHints(std::span<const HintRecord> hints) override;
  bool AwaitFreed(absl::Time deadline) override;
  void Sync(uint64_t parts, TierDone done) override { SyncFrom(0, parts, std::move(done)); }
  void Stop() override;

  uint64_t capacity_bytes() const override;
  uint64_t image_bytes_max() const override;
  uint64_t used_bytes() const override;
  // Limit for its images: the index needs room for them.
  uint64_t extents_max() const;
  void Report(MetricSink& sink) const override;
  std::vector<DeviceReport> Devices() const override;
  absl::Status SetRetired(std::string_view path, bool is_retired) override;

 private:
  explicit SsdTier(const Options& options)
      : placement_(options.placement),
        probe_after_(options.probe_after),
        deletions_(options.deletions_max) {}
  void Free(uint64_t offset, uint64_t rounded_bytes) override;
  void Unlist(uint64_t offset) override { DeviceOf(offset)->Unlist(offset); }
  std::shared_ptr<SsdDevice> DeviceOf(uint64_t offset) const;
  std::vector<std::shared_ptr<SsdDevice>> Present() const;
  // The number of the device to ask first.
  size_t FirstFor(const Placement& placement);
  // Syncs these devices one after the other, starting with `number`. Devices without new data cost
  // nothing.
  void SyncFrom(size_t number, uint64_t parts, TierDone done);
  void RunTend(RecoverySink& sink);

  const SsdPlacement placement_;
  const absl::Duration probe_after_;
  Deletions deletions_;
  std::vector<std::unique_ptr<SsdBay>> bays_;
  std::atomic<size_t> next_{0};  // for kStripe
  std::thread tend_thread_;

  Mutex mutex_;
  CondVar tend_due_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_asked_ ABSL_GUARDED_BY(mutex_) = false;  // tend at once
};

}  // namespace cairn
