// SPDX-License-Identifier: Apache-2.0
#include "service/get/promotions.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "base/check.h"
#include "base/status.h"
#include "codecs/format/image_header.h"

namespace cairn {
namespace {

codecs::GroupKind KindOf(const CopyPin& pin, const SpaceRef& space) {
  return space->groups()[pin.facts().group].tile.kind;
}

uint64_t PageBegin(uint64_t offset) {
  return offset / limits::kSlicePageBytes * limits::kSlicePageBytes;
}
uint64_t PageEnd(uint64_t offset) { return PageBegin(offset + limits::kSlicePageBytes - 1); }

uint64_t HeadsOf(const codecs::Slice& slice) {
  return uint64_t{slice.layer_count} * slice.head_count;
}

// Estimates the bytes of PartsOf(), assuming that all tiles have the same size.
uint64_t EstimateBytes(const codecs::Slice& image, uint64_t image_bytes,
                       const codecs::Slice& slice) {
  const uint64_t layer_bytes = image_bytes / image.layer_count;
  const uint64_t run_bytes = layer_bytes * slice.head_count / image.head_count;
  const bool is_one_part = layer_bytes - run_bytes <= limits::kSliceGapBytesMax;
  return is_one_part ? slice.layer_count * layer_bytes
                     : slice.layer_count * (run_bytes + limits::kSlicePageBytes);
}

// Returns the size of the first read: the image's header and directory, rounded up to whole pages
// if the image has them.
uint64_t PrefixReadBytes(codecs::GroupKind kind, const CopyPin& pin) {
  const codecs::Tiling tiling(kind, pin.facts().slice, {});
  return std::min(PageEnd(codecs::PrefixBytes(tiling.count())), pin.copy().image_bytes);
}

// The parts of an image that contain the tiles of a slice, in whole pages. Parts with small gaps
// between them are merged. They have places in a buffer of `bytes`, as codecs::GatherParts()
// expects them.
struct SliceParts {
  std::vector<codecs::ImagePart> parts;
  uint64_t bytes = 0;
};

SliceParts PartsOf(const codecs::ImagePrefix& image, const codecs::Slice& slice) {
  SliceParts result;
  uint64_t end = 0;
  static_cast<void>(image.tiling().ForEach(slice, [&](uint32_t index) {
    const codecs::TileEntry tile = image.Tile(index);
    if (result.parts.empty() || tile.offset > end + limits::kSliceGapBytesMax) {
      result.parts.push_back({.offset = PageBegin(tile.offset)});
    }
    end = std::min(PageEnd(tile.offset + tile.bytes), image.image_bytes());
    result.parts.back().bytes = end - result.parts.back().offset;
    return codecs::Error::kOk;
  }));
  const codecs::Tiling tiling(image.spec().tile.kind, slice, image.spec().unit);
  result.bytes = PageEnd(codecs::PrefixBytes(tiling.count()));
  for (codecs::ImagePart& part : result.parts) {
    part.at = result.bytes;
    result.bytes += PageEnd(part.bytes);
  }
  return result;
}

}  // namespace

// --- Joining a read ------------------------------------------------------------------------------

Promotions::Promotions(Parts parts) : parts_(std::move(parts)) {}

std::shared_ptr<Promotion> Promotions::JoinLocked(const Key& key, GetId get, absl::Time deadline) {
  const auto found = promotions_.find(key);
  if (found == promotions_.end()) {
    return nullptr;
  }
  found->second->gets_.push_back(get);
  found->second->deadline_ = std::max(found->second->deadline_, deadline);
  shared_.Add();
  return found->second;
}

absl::StatusOr<std::shared_ptr<const Promotion>> Promotions::JoinRead(CopyPin pin,
                                                                      const SpaceRef& space,
                                                                      const codecs::Slice& slice,
                                                                      GetId get,
                                                                      absl::Time deadline) {
  codecs::Slice to_read = pin.facts().slice;
  {
    const MutexLock lock(mutex_);
    std::shared_ptr<const Promotion> shared = JoinLocked(KeyOf(pin, to_read), get, deadline);
    if (shared == nullptr && slice != to_read) {
      shared = JoinLocked(KeyOf(pin, slice), get, deadline);
    }
    if (shared != nullptr) {
      return shared;
    }
    if (slice_reads_.ReadsAlone(KindOf(pin, space), pin, slice)) {
      to_read = slice;
    }
  }
  const Key key = KeyOf(pin, to_read);
  auto promotion = std::make_shared<Promotion>();
  promotion->slice_ = to_read;
  promotion->space_ = space.Share();
  promotion->pin_ = std::move(pin);
  promotion->gets_.push_back(get);
  promotion->deadline_ = deadline;
  absl::Status allocated = AllocateRead(*promotion);
  {
    const MutexLock lock(mutex_);
    if (std::shared_ptr<const Promotion> shared = JoinLocked(key, get, deadline)) {
      // Another thread has started the read.
      GiveShareBack(*promotion);
      return shared;
    }
    if (is_stopping_) {
      allocated = absl::UnavailableError("the daemon is stopping");
    }
    if (!allocated.ok()) {
      GiveShareBack(*promotion);
      refused_.Add();
      return allocated;
    }
    promotions_.emplace(key, promotion);
    in_flight_.Enter();
  }
  BeginParts(promotion);
  return promotion;
}

bool Promotions::TakeShare(Promotion& promotion, uint64_t bytes) {
  const uint64_t share = parts_.tiers.host().capacity_bytes() / limits::kPromotedShareOfHost;
  const MutexLock lock(mutex_);
  if (share_bytes_ + bytes > share) {
    return false;
  }
  share_bytes_ += bytes;
  promotion.share_bytes_ += bytes;
  return true;
}

void Promotions::GiveShareBack(Promotion& promotion) {
  share_bytes_ -= std::exchange(promotion.share_bytes_, 0);
}

absl::Status Promotions::AllocateRead(Promotion& promotion) {
  const CopyPin& pin = promotion.pin_;
  uint64_t bytes = pin.copy().image_bytes;
  if (!promotion.is_whole()) {
    bytes = PrefixReadBytes(KindOf(pin, promotion.space_), pin);
    CAIRN_ASSIGN_OR_RETURN(promotion.prefix_, AllocateForSlice(promotion, bytes));
    SetParts(promotion, {{.bytes = bytes}}, promotion.prefix_.bytes());
    return absl::OkStatus();
  }
  bool is_copy = false;
  if (TakeShare(promotion, bytes)) {
    is_copy = AllocateCopy(promotion);
    if (!is_copy) {
      const MutexLock lock(mutex_);
      GiveShareBack(promotion);
    }
  }
  if (!is_copy) {
    CAIRN_ASSIGN_OR_RETURN(promotion.memory_, parts_.tiers.host().AllocateStaging(bytes));
    SetParts(promotion, {{.bytes = bytes}}, promotion.memory_.bytes());
  }
  return absl::OkStatus();
}

bool Promotions::AllocateCopy(Promotion& promotion) {
  const uint64_t bytes = promotion.pin_.copy().image_bytes;
  promotion.writer_ = parts_.index.BeginCopy(promotion.pin_, TierId::kHost);
  const BlockName block = {promotion.pin_.facts().space_id, promotion.pin_.facts().key};
  absl::StatusOr<Extent> room = promotion.writer_.is_empty()
                                    ? absl::StatusOr<Extent>(absl::AlreadyExistsError(""))
                                    : parts_.tiers.host().Allocate(bytes, &block);
  if (!room.ok()) {
    promotion.writer_.Reset();
    return false;
  }
  promotion.memory_ = *std::move(room);
  SetParts(promotion, {{.bytes = bytes}}, promotion.memory_.bytes());
  return true;
}

absl::StatusOr<Extent> Promotions::AllocateForSlice(Promotion& promotion, uint64_t bytes) {
  if (!TakeShare(promotion, bytes)) {
    return absl::ResourceExhaustedError("reads of colder tiers use all of their share of memory");
  }
  return parts_.tiers.host().AllocateStaging(bytes);
}

void Promotions::SetParts(Promotion& promotion, std::vector<codecs::ImagePart> parts,
                          std::span<std::byte> target) {
  const MutexLock lock(mutex_);
  promotion.parts_ = std::move(parts);
  promotion.target_ = target;
  promotion.begun_ = promotion.ended_ = 0;
}

Promotions::Prefetched Promotions::PrefetchCopy(CopyPin pin, const SpaceRef& space) {
  auto promotion = std::make_shared<Promotion>();
  promotion->slice_ = pin.facts().slice;
  const Key key = KeyOf(pin, promotion->slice_);
  const uint64_t bytes = pin.copy().image_bytes;
  const uint64_t share = parts_.tiers.host().capacity_bytes() / limits::kPromotedShareOfHost / 2;
  {
    const MutexLock lock(mutex_);
    if (promotions_.contains(key)) {
      return Prefetched::kBegun;
    }
    if (is_stopping_ || bytes > share) {
      return Prefetched::kNoRoom;
    }
    if (share_bytes_ + bytes > share ||
        (prefetching_bytes_ > 0 && prefetching_bytes_ + bytes > limits::kPrefetchBytesMax)) {
      return Prefetched::kLater;
    }
    share_bytes_ += bytes;
    prefetching_bytes_ += bytes;
  }
  promotion->share_bytes_ = bytes;
  promotion->is_prefetch_ = true;
  promotion->space_ = space.Share();
  promotion->pin_ = std::move(pin);
  const bool is_allocated = AllocateCopy(*promotion);
  {
    const MutexLock lock(mutex_);
    const bool is_read = promotions_.contains(key);  // a get started the read first
    if (!is_allocated || is_read || is_stopping_) {
      GiveShareBack(*promotion);
      prefetching_bytes_ -= bytes;
      return is_read ? Prefetched::kBegun : Prefetched::kNoRoom;
    }
    promotions_.emplace(key, promotion);
    in_flight_.Enter();
  }
  BeginParts(promotion);
  return Prefetched::kBegun;
}

// --- Parts ---------------------------------------------------------------------------------------

void Promotions::BeginParts(const std::shared_ptr<Promotion>& promotion) {
  CopyTier* tier = parts_.tiers.Find(promotion->pin_.copy().tier);
  CAIRN_CHECK(tier != nullptr);
  bool is_beginner = false;
  for (;;) {  // each iteration begins a part
    TierRead read;
    read.place = &promotion->pin_.extent();
    size_t place = 0;  // index of the part
    {
      const MutexLock lock(mutex_);
      if (promotion->is_beginning_ && !is_beginner) {
        return;  // the other thread, which may be inside its Read(), begins the remaining parts
      }
      std::vector<size_t>& unread = promotion->unread_;
      const bool has_part = promotion->begun_ < promotion->parts_.size() || !unread.empty();
      is_beginner = has_part && promotion->read_.ok() &&
                    promotion->begun_ - promotion->ended_ - unread.size() < limits::kSlicePartsMax;
      promotion->is_beginning_ = is_beginner;
      if (!is_beginner) {
        return;
      }
      if (unread.empty()) {
        place = promotion->begun_++;
      } else {
        place = unread.back();
        unread.pop_back();
      }
      const codecs::ImagePart& part = promotion->parts_[place];
      read.deadline = promotion->deadline_;
      read.offset = part.offset;
      read.target = promotion->target_.subspan(part.at, part.bytes);
    }
    const TransferId transfer =
        tier->Read(read, [this, promotion = promotion, place,
                          deadline = read.deadline](absl::Status status) mutable {
          EndPart(std::move(promotion), place, deadline, std::move(status));
        });
    bool is_late = false;
    {
      const MutexLock lock(mutex_);
      promotion->transfers_.push_back(transfer);
      is_late = is_stopping_;
    }
    if (is_late) {
      tier->Cancel(transfer);
    }
  }
}

void Promotions::EndPart(std::shared_ptr<Promotion> promotion, size_t part, absl::Time deadline,
                         absl::Status status) {
  const absl::Time now = parts_.clock.Now();
  bool is_over = false;
  {
    const MutexLock lock(mutex_);
    std::vector<size_t>& unread = promotion->unread_;
    if (absl::IsDeadlineExceeded(status) && !is_stopping_ && promotion->deadline_ > deadline &&
        promotion->deadline_ > now) {
      unread.push_back(part);  // another get with a later deadline has joined
      status = absl::OkStatus();
    } else {
      ++promotion->ended_;
    }
    const bool is_last = promotion->begun_ == promotion->parts_.size() && unread.empty();
    if (status.ok() && is_stopping_ && !is_last) {
      status = absl::UnavailableError("the daemon is stopping");
    }
    promotion->read_.Update(std::move(status));
    is_over = promotion->ended_ + unread.size() == promotion->begun_ &&
              (is_last || !promotion->read_.ok());
    status = promotion->read_;
    if (is_over && absl::IsDeadlineExceeded(status)) {
      ForgetLocked(promotion);  // later gets start a new read
    }
    if (!is_over) in_flight_.Enter();  // makes Stop() wait for this thread, which holds the pin
  }
  if (!is_over) {
    BeginParts(promotion);
    promotion.reset();
    return in_flight_.Leave();
  }
  parts_.pool.Continue(
      [this, promotion = std::move(promotion),
       status = std::move(status)](const absl::Status& refusal) mutable {
        FinishRead(std::move(promotion), refusal.ok() ? std::move(status) : refusal);
      },
      PathPool::Kind::kGet);
}

void Promotions::FinishRead(std::shared_ptr<Promotion> promotion, absl::Status status) {
  if (absl::IsDataLoss(status)) {
    status = parts_.drop_damaged(promotion->pin_, "the tier cannot read it");
  } else if (status.ok() && promotion->is_whole()) {
    status = CheckAndKeep(*promotion);
  } else if (status.ok() && promotion->memory_.is_empty()) {
    status = FindParts(*promotion);
    if (status.ok()) {
      return BeginParts(promotion);
    }
  } else if (status.ok()) {
    status = CheckSlice(*promotion);
  }
  // After a failure, free the copy. A later read, of another copy, may then become the one in the
  // host tier.
  if (!status.ok()) {
    (absl::IsDeadlineExceeded(status) ? late_ : failed_).Add();
    promotion->writer_.Reset();
    promotion->memory_.Reset();
  }
  std::vector<GetId> gets;
  {
    const MutexLock lock(mutex_);
    promotion->status_ = std::move(status);
    gets.swap(promotion->gets_);
    prefetching_bytes_ -= promotion->is_prefetch_ ? promotion->share_bytes_ : 0;
    GiveShareBack(*promotion);
    ForgetLocked(promotion);
  }
  promotion.reset();  // releases the pin before Stop() returns, unless a get holds it
  for (const GetId get : gets) {
    parts_.ended(get);
  }
  parts_.has_room();
  in_flight_.Leave();
}

void Promotions::ForgetLocked(const std::shared_ptr<Promotion>& promotion) {
  const auto found = promotions_.find(KeyOf(promotion->pin_, promotion->slice_));
  if (found != promotions_.end() && found->second == promotion) {
    promotions_.erase(found);
  }
}

absl::Status Promotions::FindParts(Promotion& promotion) {
  codecs::Error error = codecs::ParseImagePrefix(promotion.prefix_.bytes(), &promotion.parsed_);
  if (error == codecs::Error::kOk) {
    error = CheckPinned(promotion.pin_, promotion.parsed_, promotion.space_->fingerprint());
  }
  if (error != codecs::Error::kOk) {
    return parts_.drop_damaged(promotion.pin_, codecs::Name(error));
  }
  SliceParts found = PartsOf(promotion.parsed_, promotion.slice_);
  CAIRN_ASSIGN_OR_RETURN(promotion.memory_, AllocateForSlice(promotion, found.bytes));
  SetParts(promotion, std::move(found.parts), promotion.memory_.bytes());
  return absl::OkStatus();
}

absl::Status Promotions::CheckSlice(Promotion& promotion) {
  uint64_t read_bytes = promotion.prefix_.size_bytes();
  for (const codecs::ImagePart& part : promotion.parts_) {
    read_bytes += part.bytes;
  }
  const std::span<std::byte> memory = promotion.memory_.bytes();
  size_t bytes = 0;
  CAIRN_CHECK(codecs::GatherParts(promotion.parsed_, promotion.slice_, promotion.parts_, memory,
                                  &bytes) == codecs::Error::kOk);
  codecs::Error error = codecs::ParseImage(memory.first(bytes), &promotion.view_);
  if (error == codecs::Error::kOk) {
    error = codecs::VerifyTiles(promotion.view_);
  }
  if (error != codecs::Error::kOk) {
    return parts_.drop_damaged(promotion.pin_, codecs::Name(error));
  }
  promotion.prefix_.Reset();
  promotion.memory_.ShrinkTo(bytes);
  slice_bytes_.Add(read_bytes);
  sliced_.Add();
  return absl::OkStatus();
}

absl::Status Promotions::CheckAndKeep(Promotion& promotion) {
  codecs::ImageView& view = promotion.view_;
  codecs::Error error = ParsePinned(promotion.pin_, promotion.memory_.bytes(),
                                    promotion.space_->fingerprint(), &view);
  if (error == codecs::Error::kOk) {
    error = codecs::VerifyTiles(view);
  }
  if (error != codecs::Error::kOk) {
    return parts_.drop_damaged(promotion.pin_, codecs::Name(error));
  }
  whole_bytes_.Add(view.bytes().size());
  if (promotion.writer_.is_empty()) {
    staged_.Add();
    return absl::OkStatus();
  }
  NewCopy copy;
  copy.recipe = promotion.pin_.copy().recipe;
  copy.directory_crc = promotion.pin_.copy().directory_crc;
  if (view.spec().side_object_count > 0) {
    copy.side_object = promotion.space_->coding().Find(view.spec().side_objects[0]);
  }
  copy.extent = std::move(promotion.memory_);
  copy.tenant = promotion.space_->tenant();
  const ImagePin image = parts_.index.PinImage(promotion.pin_);
  if (!image.is_empty() && parts_.index.FinishCopy(std::move(promotion.writer_), std::move(copy))) {
    promotion.resident_ = parts_.index.PinCopy(image, TierId::kHost);
  }
  if (promotion.resident_.is_empty()) {
    return absl::NotFoundError("deleted or evicted meanwhile");
  }
  copied_.Add();
  return absl::OkStatus();
}

// --- Slices --------------------------------------------------------------------------------------

bool SliceReads::ReadsAlone(codecs::GroupKind kind, const CopyPin& pin,
                            const codecs::Slice& slice) {
  const codecs::Slice& image = pin.facts().slice;
  const uint64_t image_bytes = pin.copy().image_bytes;
  if (image_bytes < limits::kSlicedImageBytesMin ||
      PrefixReadBytes(kind, pin) + EstimateBytes(image, image_bytes, slice) > image_bytes / 2) {
    return false;
  }
  const uint64_t place = pin.extent().offset() * kTierCount + IndexOf(pin.copy().tier);
  Seen& seen = seen_[absl::HashOf(place) % seen_.size()];
  if (seen.place != place) {
    seen = {.place = place};
  }
  seen.heads += HeadsOf(slice);
  if (seen.heads <= HeadsOf(image)) {
    return true;
  }
  seen = {};
  return false;
}

// --- The end -------------------------------------------------------------------------------------

void Promotions::Stop() {
  std::vector<std::pair<CopyTier*, TransferId>> transfers;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    for (const auto& [key, promotion] : promotions_) {
      CopyTier* const tier = parts_.tiers.Find(std::get<TierId>(key));
      for (const TransferId transfer : promotion->transfers_) {
        transfers.emplace_back(tier, transfer);
      }
    }
  }
  for (const auto& [tier, transfer] : transfers) {
    tier->Cancel(transfer);
  }
  in_flight_.Await();  // ends, because a tier completes every transfer
}

void Promotions::Report(MetricSink& sink) const {
  const auto outcome = [&](std::string_view name, const Counter& counter) {
    const MetricLabel labels[] = {{"outcome", name}};
    sink.AddCounter("cairn_promotions_total",
                    "Reads of copies in colder tiers for gets, by outcome.", labels,
                    counter.Value());
  };
  outcome("copied", copied_);
  outcome("staged", staged_);
  outcome("sliced", sliced_);
  outcome("late", late_);
  outcome("failed", failed_);
  outcome("refused", refused_);
  outcome("shared", shared_);
  const auto bytes = [&](std::string_view name, const Counter& counter) {
    const MetricLabel labels[] = {{"kind", name}};
    sink.AddCounter("cairn_promoted_bytes_total",
                    "Bytes read from colder tiers, as whole images or as slices.", labels,
                    counter.Value());
  };
  bytes("whole", whole_bytes_);
  bytes("slice", slice_bytes_);
  const MutexLock lock(mutex_);
  sink.AddGauge("cairn_promoting_bytes",
                "Bytes that running reads of colder tiers use of their share of the host tier.", {},
                static_cast<double>(share_bytes_));
}

}  // namespace cairn
