// SPDX-License-Identifier: Apache-2.0
#include "service/upkeep/write_down.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "base/units.h"
#include "codecs/image/image.h"
#include "proto/block_key.h"
#include "service/limits.h"

namespace cairn {
namespace {

// Limit for one round, so that no deadline waits long for it.
constexpr int kWritesPerRound = 64;
constexpr absl::Duration kRestMin = absl::Milliseconds(100);
constexpr absl::Duration kRestMax = absl::Seconds(10);
// The interval for asking the tier how much reclaim has written.
constexpr absl::Duration kCarriedStep = absl::Seconds(1);

CopyTier* LastingTier(const Tiers& tiers) {
  const auto found = std::find_if(tiers.all().begin(), tiers.all().end(),
                                  [](const CopyTier* tier) { return tier->traits().is_lasting; });
  return found == tiers.all().end() ? nullptr : *found;
}

// Keys are hashes.
uint64_t HashOf(const proto::BlockKey& key) {
  uint64_t hash = 0;
  std::memcpy(&hash, key.data(), sizeof(hash));
  return hash;
}

// An estimate: most images have half a MiB or more.
uint64_t BlocksMax(const CopyTier* tier) {
  return tier == nullptr ? 0 : tier->capacity_bytes() / 512_KiB;
}

BlockName NameOf(const ImageFacts& image) { return {image.space_id, image.key}; }

}  // namespace

WriteDown::WriteDown(Spaces& spaces, BlockIndex& index, Tiers& tiers, const Clock& clock,
                     uint64_t budget_bytes, ImageCheck& check, const Recoder& recoder,
                     std::function<void()> wake)
    : spaces_(spaces),
      index_(index),
      clock_(clock),
      check_(check),
      recoder_(recoder),
      wake_(std::move(wake)),
      tier_(LastingTier(tiers)),
      bytes_max_(std::min(limits::kWriteDownBytesMax,
                          tiers.host().capacity_bytes() / limits::kWriteDownShareOfHost)),
      began_(clock.Now()),
      durable_puts_(index, tier_, clock, [this] { Hurry(); }),
      rest_(kRestMin),
      budget_(budget_bytes, BlocksMax(tier_), began_) {}

absl::Time WriteDown::RunOnce(absl::Time now) {
  if (tier_ == nullptr) {
    return absl::InfiniteFuture();
  }
  CountCarried(now);
  const absl::Time next = BeginSome(now);
  return std::min(next, durable_puts_.AnswerLate(now));
}

absl::Time WriteDown::BeginSome(absl::Time now) {
  for (int writes = 0; writes < kWritesPerRound; ++writes) {
    WriteBudget::State budget = WriteBudget::State::kAmple;
    absl::Time refilled_at;
    {
      const MutexLock lock(mutex_);
      if (is_stopping_ || bytes_ >= bytes_max_) {
        return absl::InfiniteFuture();  // the completion of a write wakes upkeep
      }
      if (now < again_) {
        return again_;
      }
      budget = budget_.Look(now);
      refilled_at = budget == WriteBudget::State::kSpent ? budget_.RefilledAt(now) : now;
    }
    if (budget == WriteBudget::State::kSpent) {
      durable_puts_.Refused(absl::ResourceExhaustedError("the write budget is spent"));
      return refilled_at;
    }
    if (!BeginOne(budget)) {
      snapshot_.reset();  // frees the side objects that the snapshot keeps
      const MutexLock lock(mutex_);
      return again_ > now ? again_ : absl::InfiniteFuture();
    }
  }
  return now;
}

void WriteDown::CountCarried(absl::Time now) {
  if (now - carried_at_ < kCarriedStep) {
    return;
  }
  carried_at_ = now;
  uint64_t carried = 0;
  for (const DeviceReport& device : tier_->Devices()) {
    carried += device.carried_bytes;
  }
  const MutexLock lock(mutex_);
  budget_.Spend(carried - carried_bytes_);
  carried_bytes_ = carried;
}

bool WriteDown::BeginOne(WriteBudget::State budget) {
  std::optional<WriteBackCandidate> taken = index_.TakeWriteBack();
  if (!taken.has_value()) {
    return false;
  }
  if (budget == WriteBudget::State::kShort && !taken->is_used) {
    bool was_seen = false;
    {
      const MutexLock lock(mutex_);
      was_seen = budget_.See(taken->source.facts().key);
    }
    if (!was_seen) {
      withheld_.Add();
      index_.StopWritingBack(std::move(taken->writer));
      durable_puts_.Tried(NameOf(taken->source.facts()), absl::ResourceExhaustedError("withheld"));
      return true;
    }
  }
  auto write = std::make_unique<Write>();
  write->image = *std::move(taken);
  absl::StatusOr<SpaceRef> space = spaces_.Find(write->image.source.facts().space_id);
  if (!space.ok()) {
    return true;  // it was deleted, and its space was retired
  }
  write->space = *std::move(space);
  const auto refuse = [&](const absl::Status& status) {
    refused_.Add();
    write.reset();  // moves the image to the end of the queue
    Rest(status);
    durable_puts_.Refused(status);
    return false;
  };
  if (const absl::Status made = MakeCopy(*write); absl::IsDataLoss(made)) {
    const BlockName name = NameOf(write->image.source.facts());
    write.reset();
    durable_puts_.Tried(name, made);
    return true;
  } else if (!made.ok()) {
    return refuse(made);
  }
  write->hint = HintOf(write->image);
  absl::StatusOr<TierExtent> place = tier_->Reserve(
      write->bytes().size(),
      {.parent_copy =
           write->hint.parent_copy == nullptr ? nullptr : &write->hint.parent_copy->extent(),
       .hash = write->hint.hash});
  if (!place.ok()) {
    return refuse(place.status());
  }
  write->place = *std::move(place);
  // Making the copy took some time. If the image was deleted before the place was reserved, the
  // deletion may be answered already, and nothing may be recorded. A later deletion waits for the
  // write.
  if (!index_.ArePublished({&write->image.source, 1})) {
    const BlockName name = NameOf(write->image.source.facts());
    gone_.Add();
    write.reset();
    durable_puts_.Tried(name, absl::NotFoundError("deleted meanwhile"));
    return true;
  }
  Submit(std::move(write));
  return true;
}

absl::Status WriteDown::MakeCopy(Write& write) {
  const CopyPin& source = write.image.source;
  write.copy = source.copy();
  write.copy.tier = tier_->id();
  write.own = source.side_object();
  const std::optional<codecs::Recipe> cold = write.space->coding().policy().cold_recipe;
  const std::optional<codecs::Recipe> colder =
      cold.has_value() ? ColderRecipe(write.copy.recipe, *cold) : std::nullopt;
  if (!colder.has_value()) {
    return absl::OkStatus();
  }
  if (!check_.Check(source, source.bytes())) {  // never copy damaged bytes
    return absl::DataLossError("damaged");
  }
  absl::StatusOr<Extent> made = MakeColder(write, *colder);
  if (absl::IsResourceExhausted(made.status())) {
    return made.status();
  }
  if (!made.ok()) {
    recode_failed_.Add();
    LogWarn("upkeep", "image cannot be recoded for the SSD tier: it is written unchanged",
            {{"space", source.facts().space_id},
             {"key", proto::Hex(std::span(source.facts().key).first(4))},
             {"recipe", codecs::FormatRecipe(*colder)},
             {"error", made.status()}});
    return absl::OkStatus();
  }
  write.colder = *std::move(made);
  write.copy.recipe = *colder;
  write.copy.image_bytes = write.bytes().size();
  write.copy.directory_crc = codecs::PeekDirectoryCrc(write.bytes());
  write.own = colder->NeedsSideObject() ? write.own : nullptr;
  return absl::OkStatus();
}

absl::StatusOr<Extent> WriteDown::MakeColder(const Write& write,
                                             const codecs::Recipe& colder) const {
  codecs::ImageView view;
  CAIRN_CHECK(codecs::ParseImage(write.image.source.bytes(), &view) == codecs::Error::kOk);
  if (!colder.NeedsProfile()) {
    return recoder_.Demote(view, colder);
  }
  const codecs::Profile* profile = write.own == nullptr ? nullptr : write.own->content().profile();
  if (profile == nullptr) {
    return absl::FailedPreconditionError("the image's profile is missing");
  }
  return recoder_.DemoteSteps(view, *profile, colder.level);
}

std::shared_ptr<const SpaceEntry::Snapshot> WriteDown::SnapshotOf(const SpaceEntry& space) {
  if (snapshot_ == nullptr || snapshot_space_ != space.id() ||
      snapshot_->record.version != space.coding().version()) {
    snapshot_space_ = space.id();
    snapshot_ = std::make_shared<const SpaceEntry::Snapshot>(space.Describe());
  }
  return snapshot_;
}

WriteDown::PlacementHint WriteDown::HintOf(WriteBackCandidate& image) {
  if (!image.parent_copy.is_empty()) {
    return {.parent_copy = std::make_shared<const CopyPin>(std::move(image.parent_copy))};
  }
  const ImageFacts& facts = image.source.facts();
  const MutexLock lock(mutex_);
  const auto parent = hints_.find({facts.space_id, image.parent});
  return parent == hints_.end() ? PlacementHint{.parent_copy = nullptr, .hash = HashOf(facts.key)}
                                : parent->second;
}

void WriteDown::Began(const Write& write) {
  in_flight_.Enter();
  const MutexLock lock(mutex_);
  bytes_ += write.place.size_bytes();
  budget_.Spend(write.place.size_bytes());
  PlacementHint& hint = hints_[NameOf(write.image.source.facts())];
  hint = {
      .parent_copy = write.hint.parent_copy, .hash = write.hint.hash, .writes = hint.writes + 1};
}

void WriteDown::Submit(std::unique_ptr<Write> owned) {
  Write& write = *owned;
  write.snapshot = SnapshotOf(*write.space);
  for (const SideObjectRef& object : write.snapshot->side_objects) {
    write.side_objects.push_back({object.get()->id(), object.get()->kind(), object.get()->bytes()});
  }
  const SideObject* const own = write.own;
  const auto is_own = [&](const NamedSideObject& other) { return other.id == own->id(); };
  if (own != nullptr &&
      std::none_of(write.side_objects.begin(), write.side_objects.end(), is_own)) {
    write.side_objects.push_back({own->id(), own->kind(), own->bytes()});
  }
  const TierWrite submitted = {.place = &write.place,
                               .image = write.image.source.facts(),
                               .copy = write.copy,
                               .source = write.bytes(),
                               .parent = write.image.parent,
                               .names = write.image.names,
                               .side_object = own == nullptr ? codecs::Digest{} : own->id(),
                               .space = &write.snapshot->record,
                               .side_objects = write.side_objects};
  Began(write);
  tier_->Write(submitted, [this, owned = std::move(owned)](const absl::Status& status) mutable {
    Completed(std::move(owned), status);
  });
}

absl::Status WriteDown::Finish(Write& write) {
  NewCopy copy = {.recipe = write.copy.recipe,
                  .extent = std::move(write.place),
                  .side_object = {},
                  .directory_crc = write.copy.directory_crc,
                  .tenant = write.space->tenant()};
  if (write.own != nullptr) {
    copy.side_object = write.space->coding().Find(write.own->id());
    CAIRN_CHECK(copy.side_object.get() != nullptr);  // the source keeps it
  }
  return index_.FinishCopy(std::move(write.image.writer), std::move(copy))
             ? absl::OkStatus()
             : absl::NotFoundError("deleted meanwhile");
}

void WriteDown::Completed(std::unique_ptr<Write> write, const absl::Status& status) {
  const uint64_t bytes = write->place.size_bytes();
  const BlockName name = NameOf(write->image.source.facts());
  if (!status.ok()) {
    failed_.Add();
    Rest(status);
  } else if (Finish(*write).ok()) {
    written_.Add();
    written_bytes_.Add(bytes);
    recoded_.Add(write->colder.is_empty() ? 0 : 1);
    recoded_bytes_.Add(write->colder.is_empty() ? 0 : bytes);
  } else {
    gone_.Add();
  }
  write.reset();  // releases its pins before Stop() returns
  bool is_room_wanted = false;
  {
    const MutexLock lock(mutex_);
    bytes_ -= bytes;
    is_room_wanted = bytes_ <= bytes_max_ / 2;
    const auto hint = hints_.find(name);
    if (--hint->second.writes == 0) {
      hints_.erase(hint);
    }
    rest_ = status.ok() ? kRestMin : rest_;
  }
  durable_puts_.Tried(name, status);
  if (is_room_wanted) {
    wake_();
  }
  in_flight_.Leave();
}

void WriteDown::Rest(const absl::Status& status) {
  const absl::Time now = clock_.Now();
  absl::Duration rest;
  {
    const MutexLock lock(mutex_);
    if (again_ > now) {
      return;  // writes that ended together share one pause
    }
    rest = rest_;
    again_ = now + rest_;
    rest_ = std::min(2 * rest_, kRestMax);
  }
  if (!absl::IsResourceExhausted(status) && rest == kRestMin) {
    LogWarn("upkeep", "writing to the SSD tier fails: pausing",
            {{"tier", Name(tier_->id())}, {"error", status}});
  }
}

void WriteDown::Hurry() {
  {
    const MutexLock lock(mutex_);
    again_ = absl::InfinitePast();
  }
  wake_();
}

void WriteDown::Stop() {
  durable_puts_.Stop();
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  in_flight_.Await();  // ends, because a tier completes every transfer
}

// --- Figures -------------------------------------------------------------------------------------

uint64_t WriteDown::left() const {
  if (tier_ == nullptr) {
    return 0;
  }
  return index_.uncopied_count() + index_.pending_count() + in_flight_.count();
}

WriteReport WriteDown::Describe() const {
  const MutexLock lock(mutex_);
  return {.budget_bytes = budget_.bytes_per_day(),
          .budget_left_bytes = budget_.left(),
          .withheld_count = withheld_.Value(),
          .uptime = clock_.Now() - began_};
}

void WriteDown::Report(MetricSink& sink) const {
  const auto outcome = [&](std::string_view name, const Counter& counter) {
    const MetricLabel labels[] = {{"outcome", name}};
    sink.AddCounter("cairn_write_downs_total", "Writes of images to the SSD tier, by outcome.",
                    labels, counter.Value());
  };
  outcome("written", written_);
  outcome("gone", gone_);
  outcome("refused", refused_);
  outcome("failed", failed_);
  durable_puts_.Report(sink);
  sink.AddCounter("cairn_written_down_bytes_total", "Bytes of images written to the SSD tier.", {},
                  written_bytes_.Value());
  sink.AddCounter("cairn_write_down_recoded_total",
                  "Images written to the SSD tier in the policy's cold recipe.", {},
                  recoded_.Value());
  sink.AddCounter("cairn_write_down_recoded_bytes_total",
                  "Bytes of images written to the SSD tier in the policy's cold recipe.", {},
                  recoded_bytes_.Value());
  sink.AddCounter("cairn_write_down_recode_failed_total",
                  "Images written to the SSD tier unchanged because they could not be recoded.", {},
                  recode_failed_.Value());
  sink.AddCounter("cairn_write_downs_withheld_total",
                  "Images not written to the SSD tier while its write budget was low, because they "
                  "were used only once.",
                  {}, withheld_.Value());
  const MutexLock lock(mutex_);
  sink.AddGauge("cairn_write_budget_bytes",
                "Limit for bytes written to the SSD tier per day; 0: none.", {},
                static_cast<double>(budget_.bytes_per_day()));
  sink.AddGauge("cairn_write_budget_left_bytes",
                "Bytes left of the write budget; below 0 nothing is written.", {}, budget_.left());
  sink.AddGauge("cairn_writing_down_bytes", "Bytes being written to the SSD tier.", {},
                static_cast<double>(bytes_));
}

}  // namespace cairn
