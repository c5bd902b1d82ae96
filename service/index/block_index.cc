// SPDX-License-Identifier: Apache-2.0
#include "service/index/block_index.h"

#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "service/index/cover.h"
#include "service/limits.h"

namespace cairn {

BlockIndex::BlockIndex(const Options& options, Tiers& tiers, const Clock& clock)
    : tiers_(tiers),
      clock_(clock),
      bytes_max_(options.bytes_max),
      events_(clock),
      table_(tiers.all(), options.blocks_max, options.images_max, clock, events_,
             options.awake_bytes_max),
      leases_(options.lease_bytes_max),
      match_seconds_(LatencyBounds()),
      hold_seconds_(LatencyBounds()) {
  tiers_.SetEvictor(this);
}

BlockIndex::~BlockIndex() {
  tiers_.SetEvictor(nullptr);
  const MutexLock lock(mutex_);
  for (const Leases::DroppedLease& lease : leases_.Clear()) {
    for (Image* image : lease.images) {
      table_.LeaseUnpin(image);
    }
  }
  for (uint32_t slot = 0; slot < table_.slot_count(); ++slot) {
    if (Block* block = table_.AtSlot(slot); block != nullptr) {
      table_.UnlinkBlock(block);
      table_.Rest();
    }
  }
  for (const CopyTier* tier : tiers_.all()) {
    CAIRN_CHECK(table_.figures(tier->id()).pinned_bytes == 0, "a pin outlives the index");
  }
}

void BlockIndex::SetSessionCheck(std::function<bool(uint64_t session_id)> is_open) {
  is_session_open_ = std::move(is_open);
}

void BlockIndex::SetWake(std::function<void()> wake) { wake_ = std::move(wake); }

// --- Lookup --------------------------------------------------------------------------------------

CopyPins BlockIndex::Lookup(const BlockName& name, uint16_t group, const codecs::Slice& slice) {
  CopyPins pins;
  ImageRefs scratch;
  ImagePlaces places;
  const Hold hold(*this);
  Block* block = table_.FindUnexpired(name);
  if (block == nullptr || !FindCover(table_.RefsOf(*block, &scratch), group, slice, &places)) {
    return pins;
  }
  table_.Touch(block, clock_.Now());
  const ImageRefs& images = table_.Wake(block);
  for (const uint8_t place : places) {
    pins.push_back(PinCopyLocked(images[place].image->best()));
  }
  return pins;
}

CopyPin BlockIndex::PinCopyLocked(Copy& copy) {
  table_.Pin(&copy);
  return CopyPin(this, &copy);
}

std::vector<BlockName> BlockIndex::LeasedAfter(const BlockName& name, size_t count) const {
  const MutexLock lock(mutex_);
  Visits visits;
  return table_.LeasedAfter(name, count, visits);
}

ImagePins BlockIndex::PinImages(const BlockName& name) {
  ImagePins pins;
  const Hold hold(*this);
  if (Block* block = table_.FindUnexpired(name); block != nullptr) {
    for (const ImageRef& ref : table_.Wake(block)) {
      table_.Pin(ref.image);
      pins.push_back(ImagePin(this, ref.image));
    }
  }
  return pins;
}

ImagePin BlockIndex::PinImage(const CopyPin& pin) {
  CAIRN_CHECK(pin.index_ == this);
  const Hold hold(*this);
  table_.Pin(pin.copy_->image);
  return ImagePin(this, pin.copy_->image);
}

CopyPin BlockIndex::PinCopy(const ImagePin& pin, TierId tier) {
  CAIRN_CHECK(pin.index_ == this);
  const MutexLock lock(mutex_);
  Copy* copy = pin.image_->copies[IndexOf(tier)];
  return copy == nullptr ? CopyPin() : PinCopyLocked(*copy);
}

void BlockIndex::Unpin(Copy* copy) {
  const Hold hold(*this);
  table_.Unpin(copy);
}

void BlockIndex::Unpin(Image* image) {
  const Hold hold(*this);
  table_.Unpin(image);
}

// --- Publish -------------------------------------------------------------------------------------

absl::StatusOr<std::optional<uint64_t>> BlockIndex::Check(const BlockClaim& claim) const {
  const MutexLock lock(mutex_);
  const Block* block = table_.Find(claim.name);
  if (block != nullptr && table_.IsExpired(*block)) {
    return std::nullopt;  // gone by the time that it is put
  }
  return table_.Check(claim);
}

void BlockIndex::DropExpired(const BlockName& name) {
  if (Block* block = table_.Find(name); block != nullptr) {
    table_.DropExpired(block);
  }
}

absl::StatusOr<PutReservation> BlockIndex::ReservePut(const BlockClaim& claim) {
  const Hold hold(*this);
  DropExpired(claim.name);
  CAIRN_RETURN_IF_ERROR(table_.Check(claim).status());
  return PutReservation(this, table_.ReservePut(claim));
}

void BlockIndex::EndReservation(Block* block) {
  const Hold hold(*this);
  table_.EndReservation(block);
}

absl::StatusOr<bool> BlockIndex::Publish(NewImage image) {
  const Hold hold(*this);
  DropExpired(image.claim.name);
  CAIRN_ASSIGN_OR_RETURN(const std::optional<uint64_t> covered, table_.Check(image.claim));
  if (covered.has_value()) {
    return false;
  }
  const uint64_t uncopied = table_.uncopied_count();
  CAIRN_RETURN_IF_ERROR(table_.Add(std::move(image), clock_.Now()).status());
  is_wake_due_ = is_wake_due_ || (uncopied == 0 && table_.uncopied_count() > 0);
  return true;
}

void BlockIndex::Announce(const BlockName& name) {
  Waiters::Taken awakened;
  bool is_wake_due = false, is_over = false;
  while (!is_over) {
    const MutexLock lock(mutex_);
    Visits visits;
    is_over = waiters_.TakeFor(name, visits, &awakened);
    is_wake_due = std::exchange(is_wake_due_, false) || is_wake_due;
  }
  if (is_wake_due && wake_) {
    wake_();
  }
  for (std::unique_ptr<Waiter>& waiter : awakened) {
    TryWaiter(std::move(waiter), /*is_last_try=*/false);
  }
}

bool BlockIndex::Replace(const CopyPin& pin, NewCopy copy) {
  CAIRN_CHECK(pin.index_ == this);
  const Hold hold(*this);
  if (!pin.copy_->is_linked) {
    return false;
  }
  return CountLeased(copy.tenant, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    table_.Replace(pin.copy_, std::move(copy));
    return true;
  });
}

bool BlockIndex::Drop(const CopyPin& pin) {
  CAIRN_CHECK(pin.index_ == this);
  const Hold hold(*this);
  if (!pin.copy_->is_linked) {
    return false;
  }
  table_.Lose(pin.copy_);
  return true;
}

// --- Copy ----------------------------------------------------------------------------------------

CopyWriter BlockIndex::BeginCopy(const CopyPin& source, TierId tier) {
  CAIRN_CHECK(source.index_ == this);
  const MutexLock lock(mutex_);
  Image* image = source.copy_->image;
  return table_.BeginCopy(image, tier) ? CopyWriter(this, image, tier) : CopyWriter();
}

bool BlockIndex::FinishCopy(CopyWriter writer, NewCopy copy) {
  CAIRN_CHECK(writer.index_ == this);
  const Hold hold(*this);
  return CountLeased(copy.tenant, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return table_.FinishCopy(std::exchange(writer.image_, nullptr), writer.tier_, std::move(copy));
  });
}

void BlockIndex::GiveUp(Image* image, TierId tier) {
  const Hold hold(*this);
  table_.GiveUpCopy(image, tier);
}

// --- Evict ---------------------------------------------------------------------------------------

uint64_t BlockIndex::EvictOldest(TierId tier, EvictionReason reason, const BlockName* newcomer) {
  Eviction eviction = {.tier = tier, .reason = reason, .newcomer = newcomer};
  uint64_t freed = 0;
  int searches = 0;  // for ancestors of held leaves
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    eviction.since = std::min(eviction.since, table_.uses());
    freed = table_.EvictOldest(eviction, visits);
    searches += eviction.is_past_leaves ? 1 : 0;
    return freed > 0 || !visits.is_spent() || searches == limits::kEvictionSearchesMax;
  });
  return freed;
}

bool BlockIndex::EvictCopy(TierId tier, const ImageFacts& image, uint64_t offset,
                           EvictionReason reason) {
  const Hold hold(*this);
  return table_.EvictCopy(tier, image, offset, reason);
}

Evictor::Moved BlockIndex::MoveCopy(TierId tier, const ImageFacts& image, uint64_t offset,
                                    TierExtent& to) {
  const Hold hold(*this);
  return table_.MoveCopy(tier, image, offset, to);
}

void BlockIndex::LoseCopy(TierId tier, const ImageFacts& image, uint64_t offset) {
  const Hold hold(*this);
  table_.LoseCopy(tier, image, offset);
}

bool BlockIndex::EvictWindow(uint64_t bytes, const BlockName* newcomer, uint64_t* bytes_passed) {
  window_searches_.Add();
  mutex_.LetWaitersPass();
  const Hold hold(*this);
  return table_.EvictWindow(tiers_.host().arena(), bytes, newcomer, bytes_passed);
}

// --- Figures -------------------------------------------------------------------------------------

IndexFigures BlockIndex::figures() const {
  const MutexLock lock(mutex_);
  return table_.figures();
}

bool BlockIndex::ArePublished(std::span<const CopyPin> pins) const {
  const MutexLock lock(mutex_);
  for (const CopyPin& pin : pins) {
    CAIRN_CHECK(pin.index_ == this);
    if (!pin.copy_->is_linked) {
      return false;
    }
  }
  return true;
}

IndexFigures BlockIndex::figures(uint64_t space_id) const {
  const MutexLock lock(mutex_);
  return table_.figures(space_id);
}

CopyFigures BlockIndex::figures(TierId tier) const {
  const MutexLock lock(mutex_);
  return table_.figures(tier);
}

uint64_t BlockIndex::pinned_bytes() const {
  const MutexLock lock(mutex_);
  return table_.figures(TierId::kHost).pinned_bytes;
}

uint64_t BlockIndex::leased_bytes() const {
  const MutexLock lock(mutex_);
  return table_.figures(TierId::kHost).leased_bytes;
}

uint64_t BlockIndex::lease_count() const {
  const MutexLock lock(mutex_);
  return leases_.count();
}

uint64_t BlockIndex::lease_count(std::string_view tenant) const {
  const MutexLock lock(mutex_);
  return leases_.count(tenant);
}

uint64_t BlockIndex::waiter_count() const {
  const MutexLock lock(mutex_);
  return waiters_.count();
}

uint64_t BlockIndex::pending_count() const {
  const MutexLock lock(mutex_);
  return table_.pending_count();
}

void BlockIndex::Report(MetricSink& sink) const {
  {
    const MutexLock lock(mutex_);
    table_.Report(sink);
    leases_.Report(sink);
    waiters_.Report(sink);
    sink.AddCounter("cairn_index_visits_total",
                    "Keys and images examined in holds of the index's lock.", {}, visits_);
    sink.AddGauge("cairn_index_hold_visits_max",
                  "Most keys and images examined in one hold of the index's lock.", {},
                  static_cast<double>(visits_max_));
  }
  events_.Report(sink);
  sink.AddGauge("cairn_index_bytes_max",
                "Limit for the index, including 16 bytes per image for the maps of the SSD tier.",
                {}, static_cast<double>(bytes_max_));
  sink.AddHistogram("cairn_index_hold_seconds",
                    "Time of holds of the index's lock by calls that examine many keys or images.",
                    {}, hold_seconds_.Snapshot());
  sink.AddCounter("cairn_index_windows_total",
                  "Searches through a thousand ranges of the arena for a window to evict.", {},
                  window_searches_.Value());
  sink.AddHistogram("cairn_match_seconds",
                    "Time of one Match in the index, including waits for the lock.", {},
                    match_seconds_.Snapshot());
  sink.AddCounter("cairn_match_asked_blocks_total", "Blocks that Match calls asked for.", {},
                  asked_blocks_.Value());
  sink.AddCounter("cairn_match_found_blocks_total", "Blocks that Match calls found.", {},
                  matched_blocks_.Value());
  sink.AddCounter("cairn_match_first_missed_blocks_total",
                  "Estimated blocks that Match did not find when they were first requested.", {},
                  asked_keys_.first_misses());
  sink.AddCounter("cairn_match_shortened_total",
                  "Match calls answered shorter because too much of the tier is leased.", {},
                  shortened_matches_.Value());
}

}  // namespace cairn
