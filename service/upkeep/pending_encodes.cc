// SPDX-License-Identifier: Apache-2.0
#include "service/upkeep/pending_encodes.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "codecs/format/image_header.h"
#include "codecs/image/chain.h"
#include "codecs/image/encode.h"
#include "proto/block_key.h"
#include "service/index/pin.h"

namespace cairn {
namespace {

constexpr size_t kEncodesPerRound = 4;
// The pause after a round that lacked room. It doubles each time in a row.
constexpr absl::Duration kRetryMin = absl::Milliseconds(100);
constexpr absl::Duration kRetryMax = absl::Seconds(10);
// The limit for a chain of images that wait for the encoding of their previous block.
constexpr size_t kClimbMax = 4096;
constexpr std::string_view kFailureNames[] = {"space", "room", "codec"};

// If the tiles of a raw image are a source payload, returns their bytes. Otherwise there is padding
// between them, and the result is empty.
std::span<const std::byte> SourceWithin(const codecs::ImageView& view) {
  const codecs::ImageSpec& spec = view.spec();
  uint64_t bytes = 0;
  CAIRN_CHECK(codecs::SourceBytes(spec.tile, spec.slice, spec.tokens, &bytes) ==
              codecs::Error::kOk);
  const bool is_packed =
      spec.recipe.IsRaw() && codecs::PrefixBytes(view.tile_count()) + bytes == view.bytes().size();
  return is_packed ? view.bytes().last(bytes) : std::span<const std::byte>();
}

}  // namespace

// An image that is being encoded. A device that is late keeps it alive.
// Thread-safety: Thread-compatible, except Made() and Await().
class PendingEncodes::Encoding {
 public:
  CopyPin pin;
  SpaceRef space;
  codecs::ImageView view;
  codecs::ImageSpec spec;
  SideObjectRef side_object;
  Parents parents;
  absl::Time began = MonotonicNow();
  bool is_asked_of_device = false;

  codecs::EncodeInputs inputs() const {
    codecs::EncodeInputs inputs = codecs::EncodeWith(side_object.inputs());
    inputs.parents = parents.views;
    return inputs;
  }
  void Made(absl::StatusOr<Extent> image) {
    const MutexLock lock(mutex_);
    image_ = std::move(image);
    made_.NotifyAll();
  }
  absl::StatusOr<Extent> Await() {
    const MutexLock lock(mutex_);
    while (!image_.has_value()) {  // ends, because the codec runs every completion
      made_.WaitUntil(mutex_, MonotonicNow() + absl::Seconds(1));
    }
    return *std::move(image_);
  }

 private:
  Mutex mutex_;
  CondVar made_;
  std::optional<absl::StatusOr<Extent>> image_ ABSL_GUARDED_BY(mutex_);
};

PendingEncodes::PendingEncodes(Spaces& spaces, BlockIndex& index, Tiers& tiers, const Clock& clock,
                               ImageCheck& check, const Recoder& recoder, DeviceCodec* device)
    : spaces_(spaces),
      index_(index),
      tiers_(tiers),
      clock_(clock),
      check_(check),
      recoder_(recoder),
      device_(device),
      retry_(kRetryMin),
      seconds_(LatencyBounds()) {}

bool PendingEncodes::RunOnce(absl::Time now) {
  if (now < again_) {
    return false;
  }
  std::vector<CopyPin> to_do;  // an image, and those that must be encoded before it
  std::vector<std::shared_ptr<Encoding>> begun;
  bool has_room = true;
  // The loop ends, because a taken image is no longer pending, and a chain is cut at kClimbMax.
  for (size_t encoded = 0; encoded < kEncodesPerRound && has_room;) {
    if (to_do.empty()) {
      CopyPins taken = index_.TakePending(1);
      if (taken.empty()) {
        break;
      }
      std::move(taken.begin(), taken.end(), std::back_inserter(to_do));
    }
    if (CopyPins before = TakePendingParents(to_do.back()); !before.empty()) {
      if (to_do.size() >= kClimbMax) {
        PutBack(to_do);
      }
      std::move(before.begin(), before.end(), std::back_inserter(to_do));
      continue;
    }
    if (GoesOnWithParents(to_do.back()) && !FinishAll(begun)) {
      has_room = false;  // the images that lacked room may be the parents
      continue;
    }
    absl::StatusOr<std::shared_ptr<Encoding>> encoding = Plan(to_do.back());
    if (!encoding.ok()) {
      CountFailure(to_do.back(), encoding.status());
    } else if (*encoding != nullptr) {
      Begin(begun.emplace_back(*std::move(encoding)));
    }
    to_do.pop_back();
    ++encoded;
    has_room = device_ != nullptr || FinishAll(begun);
  }
  has_room = FinishAll(begun) && has_room;
  PutBack(to_do);
  again_ = has_room ? absl::InfinitePast() : clock_.Now() + retry_;
  retry_ = has_room ? kRetryMin : std::min(2 * retry_, kRetryMax);
  return has_room && index_.pending_count() > 0;
}

void PendingEncodes::PutBack(std::vector<CopyPin>& pins) {
  for (const CopyPin& pin : pins) {
    index_.PutBackPending(pin);
  }
  pins.clear();
}

bool PendingEncodes::GoesOnWithParents(const CopyPin& pin) const {
  const absl::StatusOr<SpaceRef> space = spaces_.Find(pin.facts().space_id);
  return space.ok() && codecs::FollowsChain((*space)->recipe(), pin.facts().first_position);
}

CopyPins PendingEncodes::TakePendingParents(const CopyPin& pin) {
  CopyPins pending;
  const std::optional<BlockName> before = index_.BlockBefore(pin);
  if (!before.has_value() || !GoesOnWithParents(pin)) {
    return pending;
  }
  for (CopyPin& parent : index_.Lookup(*before, pin.facts().group, pin.facts().slice)) {
    if (index_.TakePending(parent)) {
      pending.push_back(std::move(parent));
    }
  }
  return pending;
}

PendingEncodes::Parents PendingEncodes::ParentsOf(const CopyPin& pin, const SpaceEntry& space,
                                                  const codecs::ImageSpec& spec) {
  Parents parents;
  const std::optional<BlockName> before = index_.BlockBefore(pin);
  if (!before.has_value() || !codecs::FollowsChain(spec)) {
    return parents;
  }
  parents.pins = index_.Lookup(*before, spec.group, spec.slice);
  for (const CopyPin& parent : parents.pins) {
    codecs::ImageView view;
    if (ParsePinned(parent, parent.bytes(), space.fingerprint(), &view) != codecs::Error::kOk ||
        codecs::VerifyTiles(view) != codecs::Error::kOk) {
      return {};
    }
    parents.views.push_back(view);
  }
  return parents;
}

absl::StatusOr<std::shared_ptr<PendingEncodes::Encoding>> PendingEncodes::Plan(CopyPin& pin) {
  CAIRN_ASSIGN_OR_RETURN(SpaceRef space, spaces_.Find(pin.facts().space_id));
  if (!check_.Check(pin, pin.bytes())) {
    return nullptr;
  }
  auto encoding = std::make_shared<Encoding>();
  CAIRN_CHECK(codecs::ParseImage(pin.bytes(), &encoding->view) == codecs::Error::kOk);
  encoding->spec = encoding->view.spec();
  encoding->side_object = space->coding().ChooseRecipe(&encoding->spec);
  // The space's recipe may have become raw meanwhile.
  if (encoding->spec == encoding->view.spec()) {
    return nullptr;
  }
  encoding->parents = ParentsOf(pin, *space, encoding->spec);
  encoding->space = std::move(space);
  encoding->pin = std::move(pin);
  return encoding;
}

void PendingEncodes::Begin(const std::shared_ptr<Encoding>& encoding) {
  const std::span<const std::byte> source = SourceWithin(encoding->view);
  if (device_ == nullptr || source.empty()) {
    return;
  }
  EncodeWork work = {.spec = encoding->spec,
                     .source = source,
                     .side_object = encoding->side_object.get(),
                     .parents = encoding->parents.views,
                     .keeps = encoding};
  work.room = [this](uint64_t bytes) { return tiers_.host().AllocateStaging(bytes); };
  encoding->is_asked_of_device = true;
  device_->Encode(std::move(work), absl::InfiniteDuration(),
                  [encoding](Coded coded) { encoding->Made(std::move(coded.result)); });
}

absl::StatusOr<Extent> PendingEncodes::EncodeHere(const Encoding& encoding) const {
  return encoding.side_object.get() == nullptr && encoding.parents.views.empty()
             ? recoder_.Demote(encoding.view, encoding.spec.recipe)
             : recoder_.Encode(encoding.view, encoding.spec, encoding.inputs());
}

// Returns ResourceExhausted if there is no room now; the image must then be pending again. Any
// other error is final: the image stays as it was put.
absl::Status PendingEncodes::Finish(Encoding& encoding) {
  absl::StatusOr<Extent> image = absl::UnavailableError("there is no device");
  if (encoding.is_asked_of_device) {
    image = encoding.Await();
  }
  if (!image.ok()) {
    image = EncodeHere(encoding);
  }
  seconds_.Observe(MonotonicNow() - encoding.began);
  CAIRN_RETURN_IF_ERROR(image.status());
  const ImageFacts& facts = encoding.pin.facts();
  const BlockName block = {facts.space_id, facts.key};
  CAIRN_RETURN_IF_ERROR(tiers_.host().PlaceStaged(*image, &block));
  if (index_.Replace(encoding.pin,
                     {.recipe = codecs::RecordedSpec(encoding.spec, encoding.inputs()).recipe,
                      .extent = *std::move(image),
                      .side_object = encoding.side_object.Share(),
                      .tenant = encoding.space->tenant()})) {
    encoded_.Add();
  }
  return absl::OkStatus();
}

bool PendingEncodes::FinishAll(std::vector<std::shared_ptr<Encoding>>& begun) {
  bool has_room = true;
  for (const std::shared_ptr<Encoding>& encoding : begun) {
    const absl::Status status = Finish(*encoding);
    if (absl::IsResourceExhausted(status)) {
      index_.PutBackPending(encoding->pin);
      has_room = false;
    } else if (!status.ok()) {
      CountFailure(encoding->pin, status);
    }
  }
  begun.clear();
  return has_room;
}

void PendingEncodes::CountFailure(const CopyPin& pin, const absl::Status& status) {
  const Failure failure = absl::IsNotFound(status)             ? Failure::kSpace
                          : absl::IsFailedPrecondition(status) ? Failure::kRoom
                                                               : Failure::kCodec;
  failures_[static_cast<size_t>(failure)].Add();
  LogWarn("upkeep", "image cannot be encoded: it stays as it was put",
          {{"space", pin.facts().space_id},
           {"key", proto::Hex(std::span(pin.facts().key).first(4))},
           {"group", pin.facts().group},
           {"error", status}});
}

void PendingEncodes::Report(MetricSink& sink) const {
  sink.AddCounter("cairn_upkeep_encoded_total", "Images stored raw that were encoded later.", {},
                  encoded_.Value());
  for (size_t i = 0; i < kFailureCount; ++i) {
    const MetricLabel reason[] = {{"reason", kFailureNames[i]}};
    sink.AddCounter("cairn_upkeep_encode_failed_total",
                    "Images that stay raw because their encoding failed, by reason.", reason,
                    failures_[i].Value());
  }
  const MetricLabel encode[] = {{"step", "encode"}};
  sink.AddHistogram("cairn_upkeep_step_seconds",
                    "Time of each step of upkeep; of mining, of each slice.", encode,
                    seconds_.Snapshot());
}

}  // namespace cairn
