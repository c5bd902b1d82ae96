// SPDX-License-Identifier: Apache-2.0
#include "service/tier/tier.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace cairn {

std::string_view Name(TierId tier) {
  switch (tier) {
    case TierId::kGpu:
      return "gpu";
    case TierId::kHost:
      return "host";
    case TierId::kSsd:
      return "ssd";
  }
  return "unknown";
}

std::string_view Name(DeviceState state) {
  switch (state) {
    case DeviceState::kRecovering:
      return "recovering";
    case DeviceState::kOk:
      return "ok";
    case DeviceState::kCapped:
      return "capped";
    case DeviceState::kReadOnly:
      return "read-only";
    case DeviceState::kOut:
      return "out";
  }
  return "unknown";
}

void ReportGpuState(DeviceState now, MetricSink& sink) {
  for (const DeviceState state : {DeviceState::kOk, DeviceState::kReadOnly, DeviceState::kOut}) {
    const MetricLabel label[] = {{"state", Name(state)}};
    sink.AddGauge("cairn_gpu_state", "1 for the state of the device.", label, now == state ? 1 : 0);
  }
}

std::string FormatPlace(TierId tier, uint64_t offset) {
  return absl::StrCat(ToAbsl(Name(tier)), "+0x", absl::Hex(offset));
}

std::string_view Name(EvictionReason reason) {
  switch (reason) {
    case EvictionReason::kCapacity:
      return "capacity";
    case EvictionReason::kWindow:
      return "window";
    case EvictionReason::kWatermark:
      return "watermark";
    case EvictionReason::kBlocks:
      return "blocks";
    case EvictionReason::kImages:
      return "images";
    case EvictionReason::kIndex:
      return "index";
  }
  return "unknown";
}

void CopyTier::Sync(uint64_t, TierDone done) { std::move(done)(absl::OkStatus()); }

absl::Status CopyTier::SetRetired(std::string_view path, bool) {
  return absl::NotFoundError(absl::StrCat("no device ", ToAbsl(path)));
}

TierExtent::TierExtent(Extent extent) : extent_(std::move(extent)) {}

void TierExtent::Reset() {
  extent_.Reset();
  place_.Reset();
}

void TierExtent::Release(CopyTier& tier, Place place) {
  tier.Free(place.offset, place.rounded_bytes);
}

void TierExtent::Unlist() {
  if (!place_.is_empty()) {
    place_.owner().Unlist(place_.value().offset);
  }
}

TierId TierExtent::tier() const {
  CAIRN_DCHECK(!is_empty());
  return place_.is_empty() ? TierId::kHost : place_.owner().id();
}

void TierExtent::SetOwner(void* owner) {
  if (!extent_.is_empty()) {
    extent_.SetOwner(owner);
  }
}

}  // namespace cairn
