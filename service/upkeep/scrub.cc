// SPDX-License-Identifier: Apache-2.0
#include "service/upkeep/scrub.h"

#include <algorithm>

#include "base/status.h"
#include "service/limits.h"

namespace cairn {
namespace {

// Limit for one round, so that no deadline waits long for it. A walk visits 64 slots of the index.
constexpr int kWalksPerRound = 64;
// The pause after a read that got no staging, or that the device did not do.
constexpr absl::Duration kRest = absl::Seconds(1);

uint64_t RateOf(const CopyTier* tier, std::optional<uint64_t> rate_bytes) {
  if (tier == nullptr) {
    return 0;
  }
  constexpr uint64_t kPassSeconds = uint64_t{limits::kScrubPassDays} * 86'400;
  return rate_bytes.value_or(std::clamp(tier->capacity_bytes() / kPassSeconds,
                                        limits::kScrubRateBytesMin, limits::kScrubRateBytesMax));
}

}  // namespace

CopyTier* Scrub::TierOf(const Tiers& tiers) {
  const auto found = std::find_if(tiers.all().begin(), tiers.all().end(),
                                  [](const CopyTier* tier) { return tier->traits().is_lasting; });
  return found == tiers.all().end() ? nullptr : *found;
}

Scrub::Scrub(Spaces& spaces, BlockIndex& index, Tiers& tiers, const Clock& clock,
             std::optional<uint64_t> rate_bytes, std::function<void()> wake)
    : index_(index),
      tiers_(tiers),
      clock_(clock),
      tier_(TierOf(tiers)),
      rate_bytes_(RateOf(tier_, rate_bytes)),
      wake_(std::move(wake)),
      check_(spaces, index, "scrub") {}

absl::Time Scrub::RunOnce(absl::Time now) {
  if (rate_bytes_ == 0) {
    return absl::InfiniteFuture();
  }
  std::optional<absl::Status> read;
  {
    const MutexLock lock(mutex_);
    if (is_stopping_ || (is_reading_ && !read_.has_value())) {
      return absl::InfiniteFuture();  // the completion of a read wakes upkeep
    }
    read.swap(read_);
    is_reading_ = false;
  }
  if (read.has_value()) {
    CheckRead(*read);
  }
  if (now < again_) {
    return again_;
  }
  for (int walks = 0; walks < kWalksPerRound; ++walks) {
    absl::Time next = now;
    if (FindNext(now, &next)) {
      Begin(now);
      return again_;
    }
    if (next > now) {
      return next;
    }
  }
  return now;
}

bool Scrub::FindNext(absl::Time now, absl::Time* next) {
  if (!is_in_pass_) {
    if (const absl::Time due = pass_began_ + absl::Milliseconds(limits::kScrubPassMsMin);
        now < due) {
      *next = due;
      return false;
    }
    is_in_pass_ = true;
    pass_began_ = now;
    cursor_ = 0;
    const MutexLock lock(mutex_);
    pass_images_ = pass_bytes_ = 0;
  }
  if (index_.WalkTier(tier_->id(), 0, &cursor_, &pin_)) {
    return !pin_.is_empty();
  }
  is_in_pass_ = false;
  passes_.Add();
  const MutexLock lock(mutex_);
  last_pass_ = now;
  return false;
}

void Scrub::Begin(absl::Time now) {
  const uint64_t bytes = pin_.copy().image_bytes;
  const absl::Duration took = absl::Seconds(static_cast<double>(bytes) / rate_bytes_);
  Arena::Refusal refusal;
  memory_ = tiers_.host().arena().Allocate(bytes, Use::kStaging, &refusal);  // does not evict
  if (memory_.is_empty()) {  // the next pass tries this copy again
    pin_.Reset();
    again_ = now + kRest;
    return;
  }
  again_ = now + took;
  {
    const MutexLock lock(mutex_);
    is_reading_ = true;
  }
  in_flight_.Enter();
  transfer_ =
      tier_->Read({.place = &pin_.extent(), .target = memory_.bytes(), .is_background = true},
                  [this](absl::Status status) { Completed(std::move(status)); });
}

void Scrub::Completed(absl::Status status) {
  {
    const MutexLock lock(mutex_);
    read_ = std::move(status);
  }
  wake_();
  in_flight_.Leave();
}

void Scrub::CheckRead(const absl::Status& status) {
  const uint64_t bytes = pin_.copy().image_bytes;
  if (status.ok()) {
    check_.Check(pin_, memory_.bytes().first(bytes));
  } else if (absl::IsDataLoss(status)) {
    check_.Drop(pin_, "the tier cannot read it");
  }
  pin_.Reset();
  memory_.Reset();
  if (!status.ok() && !absl::IsDataLoss(status)) {
    again_ = std::max(again_, clock_.Now() + kRest);
    return;
  }
  bytes_.Add(bytes);
  const MutexLock lock(mutex_);
  ++pass_images_;
  pass_bytes_ += bytes;
}

void Scrub::Stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    if (!is_reading_) {
      return;
    }
  }
  tier_->Cancel(transfer_);  // does nothing if the read has completed
  in_flight_.Await();        // ends, because a tier completes every transfer
  {
    const MutexLock lock(mutex_);
    is_reading_ = false;
  }
  pin_.Reset();
  memory_.Reset();
}

ScrubReport Scrub::Describe() const {
  ScrubReport report = {.rate_bytes = rate_bytes_,
                        .pass_count = passes_.Value(),
                        .corrupt_count = check_.corrupt().Value()};
  const MutexLock lock(mutex_);
  report.image_count = pass_images_;
  report.image_bytes = pass_bytes_;
  if (last_pass_.has_value()) {
    report.since_last_pass = clock_.Now() - *last_pass_;
  }
  return report;
}

void Scrub::Report(MetricSink& sink) const {
  const ScrubReport report = Describe();
  sink.AddGauge("cairn_scrub_rate_bytes", "Limit of the scrubber in bytes per second; 0: off.", {},
                static_cast<double>(report.rate_bytes));
  sink.AddGauge(
      "cairn_scrub_pass_bytes",
      "Bytes of copies that the scrubber has read in the running pass, or in the last one.", {},
      static_cast<double>(report.image_bytes));
  sink.AddCounter("cairn_scrub_passes_total", "Passes of the scrubber over all copies on devices.",
                  {}, report.pass_count);
  sink.AddCounter("cairn_scrubbed_images_total", "Copies that the scrubber has verified.", {},
                  check_.checked().Value());
  sink.AddCounter("cairn_scrubbed_bytes_total", "Bytes of copies that the scrubber has verified.",
                  {}, bytes_.Value());
  sink.AddGauge("cairn_scrub_last_pass_seconds",
                "Time since the scrubber's last complete pass; 0: there was none.", {},
                absl::ToDoubleSeconds(report.since_last_pass.value_or(absl::ZeroDuration())));
  check_.Report(sink);
}

}  // namespace cairn
