// SPDX-License-Identifier: Apache-2.0
#include "service/upkeep/upkeep.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/transform/demote.h"
#include "service/active_backend.h"
#include "service/step_timer.h"

namespace cairn {
namespace {

// Of one round, so that a deadline never waits long for it.
constexpr int kEvictionsPerRound = 256;
constexpr size_t kEncodesPerRound = 4;
// The longest sleep: the watermark is looked at so often.
constexpr absl::Duration kSleepMax = absl::Seconds(1);
// After a round that could not encode for want of room.
constexpr absl::Duration kRetry = absl::Milliseconds(100);

}  // namespace

Upkeep::Upkeep(Spaces& spaces, BlockIndex& index, HostTier& host, const Clock& clock)
    : spaces_(spaces),
      index_(index),
      host_(host),
      clock_(clock),
      backend_(ActiveBackend()),
      mining_(spaces, index, host, backend_),
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
  while (evictions < kEvictionsPerRound && host_.EvictToWatermark()) {
    ++evictions;
  }
  const bool has_more = EncodePending() || evictions == kEvictionsPerRound;
  const absl::Time now = clock_.Now();
  next = std::min(next, mining_.RunSlice(now));
  if (has_more) {
    return now;
  }
  return std::min(next, now + (index_.pending_count() > 0 ? kRetry : kSleepMax));
}

bool Upkeep::EncodePending() {
  const BlockIndex::Pins pins = index_.TakePending(kEncodesPerRound);
  bool has_room = true;
  for (const Pin& pin : pins) {
    if (!has_room || absl::IsResourceExhausted(EncodeOne(pin))) {
      has_room = false;
      index_.PutBackPending(pin);
    }
  }
  return has_room && index_.pending_count() > 0;
}

absl::Status Upkeep::EncodeOne(const Pin& pin) {
  const StepTimer timer(encode_seconds_);
  CAIRN_ASSIGN_OR_RETURN(const SpaceEntry* space, spaces_.Find(pin.facts().space_id));
  if (!VerifyOne(pin)) {
    return absl::OkStatus();
  }
  codecs::ImageView view;
  CAIRN_CHECK(codecs::ParseImage(pin.bytes(), &view) == codecs::Error::kOk);
  codecs::ImageSpec spec = view.spec();
  SideObjectRef side_object = spaces_.Settle(*space, &spec);
  // Since it was kept raw the space may have turned raw.
  if (spec == view.spec()) {
    return absl::OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(Extent image, side_object.get() == nullptr
                                           ? Demoted(view, spec.recipe)
                                           : Recoded(view, spec, side_object.inputs()));
  CAIRN_RETURN_IF_ERROR(host_.Place(image));
  if (index_.Replace(pin, codecs::RecordedSpec(spec, {}).recipe, std::move(image),
                     std::move(side_object))) {
    encoded_.Add();
  }
  return absl::OkStatus();
}

absl::StatusOr<Extent> Upkeep::Demoted(const codecs::ImageView& view,
                                       const codecs::Recipe& recipe) {
  CAIRN_ASSIGN_OR_RETURN(Extent image, host_.AllocateStaging(codecs::DemoteBytesMax(view, recipe)));
  size_t bytes = 0;
  const codecs::Error error = codecs::Demote(backend_, view, recipe, image.bytes(), &bytes);
  if (error != codecs::Error::kOk) {
    return absl::InternalError(absl::StrCat("demote: ", ToAbsl(codecs::Name(error))));
  }
  image.ShrinkTo(bytes);
  return image;
}

absl::StatusOr<Extent> Upkeep::Recoded(const codecs::ImageView& view, const codecs::ImageSpec& spec,
                                       const codecs::DecodeInputs& side) {
  uint64_t source_bytes = 0, bytes_max = 0;
  CAIRN_CHECK(codecs::SourceBytes(spec.tile, spec.slice, spec.tokens, &source_bytes) ==
                  codecs::Error::kOk &&
              codecs::MaxImageBytes(spec, &bytes_max) == codecs::Error::kOk);
  CAIRN_ASSIGN_OR_RETURN(const Extent source, host_.AllocateStaging(source_bytes));
  CAIRN_ASSIGN_OR_RETURN(Extent image, host_.AllocateStaging(bytes_max));
  codecs::Error error = codecs::Decode(backend_, view, spec.slice, source.bytes());
  size_t bytes = 0;
  if (error == codecs::Error::kOk) {
    error = codecs::Encode(backend_, spec, source.bytes(), image.bytes(), &bytes,
                           codecs::EncodeWith(side));
  }
  if (error != codecs::Error::kOk) {
    return absl::InternalError(absl::StrCat("encode: ", ToAbsl(codecs::Name(error))));
  }
  image.ShrinkTo(bytes);
  return image;
}

void Upkeep::Report(MetricSink& sink) const {
  sink.AddCounter("cairn_upkeep_rounds_total", "Rounds of chores.", {}, rounds_.Value());
  sink.AddCounter("cairn_upkeep_encoded_total", "Images kept raw that were encoded later.", {},
                  encoded_.Value());
  const MetricLabel encode[] = {{"step", "encode"}};
  sink.AddHistogram("cairn_upkeep_step_seconds",
                    "Time of each step of upkeep; of mining, of each slice.", encode,
                    encode_seconds_.Snapshot());
  mining_.Report(sink);
  const MetricLabel where[] = {{"where", "upkeep"}};
  sink.AddCounter("cairn_corrupt_tiles_total",
                  "Tiles (on the wire: payloads) whose bytes did not match their CRC, by where.",
                  where, corrupt_images_.Value());
  sink.AddCounter("cairn_verified_images_total", "Images checked by Verify and upkeep.", {},
                  verified_images_.Value());
}

}  // namespace cairn
