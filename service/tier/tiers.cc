// SPDX-License-Identifier: Apache-2.0
#include "service/tier/tiers.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace cairn {

Tiers::Tiers(std::unique_ptr<HostTier> host, std::vector<std::unique_ptr<CopyTier>> others)
    : host_(std::move(host)), others_(std::move(others)) {
  CAIRN_CHECK(host_ != nullptr);
  all_.push_back(host_.get());
  for (const std::unique_ptr<CopyTier>& tier : others_) {
    CAIRN_CHECK(Find(tier->id()) == nullptr, "one tier an id");
    all_.push_back(tier.get());
  }
}

CopyTier* Tiers::Find(TierId id) const {
  for (CopyTier* tier : all_) {
    if (tier->id() == id) {
      return tier;
    }
  }
  return nullptr;
}

void Tiers::SetEvictor(Evictor* evictor) {
  for (CopyTier* tier : all_) {
    tier->SetEvictor(evictor);
  }
}

std::vector<DeviceReport> Tiers::Devices() const {
  std::vector<DeviceReport> devices;
  for (const CopyTier* tier : all_) {
    for (DeviceReport& device : tier->Devices()) {
      devices.push_back(std::move(device));
    }
  }
  return devices;
}

absl::Status Tiers::SetRetired(std::string_view path, bool is_retired) {
  for (CopyTier* tier : all_) {
    if (absl::Status status = tier->SetRetired(path, is_retired); !absl::IsNotFound(status)) {
      return status;
    }
  }
  std::string known;
  for (const DeviceReport& device : Devices()) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", device.path);
  }
  return absl::NotFoundError(absl::StrCat("no tier has a device ", ToAbsl(path), "; there ",
                                          known.empty() ? "are none" : "is: ", known));
}

void Tiers::Deleted(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys) {
  for (CopyTier* tier : all_) {
    tier->Deleted(space, keys);
  }
}

void Tiers::PolicyChanged(const SpaceRecord& space) {
  for (CopyTier* tier : all_) {
    tier->PolicyChanged(space);
  }
}

void Tiers::SaveGenerations(const std::string& list) {
  for (CopyTier* tier : all_) {
    tier->SaveGenerations(list);
  }
}

void Tiers::SavePolicies(const std::string& list) {
  for (CopyTier* tier : all_) {
    tier->SavePolicies(list);
  }
}

void Tiers::SaveHints(std::span<const HintRecord> hints) {
  for (CopyTier* tier : all_) {
    tier->SaveHints(hints);
  }
}

bool Tiers::AwaitFreed(absl::Time deadline) {
  bool are_gone = true;
  for (CopyTier* tier : all_) {
    are_gone = tier->AwaitFreed(deadline) && are_gone;
  }
  return are_gone;
}

void Tiers::Stop() {
  for (CopyTier* tier : all_) {
    tier->Stop();
  }
}

void Tiers::Report(MetricSink& sink) const {
  for (const CopyTier* tier : all_) {
    tier->Report(sink);
  }
}

}  // namespace cairn
