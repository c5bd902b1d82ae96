// SPDX-License-Identifier: Apache-2.0
#pragma once
// The SSD tier: images in folders on one or several devices, found again by the next process. Each
// device is for itself, with segments and a ledger of its own (device.h), so that one that fails
// takes no other with it. It has its place in the tier (bay.h), where it leaves and comes back.
//
// A chain lies on one device, chosen by its first block, or its blocks on all, one after another.
// A thread of the tier, `ssd-tend`, closes devices that are out and opens them again.
//
// Thread-safety: Thread-safe, but for Make(), Recover() and Stop(): one thread.

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
  kChain,   // a device that is lost costs the prefixes on it, and cuts no other
  kStripe,  // every device takes its share of each chain: all read one prefix, and one cuts all
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
    uint64_t segment_bytes = 0, extents_max = 0;  // of a device; 0: what suits its budget
    uint64_t images_max = 0;  // of all devices, by their budgets; 0: extents_max of each
    // Space that each file system keeps for others. Unset: the larger of 1 GiB and 2 %.
    std::optional<uint64_t> keep_free_bytes;
    absl::Duration lock_wait = absl::Seconds(30);
    std::string fstab =
        "/etc/fstab";  // a folder of a disk that is to be mounted is missing until then
    // Hears what Make() is at, from its thread.
    std::function<void(std::string_view what)> on_step = [](std::string_view) {};
    // How long a device that failed is left alone at most before it is tried again.
    absl::Duration probe_after = absl::Seconds(30);
    size_t deletions_max = limits::kDeletionsMax;  // that are kept for devices that are away
    // Makes the engine of a device. Null: MakeIoEngine(io).
    std::function<absl::StatusOr<std::unique_ptr<IoEngine>>()> make_engine = nullptr;
  };

  // Errors with the folder: those that stay until somebody changes the configuration. A device that
  // cannot be opened for another reason is missing, and taken in when it comes.
  static absl::StatusOr<std::unique_ptr<SsdTier>> Make(const Options& options);
  ~SsdTier() override { Stop(); }

  const TierTraits& traits() const override;
  void SetEvictor(Evictor* evictor) override;
  using CopyTier::Reserve;
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes, const Placement& placement) override;
  TransferId Read(const TierRead& read, TierDone done) override;
  TransferId Write(const TierWrite& write, TierDone done) override;
  void Cancel(TransferId id) override;
  // Always OK. The share of a device that is missing goes to the others.
  absl::Status Recover(RecoverySink& sink) override;
  void Deleted(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys) override;
  void PolicyChanged(const SpaceRecord& space) override;
  bool AwaitFreed(absl::Time deadline) override;
  void Sync(uint64_t parts, TierDone done) override { SyncFrom(0, parts, std::move(done)); }
  void Stop() override;

  uint64_t capacity_bytes() const override;
  uint64_t image_bytes_max() const override;
  uint64_t used_bytes() const override;
  // Images that it holds at most: what the index needs room for.
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
  // The number of the device that is asked first.
  size_t FirstFor(const Placement& placement);
  // One of these devices after the other, from that one on. Those without anything new cost
  // nothing.
  void SyncFrom(size_t number, uint64_t parts, TierDone done);
  void RunTend(RecoverySink& sink);

  const SsdPlacement placement_;
  const absl::Duration probe_after_;
  Deletions deletions_;
  std::vector<std::unique_ptr<SsdBay>> bays_;
  std::atomic<size_t> next_{0};  // of kStripe
  std::thread tend_thread_;

  Mutex mutex_;
  CondVar tend_due_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_asked_ ABSL_GUARDED_BY(mutex_) = false;  // to look at once
};

}  // namespace cairn
