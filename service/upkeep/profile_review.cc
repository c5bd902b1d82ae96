// SPDX-License-Identifier: Apache-2.0
#include "service/upkeep/profile_review.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/image/settle.h"

namespace cairn {
namespace {

constexpr absl::Duration kReviewSlice = absl::Milliseconds(5);
constexpr absl::Duration kEvery = absl::Seconds(10);
constexpr int kRestPerWalk = 50;  // the pause after a walk, as a multiple of its duration
constexpr uint64_t kLargerMin = 2;

}  // namespace

absl::Time ProfileReview::RunSlice(absl::Time now, std::vector<Withdrawn>* withdrawn) {
  if (now < next_) {
    return next_;
  }
  const absl::Time started = MonotonicNow();
  if (!is_walking_) {
    Begin();
  }
  while (!spaces_left_.empty() && MonotonicNow() - started < kReviewSlice) {
    CopyPins pins;
    const bool has_more = index_.Walk(spaces_left_.back(), &cursor_, &pins);
    for (const CopyPin& pin : pins) {
      Weigh(pin);
    }
    if (!has_more) {
      spaces_left_.pop_back();
      cursor_ = 0;
    }
  }
  spent_ += MonotonicNow() - started;
  if (!spaces_left_.empty()) {
    return now;
  }
  Conclude(withdrawn);
  next_ = now + std::max(kEvery, kRestPerWalk * spent_);
  return next_;
}

void ProfileReview::Begin() {
  is_walking_ = true;
  spent_ = absl::ZeroDuration();
  tallies_.clear();
  cursor_ = 0;
  for (const SpaceRef& space : spaces_.List()) {
    bool has_mined = false;
    for (uint16_t group = 0; group < space->groups().size(); ++group) {
      const SideObjectRef mined = space->coding().MinedProfile(group);
      if (mined.get() != nullptr) {
        tallies_[{space->id(), group}].id = mined.get()->id();
        has_mined = true;
      }
    }
    if (has_mined) {
      spaces_left_.push_back(space->id());
    }
  }
}

void ProfileReview::Weigh(const CopyPin& pin) {
  const auto found = tallies_.find({pin.facts().space_id, pin.facts().group});
  if (found == tallies_.end() || pin.side_object() == nullptr ||
      pin.side_object()->id() != found->second.id) {
    return;
  }
  ++found->second.seen;
  if (pin.copy().image_bytes > pin.facts().source_bytes / 2 && IsLargerThanExact(pin)) {
    ++found->second.larger;
  }
}

bool ProfileReview::IsLargerThanExact(const CopyPin& pin) {
  codecs::ImageView view;
  if (codecs::ParseImage(pin.bytes(), &view) != codecs::Error::kOk) {
    return false;  // damaged; gets and checks report it
  }
  codecs::ImageSpec spec = view.spec();
  spec.slice.layer_count = 1;
  spec.slice.head_count = 1;
  uint64_t source_bytes = 0, image_bytes_max = 0, bytes = 0;
  for (uint32_t tile = 0; tile < codecs::PlaneCount(spec.tile.kind); ++tile) {
    bytes += view.TileContent(tile).size();
  }
  if (codecs::VerifyTiles(view, spec.slice) != codecs::Error::kOk ||
      codecs::SourceBytes(spec.tile, spec.slice, spec.tokens, &source_bytes) !=
          codecs::Error::kOk) {
    return false;
  }
  source_.resize(source_bytes);
  if (codecs::Decode(backend_, view, spec.slice, source_, pin.side_object()->content().inputs()) !=
      codecs::Error::kOk) {
    return false;
  }
  CAIRN_CHECK(codecs::SetRecipe("exact", {}, {}, &spec) == codecs::Error::kOk &&
              codecs::MaxImageBytes(spec, &image_bytes_max) == codecs::Error::kOk);
  image_.resize(image_bytes_max);
  size_t exact_bytes = 0;
  CAIRN_CHECK(codecs::Encode(backend_, spec, source_, image_, &exact_bytes) == codecs::Error::kOk);
  return bytes > exact_bytes;
}

void ProfileReview::Conclude(std::vector<Withdrawn>* withdrawn) {
  is_walking_ = false;
  for (const auto& [place, tally] : tallies_) {
    const auto& [space_id, group] = place;
    if (tally.larger < kLargerMin || 2 * tally.larger <= tally.seen) {
      continue;
    }
    const absl::StatusOr<SpaceRef> space = spaces_.Find(space_id);
    if (!space.ok() || !(*space)->coding().Withdraw(group, tally.id)) {
      continue;
    }
    withdrawn_.Add();
    withdrawn->push_back({space_id, group, tally.id});
    LogInfo(
        "upkeep", "withdrew a mined profile: its images are larger than exact",
        {{"space", space_id}, {"group", group}, {"images", tally.seen}, {"larger", tally.larger}});
  }
}

void ProfileReview::Report(MetricSink& sink) const {
  sink.AddCounter("cairn_upkeep_profiles_withdrawn_total",
                  "Mined profiles withdrawn because their images were larger than with exact.", {},
                  withdrawn_.Value());
}

}  // namespace cairn
