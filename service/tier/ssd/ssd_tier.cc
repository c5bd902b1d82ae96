// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/ssd_tier.h"

#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "service/limits.h"

namespace cairn {
namespace {

constexpr MetricLabel kSsdLabel[] = {{"tier", "ssd"}};
// A TransferId has the device's number in the bits below, and the engine's number above.
constexpr int kTransferShift = 8;
static_assert(limits::kSsdDevicesMax <= 1 << kTransferShift);

// The time between checks of failed devices.
constexpr absl::Duration kTendStep = absl::Seconds(1);

// Returns a device's share of the images of all devices, in proportion to its budget.
uint64_t ExtentsMax(const SsdTier::Options& options, const SsdTier::Device& device) {
  if (options.images_max == 0) {
    return options.extents_max;
  }
  double all = 0;
  for (const SsdTier::Device& one : options.devices) {
    all += static_cast<double>(one.budget_bytes);
  }
  const double share = static_cast<double>(device.budget_bytes) / all;
  return std::clamp<uint64_t>(
      static_cast<uint64_t>(share * static_cast<double>(options.images_max)), 1,
      std::max<uint64_t>(1, device.budget_bytes / limits::kSsdBytesPerImageMin));
}

// Returns the identity of the folder at `path`, or nullopt if it is missing.
std::optional<std::pair<dev_t, ino_t>> FolderAt(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) {
    return std::nullopt;
  }
  return std::pair(facts.st_dev, facts.st_ino);
}

// Checks that the folder differs from those of the earlier devices, which exist by now.
absl::Status CheckIsApart(const SsdTier::Options& options, const SsdTier::Device& device) {
  const auto folder = FolderAt(device.path);
  for (const SsdTier::Device& before : options.devices) {
    if (&before == &device || !folder.has_value()) {
      break;
    }
    if (FolderAt(before.path) == folder) {
      return absl::InvalidArgumentError(
          absl::StrCat("ssd: ", before.path, " and ", device.path, " are the same folder"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SsdTier>> SsdTier::Make(const Options& options) {
  if (options.devices.empty() || options.devices.size() > limits::kSsdDevicesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("ssd: ", options.devices.size(), " devices: 1 to ", limits::kSsdDevicesMax));
  }
  std::unique_ptr<SsdTier> tier(new SsdTier(options));
  for (const Device& device : options.devices) {
    CAIRN_RETURN_IF_ERROR(CheckIsApart(options, device));
    const uint64_t extents_max = ExtentsMax(options, device);
    const SsdBay::Options of_bay = {
        .device = {.path = device.path,
                   .budget_bytes = device.budget_bytes,
                   .segment_bytes = options.segment_bytes,
                   .extents_max = extents_max,
                   .number = tier->bays_.size(),
                   .deletions = &tier->deletions_,
                   .fstab = options.fstab,
                   .lock_wait = options.lock_wait,
                   .probe_after = options.probe_after,
                   .on_step = options.on_step},
        .keep_free_bytes = options.keep_free_bytes,
        .make_engine = options.make_engine ? options.make_engine : [io = options.io] {
          return MakeIoEngine(io, IoLimits());
        }};
    const absl::StatusOr<SsdBudget> budget =
        ShareOut(device.budget_bytes, options.segment_bytes, extents_max);
    if (!budget.ok()) {
      return absl::Status(budget.status().code(),
                          absl::StrCat("ssd ", device.path, ": ", budget.status().message()));
    }
    tier->bays_.push_back(std::make_unique<SsdBay>(of_bay, *budget, *tier));
    CAIRN_RETURN_IF_ERROR(tier->bays_.back()->Open());
  }
  std::vector<DeletionHistory> histories;
  for (const auto& device : tier->Present()) {
    if (const auto& history = device->history(); history.has_value()) {
      histories.push_back(*history);
    }
  }
  tier->deletions_.Join(histories);
  return tier;
}

const TierTraits& SsdTier::traits() const {
  static constexpr TierTraits kTraits = {.id = TierId::kSsd,
                                         .may_hold_last = true,
                                         .is_lasting = true,
                                         .part_shift = SsdDevice::kNumberShift};
  static_assert(limits::kSsdDevicesMax <= 64);  // one part per device
  return kTraits;
}

void SsdTier::SetEvictor(Evictor* evictor) {
  for (const auto& bay : bays_) {
    bay->SetEvictor(evictor);
  }
}

std::vector<std::shared_ptr<SsdDevice>> SsdTier::Present() const {
  std::vector<std::shared_ptr<SsdDevice>> present;
  for (const auto& bay : bays_) {
    if (std::shared_ptr<SsdDevice> device = bay->device(); device != nullptr) {
      present.push_back(std::move(device));
    }
  }
  return present;
}

std::shared_ptr<SsdDevice> SsdTier::DeviceOf(uint64_t offset) const {
  std::shared_ptr<SsdDevice> device = bays_[offset >> SsdDevice::kNumberShift]->device();
  CAIRN_CHECK(device != nullptr, "a device stays while somebody has a place in it");
  return device;
}

size_t SsdTier::FirstFor(const Placement& placement) {
  if (placement_ == SsdPlacement::kStripe) {
    return next_.fetch_add(1, std::memory_order_relaxed) % bays_.size();
  }
  return placement.parent_copy != nullptr
             ? placement.parent_copy->offset() >> SsdDevice::kNumberShift
             : placement.hash % bays_.size();
}

absl::StatusOr<TierExtent> SsdTier::Reserve(uint64_t bytes, const Placement& placement) {
  const size_t first = FirstFor(placement);
  absl::StatusOr<TierExtent> extent = absl::UnavailableError("ssd: no device is available");
  // If a device accepts no images, try the next one.
  for (size_t i = 0; absl::IsUnavailable(extent.status()) && i < bays_.size(); ++i) {
    if (const auto device = bays_[(first + i) % bays_.size()]->device(); device != nullptr) {
      extent = device->Reserve(bytes);
    }
  }
  return extent;
}

TransferId SsdTier::Read(const TierRead& read, TierDone done) {
  const uint64_t offset = read.place->offset();
  const IoId id = DeviceOf(offset)->Read(read, std::move(done));
  return id == 0 ? 0 : id << kTransferShift | offset >> SsdDevice::kNumberShift;
}

TransferId SsdTier::Write(const TierWrite& write, TierDone done) {
  const uint64_t offset = write.place->offset();
  const IoId id = DeviceOf(offset)->Write(write, std::move(done));
  return id == 0 ? 0 : id << kTransferShift | offset >> SsdDevice::kNumberShift;
}

void SsdTier::Cancel(TransferId id) {
  if (id == 0) {
    return;
  }
  if (const auto device = bays_[id & ((1 << kTransferShift) - 1)]->device(); device != nullptr) {
    device->Cancel(id >> kTransferShift);
  }
}

// --- Devices come and go -------------------------------------------------------------------------

absl::Status SsdTier::Recover(RecoverySink& sink) {
  for (const auto& bay : bays_) {
    bay->Recover(sink);
  }
  const auto devices = Devices();
  if (std::all_of(devices.begin(), devices.end(),
                  [](const DeviceReport& device) { return device.state == DeviceState::kOut; })) {
    LogError("ssd", "no device is available: blocks are only in memory until one is",
             {{"devices", devices.size()}});
  }
  tend_thread_ = std::thread([this, &sink] { RunTend(sink); });
  return absl::OkStatus();
}

void SsdTier::RunTend(RecoverySink& sink) {
  pthread_setname_np(pthread_self(), "ssd-tend");
  for (;;) {
    for (const auto& bay : bays_) {
      bay->Tend(sink);
    }
    const absl::Time until = MonotonicNow() + std::min(kTendStep, probe_after_);
    const MutexLock lock(mutex_);
    while (!is_stopping_ && !is_asked_ && tend_due_.WaitUntil(mutex_, until)) {
    }
    is_asked_ = false;
    if (is_stopping_) {
      return;
    }
  }
}

void SsdTier::Deleted(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys) {
  deletions_.Add(space, keys, [this](const std::vector<Deletion>& deletions) {
    for (const auto& device : Present()) {
      device->QueueDeletions(deletions);
    }
  });
}

void SsdTier::PolicyChanged(const SpaceRecord& space) {
  for (const auto& device : Present()) {
    device->PolicyChanged(space);
  }
}

void SsdTier::SaveGenerations(const std::string& list) {
  for (const auto& device : Present()) {
    device->SaveMeta(SsdDevice::kGenerationsMeta, list);
  }
}

void SsdTier::SavePolicies(const std::string& list) {
  for (const auto& device : Present()) {
    device->SaveMeta(SsdDevice::kPoliciesMeta, list);
  }
}

void SsdTier::SaveHints(std::span<const HintRecord> hints) {
  for (const auto& device : Present()) {
    device->SaveMeta(SsdDevice::kHintsMeta, SerializeHints(hints));
  }
}

bool SsdTier::AwaitFreed(absl::Time deadline) {
  std::vector<std::shared_ptr<SsdDevice>> devices = Present();
  // A device that cannot record the deletion now learns it later from the others.
  if (std::any_of(devices.begin(), devices.end(),
                  [](const auto& device) { return device->RecordsDeletions(); })) {
    std::erase_if(devices, [](const auto& device) { return !device->RecordsDeletions(); });
  }
  bool are_gone = !devices.empty();
  for (const auto& device : devices) {
    are_gone = device->AwaitFreed(deadline) && are_gone;
  }
  return are_gone;
}

void SsdTier::SyncFrom(size_t number, uint64_t parts, TierDone done) {
  std::shared_ptr<SsdDevice> device;
  for (; number < bays_.size() && device == nullptr; ++number) {
    if ((parts >> number & 1) != 0) {
      device = bays_[number]->device();
    }
  }
  if (device == nullptr) {
    return std::move(done)(absl::OkStatus());
  }
  device->Sync([this, number, parts, done = std::move(done)](absl::Status status) mutable {
    if (status.ok()) {
      SyncFrom(number, parts, std::move(done));
    } else {
      std::move(done)(std::move(status));
    }
  });
}

void SsdTier::Stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  tend_due_.NotifyAll();
  if (tend_thread_.joinable()) {
    tend_thread_.join();
  }
  for (const auto& bay : bays_) {
    bay->Stop();
  }
}

void SsdTier::Free(uint64_t offset, uint64_t) { DeviceOf(offset)->Free(offset); }

// --- Figures -------------------------------------------------------------------------------------

uint64_t SsdTier::capacity_bytes() const {
  uint64_t bytes = 0;
  for (const auto& bay : bays_) {
    bytes += bay->capacity_bytes();
  }
  return bytes;
}

uint64_t SsdTier::image_bytes_max() const {
  uint64_t bytes = CopyTier::image_bytes_max();
  for (const auto& bay : bays_) {
    bytes = std::min(bytes, bay->image_bytes_max());
  }
  return bytes;
}

uint64_t SsdTier::used_bytes() const {
  uint64_t bytes = 0;
  for (const auto& device : Present()) {
    bytes += device->used_bytes();
  }
  return bytes;
}

uint64_t SsdTier::extents_max() const {
  uint64_t count = 0;
  for (const auto& bay : bays_) {
    count += bay->extents_max();
  }
  return count;
}

void SsdTier::Report(MetricSink& sink) const {
  sink.AddGauge("cairn_tier_capacity_bytes", "Capacity of a tier in bytes.", kSsdLabel,
                static_cast<double>(capacity_bytes()));
  sink.AddGauge("cairn_tier_used_bytes",
                "Bytes of images in a tier, as allocated (rounded), including unlinked ones that "
                "are still being read.",
                kSsdLabel, static_cast<double>(used_bytes()));
  for (const auto& bay : bays_) {
    bay->Report(sink);
  }
}

// --- For the operator ----------------------------------------------------------------------------

std::vector<DeviceReport> SsdTier::Devices() const {
  std::vector<DeviceReport> reports;
  for (const auto& bay : bays_) {
    reports.push_back(bay->Describe());
  }
  return reports;
}

absl::Status SsdTier::SetRetired(std::string_view path, bool is_retired) {
  for (const auto& bay : bays_) {
    if (bay->path() != path) {
      continue;
    }
    CAIRN_RETURN_IF_ERROR(bay->SetRetired(is_retired));
    const MutexLock lock(mutex_);
    is_asked_ = true;
    tend_due_.NotifyAll();
    return absl::OkStatus();
  }
  return CopyTier::SetRetired(path, is_retired);
}

}  // namespace cairn
