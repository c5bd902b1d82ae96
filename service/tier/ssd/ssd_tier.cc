// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/ssd_tier.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "base/units.h"
#include "service/limits.h"

namespace cairn {
namespace {

constexpr MetricLabel kSsdLabel[] = {{"tier", "ssd"}};
// Below the number of the transfer in its engine.
constexpr int kTransferShift = 8;
static_assert(limits::kSsdDevicesMax <= 1 << kTransferShift);

uint64_t KeepFreeBytes(const std::string& path) {
  struct statvfs space = {};
  if (::statvfs(path.c_str(), &space) != 0) {
    return 1_GiB;
  }
  return std::max<uint64_t>(1_GiB, uint64_t{space.f_blocks} * space.f_frsize / 50);
}

absl::Status InFolder(const absl::Status& status, const std::string& path) {
  return absl::Status(status.code(), absl::StrCat("ssd ", path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SsdTier>> SsdTier::Make(const Options& options) {
  if (options.devices.empty() || options.devices.size() > limits::kSsdDevicesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("ssd: ", options.devices.size(), " devices: 1 to ", limits::kSsdDevicesMax));
  }
  std::unique_ptr<SsdTier> tier(new SsdTier);
  for (const Device& device : options.devices) {
    absl::StatusOr<std::unique_ptr<IoEngine>> engine =
        options.make_engine ? options.make_engine() : MakeIoEngine(options.io, IoLimits());
    if (!engine.ok()) {
      return InFolder(engine.status(), device.path);
    }
    absl::StatusOr<std::unique_ptr<SsdDevice>> opened = SsdDevice::Open(
        {.path = device.path,
         .budget_bytes = device.budget_bytes,
         .segment_bytes = options.segment_bytes,
         .extents_max = options.extents_max,
         .number = tier->devices_.size(),
         .keep_free_bytes = options.keep_free_bytes.value_or(KeepFreeBytes(device.path)),
         .lock_wait = options.lock_wait,
         .probe_after = options.probe_after,
         .on_step = options.on_step,
         .engine = *std::move(engine)},
        *tier);
    if (!opened.ok()) {
      return InFolder(opened.status(), device.path);
    }
    tier->devices_.push_back(*std::move(opened));
  }
  return tier;
}

const TierTraits& SsdTier::traits() const {
  static constexpr TierTraits kTraits = {
      .id = TierId::kSsd, .may_hold_last = true, .is_lasting = true};
  return kTraits;
}

void SsdTier::SetEvictor(Evictor* evictor) {
  for (const auto& device : devices_) {
    device->SetEvictor(evictor);
  }
}

absl::StatusOr<TierExtent> SsdTier::Reserve(uint64_t bytes, const Placement& placement) {
  const size_t first = placement.beside != nullptr
                           ? placement.beside->offset() >> SsdDevice::kNumberShift
                           : placement.hash % devices_.size();
  absl::StatusOr<TierExtent> extent = devices_[first]->Reserve(bytes);
  // A device that takes nothing leaves its share to the others.
  for (size_t i = 1; absl::IsUnavailable(extent.status()) && i < devices_.size(); ++i) {
    extent = devices_[(first + i) % devices_.size()]->Reserve(bytes);
  }
  return extent;
}

TransferId SsdTier::Read(const TierRead& read, TierDone done) {
  const uint64_t number = read.place->offset() >> SsdDevice::kNumberShift;
  const IoId id = devices_[number]->Read(read, std::move(done));
  return id == 0 ? 0 : id << kTransferShift | number;
}

TransferId SsdTier::Write(const TierWrite& write, TierDone done) {
  const uint64_t number = write.place->offset() >> SsdDevice::kNumberShift;
  const IoId id = devices_[number]->Write(write, std::move(done));
  return id == 0 ? 0 : id << kTransferShift | number;
}

void SsdTier::Cancel(TransferId id) {
  if (id != 0) {
    devices_[id & ((1 << kTransferShift) - 1)]->Cancel(id >> kTransferShift);
  }
}

absl::Status SsdTier::Recover(RecoverySink& sink) {
  size_t out = 0;
  absl::Status last;
  for (const auto& device : devices_) {
    if (const absl::Status status = device->Recover(sink); !status.ok()) {
      last = InFolder(status, device->path());
      LogError("ssd", "device is out: it cannot be recovered",
               {{"path", device->path()}, {"error", status}});
      ++out;
    }
  }
  return out == devices_.size() ? last : absl::OkStatus();
}

bool SsdTier::AwaitFreed(absl::Time deadline) {
  bool are_gone = true;
  for (const auto& device : devices_) {
    are_gone = device->AwaitFreed(deadline) && are_gone;
  }
  return are_gone;
}

void SsdTier::Stop() {
  for (const auto& device : devices_) {
    device->Stop();
  }
}

void SsdTier::Free(uint64_t offset, uint64_t) { DeviceOf(offset).Free(offset); }

uint64_t SsdTier::capacity_bytes() const {
  uint64_t bytes = 0;
  for (const auto& device : devices_) {
    bytes += device->capacity_bytes();
  }
  return bytes;
}

uint64_t SsdTier::image_bytes_max() const {
  uint64_t bytes = CopyTier::image_bytes_max();
  for (const auto& device : devices_) {
    bytes = std::min(bytes, device->image_bytes_max());
  }
  return bytes;
}

uint64_t SsdTier::used_bytes() const {
  uint64_t bytes = 0;
  for (const auto& device : devices_) {
    bytes += device->used_bytes();
  }
  return bytes;
}

uint64_t SsdTier::extents_max() const {
  uint64_t count = 0;
  for (const auto& device : devices_) {
    count += device->extents_max();
  }
  return count;
}

void SsdTier::Report(MetricSink& sink) const {
  sink.AddGauge("cairn_tier_capacity_bytes", "Bytes that a tier may hold.", kSsdLabel,
                static_cast<double>(capacity_bytes()));
  sink.AddGauge("cairn_tier_used_bytes",
                "Bytes of images in a tier, as allocated (rounded), unlinked ones that are still "
                "read included.",
                kSsdLabel, static_cast<double>(used_bytes()));
  for (const auto& device : devices_) {
    device->Report(sink);
  }
}

// --- For the operator ----------------------------------------------------------------------------

std::vector<DeviceReport> SsdTier::Devices() const {
  std::vector<DeviceReport> reports;
  for (const auto& device : devices_) {
    reports.push_back(device->Describe());
  }
  return reports;
}

absl::Status SsdTier::SetRetired(std::string_view path, bool is_retired) {
  for (const auto& device : devices_) {
    if (device->path() == path) {
      return device->SetRetired(is_retired);
    }
  }
  return CopyTier::SetRetired(path, is_retired);
}

}  // namespace cairn
