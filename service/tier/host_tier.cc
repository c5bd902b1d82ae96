// SPDX-License-Identifier: Apache-2.0
#include "service/tier/host_tier.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "base/units.h"
#include "service/limits.h"

namespace cairn {
namespace {

// Limit for the evictions of one allocation. Other threads may take the freed room, so there must
// be a limit.
constexpr int kEvictionsMax = 100'000;

// Limit for evictions by age if no window can be evicted. They may free a range that is long
// enough.
constexpr int kLeavesForWindowMax = 64;

constexpr MetricLabel kHostLabel[] = {{"tier", "host"}};

}  // namespace

absl::StatusOr<std::unique_ptr<HostTier>> HostTier::Make(const Options& options) {
  if (options.capacity_bytes < limits::kHostBytesMin ||
      options.capacity_bytes > limits::kHostBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "host tier of ", FormatBytes(options.capacity_bytes), ": ",
        FormatBytes(limits::kHostBytesMin), " to ", FormatBytes(limits::kHostBytesMax)));
  }
  std::unique_ptr<HostTier> tier(new HostTier);
  CAIRN_ASSIGN_OR_RETURN(
      tier->arena_, Arena::Make({.budget_bytes = {options.capacity_bytes, options.staging_bytes},
                                 .fault_in = options.fault_in,
                                 .on_faulted_in = options.on_faulted_in,
                                 .needs_hugetlb = options.needs_hugetlb,
                                 .is_shared = options.is_shared}));
  return tier;
}

absl::Status HostTier::MakeRoom(uint64_t bytes, const BlockName* newcomer,
                                absl::FunctionRef<Arena::Refusal()> attempt) {
  CAIRN_CHECK(evictor_ != nullptr);
  int leaves = 0;  // evictions because there was no window
  if (RoundedExtentBytes(bytes) <= capacity_bytes()) {
    for (int evictions = 0; evictions < kEvictionsMax; ++evictions) {
      const Arena::Refusal refusal = attempt();
      if (refusal == Arena::Refusal::kNone) {
        return absl::OkStatus();
      }
      const bool has_evicted =
          (refusal == Arena::Refusal::kNoRoom && EvictWindow(bytes, newcomer)) ||
          ((refusal == Arena::Refusal::kOverBudget || leaves++ < kLeavesForWindowMax) &&
           evictor_->EvictOldest(TierId::kHost, EvictionReason::kCapacity, newcomer) > 0);
      if (!has_evicted) {
        break;
      }
    }
  }
  refused_[static_cast<size_t>(Use::kPlaced)].Add();
  return absl::ResourceExhaustedError(
      absl::StrCat("host tier: no room for ", bytes, " bytes in its ", capacity_bytes(),
                   ": all copies are pinned, in use or ancestors of the new block"));
}

bool HostTier::EvictWindow(uint64_t bytes, const BlockName* newcomer) {
  // A window may lie across the start of the search.
  const uint64_t once_around = arena_->capacity_bytes() + RoundedExtentBytes(bytes);
  for (uint64_t bytes_passed = 0; bytes_passed < once_around;) {
    if (evictor_->EvictWindow(bytes, newcomer, &bytes_passed)) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<Extent> HostTier::Allocate(uint64_t bytes, const BlockName* newcomer) {
  Extent extent;
  CAIRN_RETURN_IF_ERROR(MakeRoom(bytes, newcomer, [&] {
    Arena::Refusal refusal;
    extent = arena_->Allocate(bytes, Use::kPlaced, &refusal);
    return refusal;
  }));
  return extent;
}

const TierTraits& HostTier::traits() const {
  static constexpr TierTraits kTraits = {
      .id = TierId::kHost, .is_addressable = true, .is_leaf_first = true, .may_hold_last = true};
  return kTraits;
}

absl::StatusOr<TierExtent> HostTier::Reserve(uint64_t bytes, const Placement&) {
  CAIRN_ASSIGN_OR_RETURN(Extent extent, Allocate(bytes));
  return TierExtent(std::move(extent));
}

TransferId HostTier::Read(const TierRead& read, TierDone done) {
  const std::span<const std::byte> source =
      read.place->bytes().subspan(read.offset, read.target.size());
  std::copy(source.begin(), source.end(), read.target.begin());
  std::move(done)(absl::OkStatus());
  return 0;
}

TransferId HostTier::Write(const TierWrite& write, TierDone done) {
  CAIRN_CHECK(write.source.size() == write.place->size_bytes());
  std::copy(write.source.begin(), write.source.end(), write.place->bytes().begin());
  std::move(done)(absl::OkStatus());
  return 0;
}

void HostTier::Free(uint64_t, uint64_t) {
  CAIRN_CHECK(false, "a place of the host tier is an extent");
}

absl::StatusOr<Extent> HostTier::AllocateStaging(uint64_t bytes, const BlockName* newcomer) {
  Arena::Refusal refusal;
  Extent extent = arena_->Allocate(bytes, Use::kStaging, &refusal);
  // The budget is sufficient, but placed images may separate the free ranges.
  if (uint64_t bytes_passed = 0; refusal == Arena::Refusal::kNoRoom) {
    evictor_->EvictWindow(bytes, newcomer, &bytes_passed);
    extent = arena_->Allocate(bytes, Use::kStaging, &refusal);
  }
  if (refusal == Arena::Refusal::kNone) {
    return extent;
  }
  refused_[static_cast<size_t>(Use::kStaging)].Add();
  return absl::ResourceExhaustedError(absl::StrCat("staging: no room for ", bytes, " bytes in its ",
                                                   arena_->budget_bytes(Use::kStaging),
                                                   ": the rest is in flight"));
}

absl::Status HostTier::PlaceStaged(Extent& staged, const BlockName* newcomer) {
  return MakeRoom(staged.size_bytes(), newcomer, [&] {
    return arena_->ChangeUse(staged, Use::kPlaced) ? Arena::Refusal::kNone
                                                   : Arena::Refusal::kOverBudget;
  });
}

bool HostTier::EvictToWatermark() {
  const uint64_t percent = is_evicting_to_low_.load(std::memory_order_relaxed)
                               ? limits::kLowWatermarkPercent
                               : limits::kHighWatermarkPercent;
  const bool is_above = used_bytes() > capacity_bytes() / 100 * percent;
  const bool has_evicted =
      is_above && evictor_->EvictOldest(TierId::kHost, EvictionReason::kWatermark) > 0;
  is_evicting_to_low_.store(has_evicted, std::memory_order_relaxed);
  return has_evicted;
}

void HostTier::Report(MetricSink& sink) const {
  sink.AddGauge("cairn_tier_capacity_bytes", "Capacity of a tier in bytes.", kHostLabel,
                static_cast<double>(capacity_bytes()));
  sink.AddGauge("cairn_tier_used_bytes",
                "Bytes of images in a tier, as allocated (rounded), including unlinked ones that "
                "are still being read.",
                kHostLabel, static_cast<double>(used_bytes()));
  sink.AddGauge("cairn_staging_capacity_bytes",
                "Limit for payloads and answers in flight, in bytes.", {},
                static_cast<double>(arena_->budget_bytes(Use::kStaging)));
  sink.AddGauge("cairn_staging_used_bytes", "Bytes of payloads and answers in flight.", {},
                static_cast<double>(staging_bytes()));
  sink.AddGauge("cairn_arena_largest_free_bytes", "Largest extent that would fit without eviction.",
                {}, static_cast<double>(arena_->largest_free_bytes()));
  sink.AddCounter("cairn_arena_allocated_bytes_total",
                  "Bytes allocated by the arena; minus cairn_arena_freed_bytes_total they are the "
                  "bytes in use.",
                  {}, arena_->allocated_bytes_total());
  sink.AddCounter("cairn_arena_freed_bytes_total", "Bytes returned to the arena.", {},
                  arena_->freed_bytes_total());
  constexpr std::pair<Arena::Pages, std::string_view> kPages[] = {
      {Arena::Pages::kHugetlb, "hugetlb"},
      {Arena::Pages::kTransparent, "transparent"},
      {Arena::Pages::kSmall, "small"}};
  for (const auto& [pages, name] : kPages) {
    const MetricLabel labels[] = {{"pages", name}};
    sink.AddGauge("cairn_arena_pages_state",
                  "1 for the kind of the arena's pages: reserved huge pages, transparent huge "
                  "pages, or small pages.",
                  labels, arena_->pages() == pages ? 1 : 0);
  }
  constexpr std::string_view kUseNames[kUseCount] = {"placed", "staging"};
  for (size_t use = 0; use < kUseCount; ++use) {
    const MetricLabel labels[] = {{"use", kUseNames[use]}};
    sink.AddCounter("cairn_arena_refused_total",
                    "Allocations refused because everything was pinned or in use.", labels,
                    refused_[use].Value());
  }
}

}  // namespace cairn
