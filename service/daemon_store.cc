// SPDX-License-Identifier: Apache-2.0
// The part of the daemon's start that makes the store: the tiers, the device codec, the index, and
// the data of the previous process.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/units.h"
#include "kernels/backend.h"
#include "service/codec/device_codec.h"
#include "service/daemon.h"
#include "service/daemon_options.h"
#include "service/limits.h"
#include "service/memory/gpu_device.h"
#include "service/tier/gpu/gpu_tier.h"
#include "service/tier/ssd/ssd_tier.h"

namespace cairn {
namespace {

class TimeOfDay final : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};
const TimeOfDay kTimeOfDay;

}  // namespace

absl::StatusOr<std::unique_ptr<SsdTier>> Daemon::OpenSsd(const std::vector<SsdFolder>& folders) {
  SsdTier::Options options;
  options.io = IoOf(config_);
  options.placement =
      config_.ssd_placement == "stripe" ? SsdPlacement::kStripe : SsdPlacement::kChain;
  options.on_step = [this](std::string_view what) { SetStep(what); };
  for (const SsdFolder& folder : folders) {
    options.devices.push_back({.path = folder.path, .budget_bytes = folder.budget_bytes});
  }
  if (const std::optional<uint64_t> bytes = IndexBytesOf(config_); bytes.has_value()) {
    options.images_max = (*bytes - AwakeBytesMaxOf(config_)) / limits::kIndexBytesAtRest;
  }
  return SsdTier::Make(options);
}

absl::StatusOr<std::shared_ptr<GpuDevice>> Daemon::OpenGpu(const GpuShare& gpu) {
  SetStep("opening the GPU");
  std::unique_ptr<kernels::Runtime> device = machine_.open_device(static_cast<int>(gpu.device));
  if (device == nullptr) {
    const kernels::Availability found = kernels::Probe();
    return absl::FailedPreconditionError(
        found.is_available ? absl::StrCat("gpu: unavailable: no CUDA device ", gpu.device,
                                          " of compute capability 8.0 or newer")
                           : absl::StrCat("gpu: ", ToAbsl(found.reason)));
  }
  return std::make_shared<GpuDevice>(std::move(device), absl::StrCat("gpu:", gpu.device));
}

absl::StatusOr<std::unique_ptr<GpuTier>> Daemon::MakeGpuTier(std::shared_ptr<GpuDevice> device,
                                                             HostTier& host) {
  const uint64_t bytes = GpuTierBytesOf(config_);
  if (bytes == 0) return nullptr;
  SetStep("making the GPU tier");
  const std::string name(device->runtime().name());
  auto tier = GpuTier::Make(std::move(device),
                            {.capacity_bytes = bytes, .host_memory = host.arena().mapping()});
  if (!tier.ok()) return Annotate(tier.status(), "gpu");
  LogInfo("daemon", "GPU tier", {{"device", name}, {"bytes", bytes}});
  return tier;
}

absl::Status Daemon::StartStore() {
  SetStep("making the host tier");
  CAIRN_ASSIGN_OR_RETURN(
      std::unique_ptr<HostTier> host,
      HostTier::Make({.capacity_bytes = config_.host_bytes,
                      .staging_bytes = config_.staging_bytes,
                      .on_faulted_in =
                          [this](uint64_t done) {
                            SetStep(absl::StrCat(
                                "making the host tier: ", FormatBytes(done), " of ",
                                FormatBytes(config_.host_bytes + config_.staging_bytes)));
                          },
                      .needs_hugetlb = config_.huge_pages == "required",
                      .is_shared = maps_arena_}));
  const Arena& arena = host->arena();
  if (config_.map == "on" && arena.shared_fd() < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("map is on, and the host tier cannot be shared: ", arena.why_not_shared()));
  }
  local_gets_ = arena.shared_fd() >= 0    ? "mapped"
                : config_.map == "off"    ? "copied: --map is off"
                : config_.socket == "off" ? "copied: --socket is off"
                : !maps_arena_            ? "copied: the policy keeps tenants apart"
                                          : absl::StrCat("copied: ", arena.why_not_shared());
  std::vector<std::unique_ptr<CopyTier>> others;
  std::unique_ptr<DeviceCodec> codec;
  if (const std::optional<GpuShare> gpu = GpuOf(config_); gpu.has_value()) {
    CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<GpuDevice> device, OpenGpu(*gpu));
    const uint64_t bytes = limits::GpuCodecBytes(gpu->bytes);
    auto made = DeviceCodec::Make(
        device,
        {.bytes = bytes, .host = host.get(), .source_bytes_min = machine_.device_coded_bytes_min});
    if (!made.ok()) return Annotate(made.status(), "gpu");
    LogInfo("daemon", "GPU codec", {{"device", device->runtime().name()}, {"bytes", bytes}});
    codec = *std::move(made);
    CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<GpuTier> tier, MakeGpuTier(device, *host));
    if (tier != nullptr) others.push_back(std::move(tier));
  }
  uint64_t extents_max = 0;  // limit of the SSD tier
  if (const std::vector<SsdFolder> folders = SsdFoldersOf(config_); !folders.empty()) {
    CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<SsdTier> ssd, OpenSsd(folders));
    extents_max = ssd->extents_max();
    others.push_back(std::move(ssd));
  }
  tiers_ = std::make_unique<Tiers>(std::move(host), std::move(others));
  codec_ = std::move(codec);
  const uint64_t host_bytes = tiers_->host().capacity_bytes();
  const uint64_t leased_max = host_bytes / 100 * limits::kPinnedPercentMax;
  const uint64_t awake_max = AwakeBytesMaxOf(config_);
  const uint64_t removals_max = limits::RemovalsMax(awake_max);
  const uint64_t hints_max = limits::HintsMax(awake_max);
  index_ = std::make_unique<BlockIndex>(
      BlockIndex::Options{
          .blocks_max = BlocksMaxOf(config_) + extents_max,
          .images_max = limits::ImagesMax(BlocksMaxOf(config_)) + extents_max,
          .lease_bytes_max = leased_max,
          .awake_bytes_max =
              awake_max - removals_max * limits::kRemovalBytes - hints_max * limits::kHintBytes,
          .removals_max = static_cast<uint32_t>(removals_max),
          .hints_max = hints_max,
          .bytes_max = awake_max + extents_max * limits::kIndexBytesAtRest,
          .keeps_tokens = config_.event_tokens == "on",
          .announcements_max = config_.members == "off" ? 0 : limits::kAnnouncementsMax},
      *tiers_, clock_);
  index_->SetSessionCheck([this](uint64_t id) { return sessions_.IsOpen(id); });
  Recover();
  return absl::OkStatus();
}

void Daemon::MakeGenerations() {
  generations_ = std::make_unique<Generations>(Generations::Parts{
      .drop = [this](std::string_view tenant, const proto::Fingerprint& fingerprint) -> uint64_t {
        const absl::StatusOr<SpaceRef> space = spaces_.Find(fingerprint);
        if (!space.ok() || (*space)->tenant() != tenant) return 0;
        const uint64_t deleted = DropBlocks(*tiers_, *index_, **space);
        if (remote_ != nullptr) remote_->Forget((*space)->id());
        return deleted;
      },
      .save = [this](std::string list) { tiers_->SaveGenerations(list); },
      .clock = kTimeOfDay});
}

void Daemon::MakePolicies() {
  policies_ = std::make_unique<SpacePolicies>(
      SpacePolicies::Parts{.use = [this](const ToldPolicy& told) { return UsePolicy(told); },
                           .save = [this](std::string list) { tiers_->SavePolicies(list); },
                           .clock = kTimeOfDay});
}

absl::Status Daemon::UsePolicy(const ToldPolicy& told) {
  CAIRN_ASSIGN_OR_RETURN(const SpacePolicy policy,
                         spaces_.PolicyOf(told.recipe, told.cold_recipe, told.ttl_s));
  const absl::StatusOr<SpaceRef> space = spaces_.Find(told.space);
  if (!space.ok() || (*space)->tenant() != told.tenant) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR((*space)->coding().SetPolicy(policy));
  tiers_->PolicyChanged((*space)->Describe().record);
  return absl::OkStatus();
}

std::optional<SpacePolicy> Daemon::KnownPolicy(const SpaceEntry& space) const {
  if (policies_ == nullptr) return std::nullopt;
  const std::optional<ToldPolicy> told = policies_->Of(space.tenant(), space.fingerprint());
  if (!told.has_value()) return std::nullopt;
  const absl::StatusOr<SpacePolicy> policy =
      spaces_.PolicyOf(told->recipe, told->cold_recipe, told->ttl_s);
  if (!policy.ok()) return std::nullopt;
  return *policy;
}

void Daemon::Recover() {
  if (config_.members != "off") {
    MakeGenerations();
    MakePolicies();
  }
  Restorer::Lists lists;
  if (generations_ != nullptr) {
    lists.found_generations = [this](std::string_view list) { generations_->Restore(list); };
    lists.found_policies = [this](std::string_view list) { policies_->Restore(list); };
  }
  restorer_ = std::make_unique<Restorer>(spaces_, *index_, clock_, std::move(lists));
  SetStep("");
  for (CopyTier* tier : tiers_->all()) {
    if (!tier->traits().is_lasting) continue;
    const absl::Time began = MonotonicNow();
    if (const absl::Status status = tier->Recover(*restorer_); !status.ok()) {
      LogError("daemon", "tier is out: recovery failed",
               {{"tier", Name(tier->id())}, {"error", status}});
      index_->TakeOut(tier->id());
    }
    restorer_->Finish(MonotonicNow() - began);
  }
  SetStep("starting the data planes");
}

}  // namespace cairn
