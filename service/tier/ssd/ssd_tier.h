// SPDX-License-Identifier: Apache-2.0
#pragma once
// The SSD tier: images in folders on one or more devices. The next process recovers them. Each
// device has its own segments and its own ledger (device.h), so that a failing device does not
// affect the others. Devices can fail and return while the daemon runs (bay.h).
//
// A chain is either on one device, which its first block determines, or striped over all devices.
// The thread `ssd-tend` closes failed devices and opens them again.
//
// Thread-safety: Thread-safe, except Make(), Recover() and Stop(), which one thread calls.

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
  kChain,   // losing a device loses the prefixes on it, and shortens no other prefix
  kStripe,  // all devices read one prefix together; losing one shortens every chain
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
    uint64_t segment_bytes = 0, extents_max = 0;  // per device; 0: a default for its budget
    // For all devices together, divided in proportion to their budgets. 0: extents_max for each.
    uint64_t images_max = 0;
    // The free space that the tier leaves on each file system. nullopt: 1 GiB or 2 %, whichever is
    // larger.
    std::optional<uint64_t> keep_free_bytes;
    absl::Duration lock_wait = absl::Seconds(30);
    std::string fstab = "/etc/fstab";  // a disk that it lists counts as missing until it is mounted
    // Called by Make() with a description of its current step, on its thread.
    std::function<void(std::string_view what)> on_step = [](std::string_view) {};
    // The longest time until a failed device is tested again.
    absl::Duration probe_after = absl::Seconds(30);
    size_t deletions_max = limits::kDeletionsMax;  // kept for absent devices
    // Makes the engine of a device. Null: MakeIoEngine(io) is used.
    std::function<absl::StatusOr<std::unique_ptr<IoEngine>>()> make_engine = nullptr;
  };

  // Opens the devices. An error names the folder, and remains until somebody changes the
  // configuration. If a device cannot be opened for another reason, it counts as missing, and is
  // added when it can be opened.
  static absl::StatusOr<std::unique_ptr<SsdTier>> Make(const Options& options);
  ~SsdTier() override { Stop(); }

  const TierTraits& traits() const override;
  void SetEvictor(Evictor* evictor) override;
  using CopyTier::Reserve;
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes, const Placement& placement) override;
  TransferId Read(const TierRead& read, TierDone done) override;
  TransferId Write(const TierWrite& write, TierDone done) override;
  void Cancel(TransferId id) override;
  // Always returns OK. If a device is missing, the other devices take over its share.
  absl::Status Recover(RecoverySink& sink) override;
  void Deleted(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys) override;
  void PolicyChanged(const SpaceRecord& space) override;
  // Save them on each device.
  void SaveGenerations(const std::string& list) override;
  void SavePolicies(const std::string& list) override;
  void SaveHints(std::span<const HintRecord> hints) override;
  bool AwaitFreed(absl::Time deadline) override;
  void Sync(uint64_t parts, TierDone done) override { SyncFrom(0, parts, std::move(done)); }
  void Stop() override;

  uint64_t capacity_bytes() const override;
  uint64_t image_bytes_max() const override;
  uint64_t used_bytes() const override;
  // The limit for the number of images. The index needs room for as many.
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
  // Returns the number of the device to try first.
  size_t FirstFor(const Placement& placement);
  // Syncs these devices one after the other, from `number` on. Devices without new data cost
  // nothing.
  void SyncFrom(size_t number, uint64_t parts, TierDone done);
  void RunTend(RecoverySink& sink);

  const SsdPlacement placement_;
  const absl::Duration probe_after_;
  Deletions deletions_;
  std::vector<std::unique_ptr<SsdBay>> bays_;
  std::atomic<size_t> next_{0};  // used by kStripe
  std::thread tend_thread_;

  Mutex mutex_;
  CondVar tend_due_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_asked_ ABSL_GUARDED_BY(mutex_) = false;  // RunTend() must run now
};

}  // namespace cairn
