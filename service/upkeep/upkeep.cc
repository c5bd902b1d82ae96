// SPDX-License-Identifier: Apache-2.0
#include "service/upkeep/upkeep.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "codecs/image/encode.h"
#include "proto/block_key.h"
#include "service/active_backend.h"
#include "service/index/pinned_image.h"
#include "service/step_timer.h"

namespace cairn {
namespace {

// Of one round, so that a deadline never waits long for it.
constexpr int kEvictionsPerRound = 256;
constexpr size_t kEncodesPerRound = 4;
constexpr int kCollectionsPerRound = 64;
// From the end of one collection of blocks whose time is over to the next.
constexpr absl::Duration kCollectionRest = absl::Seconds(10);
// The longest sleep: the watermark is looked at so often.
constexpr absl::Duration kSleepMax = absl::Seconds(1);
// After a round that could not encode for want of room; twice as long each time in a row.
constexpr absl::Duration kRetryMin = absl::Milliseconds(100);
constexpr absl::Duration kRetryMax = absl::Seconds(10);
// Images that wait for the image of the block before to be encoded first.
constexpr size_t kClimbMax = 4096;
constexpr std::string_view kFailureNames[] = {"space", "room", "codec"};

bool GoesOnWithParents(const codecs::Recipe& recipe, uint64_t first_position) {
  return recipe.id == codecs::RecipeId::kOtt && !recipe.is_local && first_position > 0;
}

}  // namespace

Upkeep::Upkeep(Spaces& spaces, BlockIndex& index, Tiers& tiers, const Clock& clock,
               const Options& options)
    : spaces_(spaces),
      index_(index),
      tiers_(tiers),
      clock_(clock),
      recoder_(tiers, ActiveBackend()),
      check_(spaces, index, "upkeep"),
      mining_(spaces, index, tiers, ActiveBackend()),
      write_down_(spaces, index, tiers, clock, options.write_budget_bytes, check_, recoder_,
                  [this] { Wake(); }),
      device_copies_(spaces, index, index, tiers, [this] { Wake(); }),
      scrub_(spaces, index, tiers, clock, options.scrub_rate_bytes, [this] { Wake(); }),
      retry_(kRetryMin),
      encode_seconds_(LatencyBounds()) {}

void Upkeep::Start() {
  CAIRN_CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void Upkeep::Stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  woken_.NotifyAll();
  if (thread_.joinable()) {
    thread_.join();
  }
  mining_.Stop();
  scrub_.Stop();
  write_down_.Stop();
  device_copies_.Stop();
}

void Upkeep::Wake() {
  {
    const MutexLock lock(mutex_);
    is_woken_ = true;
  }
  woken_.NotifyOne();
}

void Upkeep::Run() {
  pthread_setname_np(pthread_self(), "upkeep");
  for (;;) {
    const absl::Duration rest = RunOnce() - clock_.Now();
    const absl::Time until = MonotonicNow() + std::min(rest, kSleepMax);
    const MutexLock lock(mutex_);
    while (!is_stopping_ && !is_woken_ && woken_.WaitUntil(mutex_, until)) {
    }
    is_woken_ = false;
    if (is_stopping_) {
      return;
    }
  }
}

absl::Time Upkeep::RunOnce() {
  rounds_.Add();
  absl::Time next = std::min(index_.AnswerLateWaiters(), index_.ExpireLeases());
  int evictions = 0;
  while (evictions < kEvictionsPerRound && tiers_.host().EvictToWatermark()) {
    ++evictions;
  }
  const absl::Time now = clock_.Now();
  if (now >= next_retirement_) {
    spaces_.RetireIdle();
    next_retirement_ = now + kSleepMax;
  }
  bool has_more = CollectExpired(now) || evictions == kEvictionsPerRound;
  if (now >= encode_again_) {
    has_more = EncodePending() || has_more;
  }
  has_more = device_copies_.RunOnce() || has_more;
  next = std::min({next, mining_.RunSlice(now), write_down_.RunOnce(now), scrub_.RunOnce(now)});
  if (has_more) {
    return now;
  }
  return std::min(next, index_.pending_count() > 0 ? encode_again_ : now + kSleepMax);
}

bool Upkeep::CollectExpired(absl::Time now) {
  if (now < next_collection_) {
    return false;
  }
  for (int holds = 0; holds < kCollectionsPerRound; ++holds) {
    if (!index_.CollectExpired(&collected_)) {
      collected_ = 0;
      next_collection_ = now + kCollectionRest;
      return false;
    }
  }
  return true;
}

bool Upkeep::EncodePending() {
  std::vector<ResidentPin> to_do;  // one, and what has to be encoded before it
  bool has_room = true;
  // Ends: what is taken is pending no more, and a chain is shorter than kClimbMax or cut there.
  for (size_t encoded = 0; encoded < kEncodesPerRound && has_room;) {
    if (to_do.empty()) {
      ResidentPins taken = index_.TakePending(1);
      if (taken.empty()) {
        break;
      }
      std::move(taken.begin(), taken.end(), std::back_inserter(to_do));
    }
    if (ResidentPins before = TakePendingParents(to_do.back()); !before.empty()) {
      if (to_do.size() >= kClimbMax) {
        PutBack(to_do);
      }
      std::move(before.begin(), before.end(), std::back_inserter(to_do));
      continue;
    }
    const absl::Status status = EncodeOne(to_do.back());
    if (absl::IsResourceExhausted(status)) {
      has_room = false;
      continue;
    }
    if (!status.ok()) {
      CountEncodeFailure(to_do.back(), status);
    }
    to_do.pop_back();
    ++encoded;
  }
  PutBack(to_do);
  encode_again_ = has_room ? absl::InfinitePast() : clock_.Now() + retry_;
  retry_ = has_room ? kRetryMin : std::min(2 * retry_, kRetryMax);
  return has_room && index_.pending_count() > 0;
}

void Upkeep::PutBack(std::vector<ResidentPin>& pins) {
  for (const ResidentPin& pin : pins) {
    index_.PutBackPending(pin);
  }
  pins.clear();
}

ResidentPins Upkeep::TakePendingParents(const ResidentPin& pin) {
  ResidentPins pending;
  const absl::StatusOr<SpaceRef> space = spaces_.Find(pin.facts().space_id);
  const std::optional<BlockName> before = index_.BlockBefore(pin);
  if (!space.ok() || !before.has_value() ||
      !GoesOnWithParents((*space)->recipe(), pin.facts().first_position)) {
    return pending;
  }
  for (ResidentPin& parent : index_.Lookup(*before, pin.facts().group, pin.facts().slice)) {
    if (index_.TakePending(parent)) {
      pending.push_back(std::move(parent));
    }
  }
  return pending;
}

Upkeep::Parents Upkeep::ParentsOf(const ResidentPin& pin, const SpaceEntry& space,
                                  const codecs::ImageSpec& spec) {
  Parents parents;
  const std::optional<BlockName> before = index_.BlockBefore(pin);
  if (!before.has_value() || !GoesOnWithParents(spec.recipe, spec.first_position)) {
    return parents;
  }
  parents.pins = index_.Lookup(*before, spec.group, spec.slice);
  for (const ResidentPin& parent : parents.pins) {
    codecs::ImageView view;
    if (ParsePinned(parent, parent.bytes(), space.fingerprint(), &view) != codecs::Error::kOk ||
        codecs::VerifyTiles(view) != codecs::Error::kOk) {
      return {};
    }
    parents.views.push_back(view);
  }
  return parents;
}

absl::Status Upkeep::EncodeOne(const ResidentPin& pin) {
  const StepTimer timer(encode_seconds_);
  CAIRN_ASSIGN_OR_RETURN(const SpaceRef space, spaces_.Find(pin.facts().space_id));
  if (!check_.Check(pin, pin.bytes())) {
    return absl::OkStatus();
  }
  codecs::ImageView view;
  CAIRN_CHECK(codecs::ParseImage(pin.bytes(), &view) == codecs::Error::kOk);
  codecs::ImageSpec spec = view.spec();
  SideObjectRef side_object = space->coding().Settle(&spec);
  // Since it was kept raw the space may have turned raw.
  if (spec == view.spec()) {
    return absl::OkStatus();
  }
  const Parents parents = ParentsOf(pin, *space, spec);
  codecs::EncodeInputs inputs = codecs::EncodeWith(side_object.inputs());
  inputs.parents = parents.views;
  CAIRN_ASSIGN_OR_RETURN(Extent image, side_object.get() == nullptr && parents.views.empty()
                                           ? recoder_.Demote(view, spec.recipe)
                                           : recoder_.Encode(view, spec, inputs));
  const BlockName block = {pin.facts().space_id, pin.facts().key};
  CAIRN_RETURN_IF_ERROR(tiers_.host().PlaceStaged(image, &block));
  if (index_.Replace(pin, {.recipe = codecs::RecordedSpec(spec, inputs).recipe,
                           .extent = std::move(image),
                           .side_object = std::move(side_object),
                           .tenant = space->tenant()})) {
    encoded_.Add();
  }
  return absl::OkStatus();
}

void Upkeep::CountEncodeFailure(const ResidentPin& pin, const absl::Status& status) {
  const EncodeFailure failure = absl::IsNotFound(status)             ? EncodeFailure::kSpace
                                : absl::IsFailedPrecondition(status) ? EncodeFailure::kRoom
                                                                     : EncodeFailure::kCodec;
  encode_failures_[static_cast<size_t>(failure)].Add();
  LogWarn("upkeep", "image stays as it was put: it cannot be encoded",
          {{"space", pin.facts().space_id},
           {"key", proto::Hex(std::span(pin.facts().key).first(4))},
           {"group", pin.facts().group},
           {"error", status}});
}

void Upkeep::Report(MetricSink& sink) const {
  sink.AddCounter("cairn_upkeep_rounds_total", "Rounds of chores.", {}, rounds_.Value());
  sink.AddCounter("cairn_upkeep_encoded_total", "Images kept raw that were encoded later.", {},
                  encoded_.Value());
  for (size_t i = 0; i < kEncodeFailureCount; ++i) {
    const MetricLabel reason[] = {{"reason", kFailureNames[i]}};
    sink.AddCounter("cairn_upkeep_encode_failed_total",
                    "Images kept raw that stay so, because their encoding failed, by reason.",
                    reason, encode_failures_[i].Value());
  }
  const MetricLabel encode[] = {{"step", "encode"}};
  sink.AddHistogram("cairn_upkeep_step_seconds",
                    "Time of each step of upkeep; of mining, of each slice.", encode,
                    encode_seconds_.Snapshot());
  mining_.Report(sink);
  write_down_.Report(sink);
  device_copies_.Report(sink);
  scrub_.Report(sink);
  check_.Report(sink);
  sink.AddCounter("cairn_verified_images_total", "Images checked by Verify and upkeep.", {},
                  check_.checked().Value());
}

}  // namespace cairn
