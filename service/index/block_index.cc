// SPDX-License-Identifier: Apache-2.0
#include "service/index/block_index.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/random_bytes.h"
#include "base/status.h"
#include "service/index/cover.h"
#include "service/limits.h"

namespace cairn {
namespace {

// Call it without the lock, because it makes a system call.
proto::LeaseToken NewToken(const MatchQuery& query) {
  return query.wants_lease ? RandomBytes<16>() : proto::LeaseToken{};
}

// The number of blocks whose images can all be examined or unlinked in one hold.
constexpr size_t kKeysPerStep = limits::kVisitsPerHoldMax / codecs::kImagesPerBlockMax;
constexpr uint32_t kSlotsPerStep = limits::kVisitsPerHoldMax;

uint32_t DueAt(absl::Time now, uint32_t seconds) {
  return static_cast<uint32_t>(
      std::clamp<int64_t>(absl::ToUnixSeconds(now) + seconds, 0, UINT32_MAX - 1));
}

bool IsComplete(absl::Span<const ImageRef> refs, absl::Span<const WantedGroup> wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [refs](const WantedGroup& group) {
    return FindCover(refs, group.group, group.slice, nullptr);
  });
}

}  // namespace

BlockIndex::BlockIndex(const Options& options, Tiers& tiers, const Clock& clock)
    : tiers_(tiers),
      clock_(clock),
      bytes_max_(options.bytes_max),
      keeps_tokens_(options.keeps_tokens),
      events_(clock),
      announcements_(options.announcements_max == 0
                         ? nullptr
                         : std::make_unique<AnnounceRing>(options.announcements_max)),
      parts_(tiers.all(), options.blocks_max, options.awake_bytes_max, options.removals_max,
             options.hints_max, clock, events_),
      evictions_(parts_, options.blocks_max, options.images_max),
      leases_(options.lease_bytes_max),
      match_seconds_(LatencyBounds()),
      hold_seconds_(LatencyBounds()) {
  if (announcements_ != nullptr) {
    const MutexLock lock(mutex_);
    parts_.records.KeepRuns();
    parts_.tiers.SetAnnouncements(announcements_.get());
  }
  tiers_.SetEvictor(this);
}

BlockIndex::~BlockIndex() {
  tiers_.SetEvictor(nullptr);
  const MutexLock lock(mutex_);
  for (const Leases::DroppedLease& lease : leases_.Clear()) {
    for (Image* image : lease.images) {
      parts_.tiers.LeaseUnpin(image);
    }
  }
  for (uint32_t slot = 0; slot < parts_.records.slot_count(); ++slot) {
    if (Block* block = parts_.records.LinkedAt(slot); block != nullptr) {
      parts_.Unlink(block, RemovalReason::kDeleted);
      parts_.records.Rest();
    }
  }
  for (const CopyTier* tier : tiers_.all()) {
    CAIRN_CHECK(parts_.tiers.figures(tier->id()).pinned_bytes == 0, "a pin outlives the index");
  }
}

void BlockIndex::SetSessionCheck(std::function<bool(uint64_t session_id)> is_open) {
  is_session_open_ = std::move(is_open);
}

void BlockIndex::SetWake(std::function<void()> wake) { wake_ = std::move(wake); }

// --- Match ---------------------------------------------------------------------------------------

absl::StatusOr<MatchAnswer> BlockIndex::RunMatch(const MatchQuery& query,
                                                 const proto::LeaseToken& token) {
  CAIRN_CHECK(query.keys.size() <= limits::kKeysPerCallMax && !query.wanted.empty());
  if (query.wants_lease) {
    const MutexLock lock(mutex_);
    CAIRN_RETURN_IF_ERROR(leases_.CheckRoom(query.tenant, query.session_id, 0));
  }
  MatchScan scan(query);
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
              mutex_) { return scan.Look(parts_, leases_.BytesFreeFor(query.tenant), visits); },
          [&] { scan.Reserve(); });
  if (query.wants_lease) {
    LeaseFound(scan, query.tenant);
  } else {
    scan.Plan(/*lease_bytes_free=*/0);
  }
  MatchAnswer answer = scan.Answer();
  absl::Status refusal;
  std::vector<Image*> leased;
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Time now = clock_.Now();
    if (!CountLeased(query.tenant, [&] { return scan.ReleasePins(parts_, visits); }) ||
        !scan.Touch(parts_, now, visits)) {
      return false;
    }
    leased = scan.TakeLeased();
    if (query.wants_lease && scan.block_count() > 0) {
      refusal = leases_.CheckRoom(query.tenant, query.session_id, leased.size());
      if (refusal.ok()) {
        leases_.Take(token, query.tenant, query.session_id, std::move(leased), now);
        answer.lease = token;
        answer.lease_ms = limits::kLeaseMs;
      }
    }
    return true;
  });
  if (!refusal.ok()) {
    Leases::Dropped dropped;
    dropped.push_back({query.tenant, std::move(leased)});
    Unlease(dropped);
    return refusal;
  }
  return answer;
}

void BlockIndex::CheckLease(const MatchQuery& query, absl::StatusOr<MatchAnswer>& result) {
  if (!result.ok()) {
    return;
  }
  const auto asked = absl::MakeConstSpan(query.keys).first(BlocksAsked(query));
  asked_blocks_.Add(asked.size());
  asked_keys_.Add(query.space_id, asked, result->blocks.size());
  matched_blocks_.Add(result->blocks.size());
  shortened_matches_.Add(result->is_shortened_by_pins ? 1 : 0);
  if (result->lease.has_value() && is_session_open_ && !is_session_open_(query.session_id)) {
    Release(query.tenant, {*result->lease});
    result->lease.reset();
    result->lease_ms = 0;
  }
}

absl::StatusOr<MatchAnswer> BlockIndex::Match(const MatchQuery& query) {
  const absl::Time started = MonotonicNow();
  absl::StatusOr<MatchAnswer> result = RunMatch(query, NewToken(query));
  CheckLease(query, result);
  match_seconds_.Observe(MonotonicNow() - started);
  return result;
}

MatchAnswer BlockIndex::Peek(const MatchQuery& query) {
  CAIRN_CHECK(query.keys.size() <= limits::kKeysPerCallMax && !query.wanted.empty() &&
              !query.wants_lease);
  MatchScan scan(query);
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
              mutex_) { return scan.Look(parts_, /*lease_bytes_free=*/0, visits); },
          [&] { scan.Reserve(); });
  scan.Plan(/*lease_bytes_free=*/0);
  return scan.Answer();
}

// --- Waiting -------------------------------------------------------------------------------------

absl::Status BlockIndex::FileIfMissing(std::unique_ptr<Waiter>& waiter) {
  const uint64_t session_id = waiter->query.session_id;
  absl::Status refusal;
  MissingScan scan(waiter->query);
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!scan.Look(parts_, visits)) {
      return false;
    }
    if (!scan.missing().has_value() || waiter->deadline <= clock_.Now()) {
      return true;
    }
    if (!waiter->is_admitted) {
      refusal = waiters_.Admit(waiter->query);
      waiter->is_admitted = refusal.ok();
    }
    if (waiter->is_admitted) {
      const BlockName awaited = {waiter->query.space_id, waiter->query.keys[*scan.missing()]};
      waiters_.File(std::move(waiter), awaited);
    }
    return true;
  });
  // The session may have ended while the waiter was not filed. EndSession() then did not find it.
  if (waiter == nullptr && is_session_open_ && !is_session_open_(session_id)) {
    EndSession(session_id);
  }
  return refusal;
}

void BlockIndex::MatchWhenReady(MatchQuery query, absl::Time deadline, MatchDone done) {
  auto waiter = std::make_unique<Waiter>(Waiter{std::move(query), deadline, std::move(done)});
  const absl::Status refusal = FileIfMissing(waiter);
  if (!refusal.ok()) {
    waiter->done(refusal);
  } else if (waiter != nullptr) {
    AnswerWaiter(std::move(waiter));
  } else if (wake_) {
    wake_();
  }
}

void BlockIndex::TryWaiter(std::unique_ptr<Waiter> waiter, bool is_last_try) {
  const uint64_t session_id = waiter->query.session_id;
  if (!is_last_try && (!is_session_open_ || is_session_open_(session_id))) {
    CAIRN_CHECK_OK(FileIfMissing(waiter));  // cannot fail for a waiter that is admitted
  }
  if (waiter != nullptr) {
    AnswerWaiter(std::move(waiter));
  }
}

void BlockIndex::AnswerWaiter(std::unique_ptr<Waiter> waiter) {
  absl::StatusOr<MatchAnswer> result = Match(waiter->query);
  if (waiter->is_admitted) {
    const MutexLock lock(mutex_);
    waiters_.Discharge(waiter->query);
  }
  waiter->done(std::move(result));
}

absl::Time BlockIndex::AnswerLateWaiters() {
  Waiters::Taken late;
  absl::Time next;
  const absl::Time now = clock_.Now();
  {
    const MutexLock lock(mutex_);
    next = waiters_.next_deadline();
  }
  if (next > now) {
    return next;
  }
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool is_over = waiters_.TakeLate(now, visits, &late);
    next = waiters_.next_deadline();
    return is_over;
  });
  for (std::unique_ptr<Waiter>& waiter : late) {
    TryWaiter(std::move(waiter), /*is_last_try=*/true);
  }
  return next;
}

// --- Leases --------------------------------------------------------------------------------------

bool BlockIndex::CountLeased(std::string_view tenant, absl::FunctionRef<bool()> change) {
  const uint64_t before = parts_.tiers.leased_bytes();
  const bool result = change();
  leases_.CountBytes(tenant, before, parts_.tiers.leased_bytes());
  return result;
}

void BlockIndex::LeaseFound(MatchScan& scan, std::string_view tenant) {
  uint64_t lease_bytes_free = 0;
  for (int plans = 0; plans < limits::kMatchPlansMax; ++plans) {
    {
      const MutexLock lock(mutex_);
      lease_bytes_free = leases_.BytesFreeFor(tenant) + scan.leased_bytes();
    }
    scan.Plan(lease_bytes_free);
    InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const uint64_t leased_max = parts_.tiers.leased_bytes() + leases_.BytesFreeFor(tenant);
      return CountLeased(tenant, [&] { return scan.Lease(parts_, leased_max, visits); });
    });
    if (scan.is_leased()) {
      return;
    }
  }
  scan.Abandon();
}

void BlockIndex::Unlease(const Leases::Dropped& dropped) {
  if (dropped.empty()) {
    return;
  }
  size_t lease = 0, image = 0;
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (; lease < dropped.size(); ++lease, image = 0) {
      const std::vector<Image*>& images = dropped[lease].images;
      const bool is_over = CountLeased(dropped[lease].tenant, [&] {
        for (; image < images.size() && visits.Take(); ++image) {
          parts_.tiers.LeaseUnpin(images[image]);
        }
        return image == images.size();
      });
      if (!is_over) {
        return false;
      }
    }
    return true;
  });
}

void BlockIndex::Release(std::string_view tenant, absl::Span<const proto::LeaseToken> leases) {
  Leases::Dropped dropped;
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return leases_.Release(tenant, &leases, visits, &dropped);
  });
  Unlease(dropped);
}

void BlockIndex::RenewLeases(uint64_t session_id) {
  const MutexLock lock(mutex_);
  leases_.Renew(session_id, clock_.Now());
}

void BlockIndex::EndSession(uint64_t session_id) {
  Leases::Dropped dropped;
  Waiters::Taken orphaned;
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return leases_.EndSession(session_id, visits, &dropped) &&
           waiters_.TakeOf(session_id, visits, &orphaned);
  });
  Unlease(dropped);
  for (std::unique_ptr<Waiter>& waiter : orphaned) {
    waiter->query.wants_lease = false;
    TryWaiter(std::move(waiter), /*is_last_try=*/true);
  }
}

absl::Time BlockIndex::ExpireLeases() {
  Leases::Dropped dropped;
  absl::Time next;
  const absl::Time now = clock_.Now();
  {
    const MutexLock lock(mutex_);
    next = leases_.next_expiry();
  }
  if (next > now) {
    return next;
  }
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool is_over = leases_.Expire(now, visits, &dropped);
    next = leases_.next_expiry();
    return is_over;
  });
  Unlease(dropped);
  return next;
}

// --- Hints ---------------------------------------------------------------------------------------

absl::StatusOr<uint32_t> BlockIndex::SetHints(uint64_t space_id, std::string_view tenant,
                                              absl::Span<const proto::BlockKey> keys,
                                              uint8_t priority, uint32_t seconds) {
  CAIRN_CHECK(priority <= limits::kRetainPriorityMax && seconds <= limits::kHintSecondsMax);
  const bool is_at_once = priority == 0 && seconds == 0;
  const uint32_t due = DueAt(clock_.Now(), seconds);
  uint64_t reserved = 0, used = 0;
  size_t next = 0;
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (; next < keys.size() && visits.Take(); ++next) {
      reserved += !is_at_once && parts_.hints.Find({space_id, keys[next]}) == nullptr ? 1 : 0;
    }
    return next == keys.size();
  });
  {
    const MutexLock lock(mutex_);
    CAIRN_RETURN_IF_ERROR(parts_.hints.Reserve(tenant, reserved));
  }
  uint32_t stored = 0;
  next = 0;
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (; next < keys.size() && visits.Take(); ++next) {
      const BlockName name = {space_id, keys[next]};
      const Hint hint = {.priority = priority, .due_unix_s = due};
      if (is_at_once) {
        parts_.hints.Remove(name);
      } else {
        used += parts_.hints.Set(name, tenant, hint) ? 1 : 0;
      }
      if (Block* block = parts_.chains.FindUnexpired(name); block != nullptr) {
        ++stored;
        if (!hint.is_demotion() || block->rank != kFetchedRank) {  // a demotion raises none
          parts_.tiers.SetRank(block, is_at_once ? kDemotedRank : Hints::RankOf(hint));
        }
        block->may_demote = hint.is_demotion();
      }
    }
    return next == keys.size();
  });
  const MutexLock lock(mutex_);
  parts_.hints.Settle(tenant, reserved, used);
  return stored;
}

void BlockIndex::RestoreHint(const BlockName& name, std::string_view tenant, uint8_t priority,
                             uint32_t due_unix_s) {
  const MutexLock lock(mutex_);
  if (due_unix_s <= absl::ToUnixSeconds(clock_.Now()) || parts_.hints.Find(name) != nullptr ||
      !parts_.hints.Reserve(tenant, 1).ok()) {
    return;
  }
  const Hint hint = {
      .priority = priority,
      .due_unix_s = std::min(due_unix_s, DueAt(clock_.Now(), limits::kHintSecondsMax))};
  parts_.hints.Set(name, tenant, hint);
  if (Block* block = parts_.chains.Find(name); block != nullptr) {
    parts_.tiers.SetRank(block, Hints::RankOf(hint));
    block->may_demote = hint.is_demotion();
  }
}

absl::Time BlockIndex::EndHints() {
  const absl::Time now = clock_.Now();
  absl::Time next = absl::InfiniteFuture();
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (visits.Take()) {  // each iteration removes a hint
      const auto due = parts_.hints.TakeDue(DueAt(now, 0));
      if (!due.has_value()) {
        const uint32_t next_due = parts_.hints.next_due();
        next = next_due == UINT32_MAX ? absl::InfiniteFuture() : absl::FromUnixSeconds(next_due);
        return true;
      }
      parts_.EndHint(due->first, due->second);
    }
    return false;
  });
  return next;
}

std::optional<std::vector<BlockIndex::NamedHint>> BlockIndex::ChangedHints(
    uint64_t* version) const {
  const MutexLock lock(mutex_);
  if (parts_.hints.version() == *version) {
    return std::nullopt;
  }
  *version = parts_.hints.version();
  std::vector<NamedHint> hints;
  hints.reserve(parts_.hints.count());
  parts_.hints.ForEach([&hints](const BlockName& name, const Hint& hint) {
    hints.push_back({name, hint});
  });
  return hints;
}

// --- Lookup --------------------------------------------------------------------------------------

CopyPins BlockIndex::Lookup(const BlockName& name, uint16_t group, const codecs::Slice& slice) {
  CopyPins pins;
  ImageRefs scratch;
  ImagePlaces places;
  const Hold hold(*this);
  Block* block = parts_.chains.FindUnexpired(name);
  if (block == nullptr ||
      !FindCover(parts_.records.RefsOf(*block, &scratch), group, slice, &places)) {
    return pins;
  }
  parts_.tiers.Touch(block, clock_.Now(), TierSet::Use::kGet);
  const ImageRefs& images = parts_.records.Wake(block);
  for (const uint8_t place : places) {
    pins.push_back(PinCopyLocked(images[place].image->best()));
  }
  return pins;
}

CopyPin BlockIndex::PinCopyLocked(Copy& copy) {
  parts_.tiers.Pin(&copy);
  return CopyPin(*this, &copy);
}

std::vector<BlockName> BlockIndex::LeasedAfter(const BlockName& name, size_t count) const {
  const MutexLock lock(mutex_);
  Visits visits;
  return parts_.chains.LeasedAfter(name, count, visits);
}

ImagePins BlockIndex::PinImages(const BlockName& name) {
  ImagePins pins;
  const Hold hold(*this);
  if (Block* block = parts_.chains.FindUnexpired(name); block != nullptr) {
    for (const ImageRef& ref : parts_.records.Wake(block)) {
      parts_.tiers.Pin(ref.image);
      pins.push_back(ImagePin(*this, ref.image));
    }
  }
  return pins;
}

ImagePin BlockIndex::PinImage(const CopyPin& pin) {
  CAIRN_CHECK(pin.handle_.IsOf(*this));
  const Hold hold(*this);
  parts_.tiers.Pin(pin.handle_.value()->image);
  return ImagePin(*this, pin.handle_.value()->image);
}

CopyPin BlockIndex::PinCopy(const ImagePin& pin, TierId tier) {
  CAIRN_CHECK(pin.handle_.IsOf(*this));
  const MutexLock lock(mutex_);
  Copy* copy = pin.handle_.value()->copies[IndexOf(tier)];
  return copy == nullptr ? CopyPin() : PinCopyLocked(*copy);
}

void BlockIndex::Unpin(Copy* copy) {
  const Hold hold(*this);
  parts_.tiers.Unpin(copy);
}

void BlockIndex::Unpin(Image* image) {
  const Hold hold(*this);
  parts_.tiers.Unpin(image);
}

std::vector<bool> BlockIndex::Contains(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                                       absl::Span<const WantedGroup> wanted) const {
  std::vector<bool> answers;
  answers.reserve(keys.size());
  ImageRefs scratch;
  while (answers.size() < keys.size()) {
    const size_t end = std::min(keys.size(), answers.size() + kKeysPerStep);
    mutex_.LetWaitersPass();
    const MutexLock lock(mutex_);
    for (size_t i = answers.size(); i < end; ++i) {
      const Block* block = parts_.chains.FindUnexpired({space_id, keys[i]});
      answers.push_back(block != nullptr &&
                        IsComplete(parts_.records.RefsOf(*block, &scratch), wanted));
    }
  }
  return answers;
}

std::vector<BlockIndex::Where> BlockIndex::Locate(uint64_t space_id,
                                                  absl::Span<const proto::BlockKey> keys,
                                                  absl::Span<const WantedGroup> wanted) const {
  std::vector<Where> answers;
  answers.reserve(keys.size() * wanted.size());
  ImageRefs scratch;
  ImagePlaces places;
  const auto where = [&](const Block* block,
                         const WantedGroup& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (block == nullptr ||
        !FindCover(parts_.records.RefsOf(*block, &scratch), group.group, group.slice, &places)) {
      return Where::kNowhere;
    }
    return std::all_of(places.begin(), places.end(),
                       [&](uint8_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                         return parts_.records.BriefOf(*block, place).tier == TierId::kHost;
                       })
               ? Where::kInMemory
               : Where::kCold;
  };
  for (size_t first = 0; first < keys.size(); first += kKeysPerStep) {
    mutex_.LetWaitersPass();
    const MutexLock lock(mutex_);
    for (const proto::BlockKey& key : keys.subspan(first, kKeysPerStep)) {
      const Block* block = parts_.chains.FindUnexpired({space_id, key});
      for (const WantedGroup& group : wanted) {
        answers.push_back(where(block, group));
      }
    }
  }
  return answers;
}

// --- Explain -------------------------------------------------------------------------------------

BlockFate BlockIndex::FateOf(const BlockName& name, absl::Span<const WantedGroup> wanted) const {
  BlockFate fate;
  const Block* block = parts_.chains.Find(name);
  if (block == nullptr || parts_.chains.IsExpired(*block)) {
    fate.removal = block == nullptr
                       ? parts_.removals.Find(name)
                       : Removal{RemovalReason::kExpired, uint32_t{block->expires_unix_s}};
    return fate;
  }
  ImageRefs scratch;
  const absl::Span<const ImageRef> refs = parts_.records.RefsOf(*block, &scratch);
  fate.is_stored = true;
  for (const WantedGroup& group : wanted) {
    if (!fate.missing_group.has_value() && !FindCover(refs, group.group, group.slice, nullptr)) {
      fate.missing_group = group.group;
    }
  }
  for (const TierId tier : kReadOrder) {
    if (parts_.records.HasCopiesIn(*block, tier)) {
      fate.tiers.push_back(tier);
    }
  }
  return fate;
}

Explanation BlockIndex::Explain(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                                absl::Span<const WantedGroup> wanted) const {
  Explanation explanation;
  explanation.blocks.reserve(keys.size());
  for (size_t first = 0; first < keys.size(); first += kKeysPerStep) {
    mutex_.LetWaitersPass();
    const MutexLock lock(mutex_);
    for (const proto::BlockKey& key :
         keys.subspan(first, std::min(kKeysPerStep, keys.size() - first))) {
      explanation.blocks.push_back(FateOf({space_id, key}, wanted));
    }
  }
  const MutexLock lock(mutex_);
  explanation.since_unix_s = parts_.removals.since_unix_s();
  explanation.has_all_removals = parts_.removals.is_complete();
  return explanation;
}

void BlockIndex::NoteRefused(const BlockName& name) {
  const MutexLock lock(mutex_);
  if (parts_.chains.Find(name) == nullptr) {
    parts_.NoteRemoval(name, RemovalReason::kRefused);
  }
}

// --- Publish -------------------------------------------------------------------------------------

absl::StatusOr<std::optional<uint64_t>> BlockIndex::Check(const BlockClaim& claim) const {
  const MutexLock lock(mutex_);
  const Block* block = parts_.chains.Find(claim.name);
  if (block != nullptr && parts_.chains.IsExpired(*block)) {
    return std::nullopt;  // it has expired, and will be gone then
  }
  return parts_.Check(claim);
}

bool BlockIndex::DropIfExpired(Block* block) {
  if (block == nullptr || !parts_.chains.IsExpired(*block)) {
    return false;
  }
  parts_.Unlink(block, RemovalReason::kExpired);
  ++expired_total_;
  return true;
}

absl::StatusOr<PutReservation> BlockIndex::ReservePut(const BlockClaim& claim) {
  const Hold hold(*this);
  DropIfExpired(parts_.chains.Find(claim.name));
  CAIRN_RETURN_IF_ERROR(parts_.Check(claim).status());
  return PutReservation(*this, parts_.chains.ReservePut(claim));
}

void BlockIndex::EndReservation(Block* block) {
  const Hold hold(*this);
  parts_.chains.EndReservation(block);
}

void BlockIndex::SetNames(const BlockName& name, EngineNamesRef names) {
  const Hold hold(*this);
  const Block* block = parts_.chains.FindUnexpired(name);
  if (block != nullptr && parts_.records.SetNames(*block, std::move(names))) {
    parts_.tiers.EmitNamed(*block);
  }
}

absl::StatusOr<bool> BlockIndex::Publish(NewImage image) {
  const Hold hold(*this);
  DropIfExpired(parts_.chains.Find(image.claim.name));
  CAIRN_ASSIGN_OR_RETURN(const std::optional<uint64_t> covered, parts_.Check(image.claim));
  if (covered.has_value()) {
    return false;
  }
  const uint64_t uncopied = parts_.write_back.uncopied_count();
  if (const TierId tier = image.copy.extent.tier(); parts_.tiers.is_out(tier)) {
    return absl::UnavailableError(absl::StrCat(ToAbsl(Name(tier)), " tier: its device is out"));
  }
  const absl::Time now = clock_.Now();
  Block* block = parts_.chains.ReservePut(image.claim);
  const absl::Status status = evictions_.MakeRoom(block, now);
  if (status.ok()) {
    parts_.Add(block, std::move(image), now);
  }
  parts_.chains.EndReservation(block);
  CAIRN_RETURN_IF_ERROR(status);
  is_wake_due_ = is_wake_due_ || (uncopied == 0 && parts_.write_back.uncopied_count() > 0);
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

// --- Unlink --------------------------------------------------------------------------------------

bool BlockIndex::Drop(const CopyPin& pin) {
  CAIRN_CHECK(pin.handle_.IsOf(*this));
  const Hold hold(*this);
  if (!pin.handle_.value()->is_linked()) {
    return false;
  }
  parts_.Lose(pin.handle_.value());
  return true;
}

uint32_t BlockIndex::Delete(uint64_t space_id, absl::Span<const proto::BlockKey> keys) {
  uint32_t deleted = 0;
  for (size_t first = 0; first < keys.size(); first += kKeysPerStep) {
    mutex_.LetWaitersPass();
    const Hold hold(*this);
    for (const proto::BlockKey& key : keys.subspan(first, kKeysPerStep)) {
      parts_.hints.Remove({space_id, key});
      if (Block* block = parts_.chains.Find({space_id, key}); block != nullptr) {
        parts_.Unlink(block, RemovalReason::kDeleted);
        ++deleted;
      }
    }
  }
  return deleted;
}

uint64_t BlockIndex::Invalidate(uint64_t space_id) {
  uint64_t deleted = 0;
  uint32_t slot_end = 0;
  {
    const MutexLock lock(mutex_);
    slot_end = parts_.records.slot_count();
  }
  for (uint32_t first = 0; first < slot_end; first += kKeysPerStep) {
    mutex_.LetWaitersPass();
    const Hold hold(*this);
    for (uint32_t slot = first; slot < std::min<size_t>(slot_end, first + kKeysPerStep); ++slot) {
      Block* block = parts_.records.LinkedAt(slot);
      if (block != nullptr && block->name.space_id == space_id) {
        parts_.Unlink(block, RemovalReason::kInvalidated);
        ++deleted;
      }
    }
  }
  return deleted;
}

bool BlockIndex::CollectExpired(uint64_t* cursor) {
  mutex_.LetWaitersPass();
  const Hold hold(*this);
  if (parts_.chains.expiring_count() == 0) {
    return false;
  }
  const uint64_t end =
      std::min<uint64_t>(parts_.records.slot_count(), *cursor + limits::kVisitsPerHoldMax);
  for (size_t dropped = 0; *cursor < end && dropped < kKeysPerStep; ++*cursor) {
    dropped += DropIfExpired(parts_.records.LinkedAt(static_cast<uint32_t>(*cursor))) ? 1 : 0;
  }
  return *cursor < parts_.records.slot_count();
}

// --- Copy ----------------------------------------------------------------------------------------

CopyWriter BlockIndex::BeginCopy(const CopyPin& source, TierId tier) {
  CAIRN_CHECK(source.handle_.IsOf(*this));
  const MutexLock lock(mutex_);
  Image* image = source.handle_.value()->image;
  return parts_.tiers.BeginCopy(image, tier) ? CopyWriter(*this, image, tier) : CopyWriter();
}

bool BlockIndex::FinishCopy(CopyWriter writer, NewCopy copy) {
  CAIRN_CHECK(writer.handle_.IsOf(*this));
  const Hold hold(*this);
  return CountLeased(copy.tenant, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto [image, tier] = writer.handle_.Take();
    if (tier == TierId::kHost && parts_.tiers.MayFinishCopy(*image, tier)) {
      evictions_.MakeRoomForAwake(image->block->name);
    }
    return parts_.tiers.FinishCopy(image, tier, std::move(copy));
  });
}

void BlockIndex::GiveUp(Image* image, TierId tier) {
  const Hold hold(*this);
  parts_.tiers.GiveUpCopy(image, tier);
}

bool BlockIndex::Replace(const CopyPin& pin, NewCopy copy) {
  CAIRN_CHECK(pin.handle_.IsOf(*this));
  const Hold hold(*this);
  if (!pin.handle_.value()->is_linked()) {
    return false;
  }
  return CountLeased(copy.tenant, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    parts_.tiers.Replace(pin.handle_.value(), std::move(copy));
    return true;
  });
}

bool BlockIndex::ArePublished(std::span<const CopyPin> pins) const {
  const MutexLock lock(mutex_);
  for (const CopyPin& pin : pins) {
    CAIRN_CHECK(pin.handle_.IsOf(*this));
    if (!pin.handle_.value()->is_linked()) {
      return false;
    }
  }
  return true;
}

// --- Write back ----------------------------------------------------------------------------------

bool BlockIndex::HasLasting() const {
  const std::optional<TierId> lasting = parts_.records.lasting();
  return lasting.has_value() && !parts_.tiers.is_out(*lasting);
}

std::optional<WriteBackCandidate> BlockIndex::TakeWriteBack() {
  std::optional<WriteBackCandidate> taken;
  int searches = 0;
  uint32_t round = 0;
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!HasLasting()) {
      return true;
    }
    round = round == 0 ? parts_.write_back.BeginRound() : round;
    Image* image = parts_.write_back.Next(round, visits);
    if (image == nullptr) {
      return !visits.is_spent() || ++searches == limits::kWriteBackSearchesMax;
    }
    const TierId tier = *parts_.records.lasting();
    taken.emplace();
    Block* parent = parts_.records.ParentOf(*image->block);
    taken->parent = parent == nullptr ? proto::BlockKey{} : parent->name.key;
    taken->names = parts_.records.NamesOf(*image->block);
    const Copy& source = *image->copies[IndexOf(TierId::kHost)];
    taken->is_used = image->block->last_use > source.linked_at;
    taken->source = PinCopyLocked(*image->copies[IndexOf(TierId::kHost)]);
    CAIRN_CHECK(parts_.tiers.BeginCopy(image, tier));
    taken->writer = CopyWriter(*this, image, tier);
    if (parent != nullptr && parts_.records.HasCopiesIn(*parent, tier)) {
      for (const ImageRef& ref : parts_.records.Wake(parent)) {
        if (Copy* copy = ref.image->copies[IndexOf(tier)]; copy != nullptr) {
          taken->parent_copy = PinCopyLocked(*copy);
          break;
        }
      }
    }
    return true;
  });
  return taken;
}

void BlockIndex::StopWritingBack(CopyWriter writer) {
  CAIRN_CHECK(writer.handle_.IsOf(*this));
  {
    const Hold hold(*this);
    parts_.write_back.SetSuppressed(writer.handle_.value().image, Suppressed::kWithheld);
  }
  writer.Reset();
}

WriteBackProgress BlockIndex::Expedite(const BlockName& name, uint16_t group,
                                       const codecs::Slice& slice) {
  WriteBackProgress progress;
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Block* block = parts_.chains.Find(name);
    if (!HasLasting()) {
      progress = {.state = WriteBackProgress::State::kNoTier, .block = {}};
    } else if (block == nullptr) {
      progress = {.state = WriteBackProgress::State::kGone, .block = name};
    } else {
      progress = parts_.write_back.Expedite(*block, group, slice, visits);
    }
    return true;
  });
  return progress;
}

// --- Pending encodings ---------------------------------------------------------------------------

CopyPins BlockIndex::TakePending(size_t count) {
  CAIRN_CHECK(count <= limits::kVisitsPerHoldMax);
  CopyPins pins;
  const MutexLock lock(mutex_);
  while (pins.size() < count && parts_.write_back.pending_count() > 0) {
    Image* image = parts_.write_back.FirstPending();
    parts_.write_back.ClearPending(image);
    pins.push_back(PinCopyLocked(*image->copies[IndexOf(TierId::kHost)]));
  }
  return pins;
}

bool BlockIndex::TakePending(const CopyPin& pin) {
  CAIRN_CHECK(pin.handle_.IsOf(*this));
  const MutexLock lock(mutex_);
  const bool is_pending =
      pin.handle_.value()->is_linked() && pin.handle_.value()->image->queue == QueueId::kPending;
  parts_.write_back.ClearPending(pin.handle_.value()->image);
  return is_pending;
}

std::optional<BlockName> BlockIndex::BlockBefore(const CopyPin& pin) const {
  CAIRN_CHECK(pin.handle_.IsOf(*this));
  const MutexLock lock(mutex_);
  const Block* block =
      pin.handle_.value()->is_linked() ? pin.handle_.value()->image->block : nullptr;
  const Block* parent = block == nullptr ? nullptr : parts_.records.ParentOf(*block);
  if (parent == nullptr) {
    return std::nullopt;
  }
  return parent->name;
}

void BlockIndex::PutBackPending(const CopyPin& pin) {
  CAIRN_CHECK(pin.handle_.IsOf(*this));
  const MutexLock lock(mutex_);
  if (pin.handle_.value()->is_linked()) {
    parts_.write_back.SetPending(pin.handle_.value()->image);
  }
}

// --- Evict ---------------------------------------------------------------------------------------

uint64_t BlockIndex::EvictOldest(TierId tier, EvictionReason reason, const BlockName* newcomer) {
  Eviction eviction = {.tier = tier, .reason = reason, .newcomer = newcomer};
  uint64_t freed = 0;
  int searches = 0;  // for ancestors of held leaves
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    eviction.since = std::min(eviction.since, parts_.records.uses());
    freed = evictions_.EvictOldest(eviction, visits);
    searches += eviction.is_past_leaves ? 1 : 0;
    return freed > 0 || !visits.is_spent() || searches == limits::kEvictionSearchesMax;
  });
  return freed;
}

bool BlockIndex::EvictCopy(TierId tier, const ImageFacts& image, uint64_t offset,
                           EvictionReason reason) {
  const Hold hold(*this);
  Copy* copy = parts_.FindCopy(tier, image, offset);
  if (copy == nullptr) {
    return true;
  }
  if (copy->is_held) {
    return false;
  }
  Block* block = copy->image->block;
  parts_.tiers.Evict(copy, reason);
  parts_.UnlinkIfEmpty(block, RemovalReason::kEvicted);
  return true;
}

bool BlockIndex::IsRetained(const ImageFacts& image) const {
  const MutexLock lock(mutex_);
  const Block* block = parts_.chains.Find({image.space_id, image.key});
  return block != nullptr && block->rank > kPlainRank;
}

Evictor::Moved BlockIndex::MoveCopy(TierId tier, const ImageFacts& image, uint64_t offset,
                                    TierExtent& to) {
  const Hold hold(*this);
  Copy* copy = parts_.FindCopy(tier, image, offset);
  if (copy == nullptr) {
    return Moved::kGone;
  }
  if (copy->pins > 0) {
    return Moved::kBusy;
  }
  CAIRN_CHECK(to.size_bytes() == copy->extent.size_bytes() &&
              to.rounded_bytes() == copy->extent.rounded_bytes());
  copy->extent = std::move(to);
  return Moved::kMoved;
}

void BlockIndex::LoseCopy(TierId tier, const ImageFacts& image, uint64_t offset) {
  const Hold hold(*this);
  if (Copy* copy = parts_.FindCopy(tier, image, offset); copy != nullptr) {
    parts_.Lose(copy);
  }
}

bool BlockIndex::EvictWindow(uint64_t bytes, const BlockName* newcomer, uint64_t* bytes_passed) {
  window_searches_.Add();
  mutex_.LetWaitersPass();
  const Hold hold(*this);
  Visits visits;
  return evictions_.EvictWindow(tiers_.host().arena(), bytes, newcomer, bytes_passed, visits);
}

uint64_t BlockIndex::TakeOut(TierId tier) {
  {
    const MutexLock lock(mutex_);
    parts_.tiers.SetOut(tier, true);  // images that are published from now on get no copy there
  }
  return LoseIn(tier, 0, UINT64_MAX);
}

uint64_t BlockIndex::LoseIn(TierId tier, uint64_t begin, uint64_t end) {
  uint32_t slot_end = 0;
  {
    const MutexLock lock(mutex_);
    slot_end = parts_.records.slot_count();
  }
  uint64_t count = 0;
  for (uint32_t first = 0; first < slot_end; first += kKeysPerStep) {
    mutex_.LetWaitersPass();
    const Hold hold(*this);
    for (uint32_t slot = first; slot < std::min<size_t>(slot_end, first + kKeysPerStep); ++slot) {
      Block* block = parts_.records.LinkedAt(slot);
      if (block != nullptr && parts_.records.HasCopiesIn(*block, tier)) {
        parts_.tiers.Lose(block, tier, begin, end);
        parts_.UnlinkIfEmpty(block, RemovalReason::kDeviceOut);
        ++count;
      }
    }
  }
  return count;
}

void BlockIndex::PutBack(TierId tier) {
  const MutexLock lock(mutex_);
  parts_.tiers.SetOut(tier, false);
}

void BlockIndex::LoseCopies(TierId tier, uint64_t begin, uint64_t end) { LoseIn(tier, begin, end); }

// --- Walks ---------------------------------------------------------------------------------------

bool BlockIndex::Walk(uint64_t space_id, uint64_t* cursor, CopyPins* pins) {
  pins->clear();
  const MutexLock lock(mutex_);
  const uint64_t end = std::min<uint64_t>(parts_.records.slot_count(), *cursor + kKeysPerStep);
  for (; *cursor < end; ++*cursor) {
    Block* block = parts_.records.LinkedAt(static_cast<uint32_t>(*cursor));
    if (block == nullptr || block->is_resting() ||
        (space_id != 0 && block->name.space_id != space_id)) {
      continue;
    }
    for (const ImageRef& ref : block->awake->images) {
      if (Copy* copy = ref.image->copies[IndexOf(TierId::kHost)]; copy != nullptr) {
        pins->push_back(PinCopyLocked(*copy));
      }
    }
  }
  return *cursor < parts_.records.slot_count();
}

bool BlockIndex::WalkTier(TierId tier, uint64_t space_id, uint64_t* cursor, CopyPin* pin) {
  pin->Reset();
  const Hold hold(*this);
  uint64_t slot = *cursor / codecs::kImagesPerBlockMax;
  size_t place = *cursor % codecs::kImagesPerBlockMax;  // index of the image in its block
  const uint64_t end = std::min<uint64_t>(parts_.records.slot_count(), slot + kSlotsPerStep);
  for (; slot < end && pin->is_empty(); place = 0, ++slot) {
    Block* block = parts_.records.LinkedAt(static_cast<uint32_t>(slot));
    if (block == nullptr || (space_id != 0 && block->name.space_id != space_id) ||
        !parts_.records.HasCopiesIn(*block, tier)) {
      continue;
    }
    const ImageRefs& images = parts_.records.Wake(block);
    for (; place < images.size(); ++place) {
      if (Copy* copy = images[place].image->copies[IndexOf(tier)]; copy != nullptr) {
        *cursor = slot * codecs::kImagesPerBlockMax + place + 1;
        *pin = PinCopyLocked(*copy);
        return true;
      }
    }
  }
  *cursor = slot * codecs::kImagesPerBlockMax;
  return slot < parts_.records.slot_count();
}

std::vector<ListedBlock> BlockIndex::List(uint64_t space_id,
                                          const std::optional<proto::BlockKey>& after, size_t limit,
                                          absl::Span<const WantedGroup> whole,
                                          bool* has_more) const {
  CAIRN_CHECK(limit > 0 && limit <= limits::kListBlocksMax);
  // A heap with the smallest keys after `after`. It has one key more than requested. The largest is
  // on top.
  std::vector<proto::BlockKey> keys;
  bool is_over = false;
  for (uint32_t first = 0; !is_over; first += kSlotsPerStep) {
    mutex_.LetWaitersPass();
    const MutexLock lock(mutex_);
    const uint32_t end = std::min(parts_.records.slot_count(), first + kSlotsPerStep);
    is_over = end == parts_.records.slot_count();
    for (uint32_t slot = first; slot < end; ++slot) {
      const Block* block = parts_.records.LinkedAt(slot);
      if (block == nullptr || block->name.space_id != space_id ||
          (after.has_value() && block->name.key <= *after)) {
        continue;
      }
      if (keys.size() > limit) {
        if (block->name.key >= keys.front()) {
          continue;
        }
        std::pop_heap(keys.begin(), keys.end());
        keys.pop_back();
      }
      keys.push_back(block->name.key);
      std::push_heap(keys.begin(), keys.end());
    }
  }
  std::sort_heap(keys.begin(), keys.end());
  // A block that moved to another slot meanwhile may have been seen twice.
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  *has_more = keys.size() > limit;
  keys.resize(std::min(keys.size(), limit));

  std::vector<ListedBlock> blocks;
  ImageRefs scratch;
  for (size_t first = 0; first < keys.size(); first += kKeysPerStep) {
    mutex_.LetWaitersPass();
    const MutexLock lock(mutex_);
    for (size_t i = first; i < std::min(keys.size(), first + kKeysPerStep); ++i) {
      const Block* block = parts_.chains.FindUnexpired({space_id, keys[i]});
      if (block == nullptr) {
        continue;
      }
      const Block* parent = parts_.records.ParentOf(*block);
      ListedBlock listed = {
          .key = block->name.key,
          .parent = parent == nullptr ? proto::BlockKey{} : parent->name.key,
          .first_position = block->first_position,
          .is_complete = IsComplete(parts_.records.RefsOf(*block, &scratch), whole),
          .child_count = block->child_count(),
          .idle = clock_.Now() - absl::FromUnixSeconds(block->used_at_s),
          .images = {}};
      parts_.records.Describe(*block, [&](const ImageFacts& facts, const CopyFacts& copy,
                                          uint32_t pin_count, const SideObject* side_object) {
        ListedImage& image =
            listed.images.emplace_back(ListedImage{facts, copy, pin_count, std::nullopt});
        if (side_object != nullptr) {
          image.side_object = side_object->id();
        }
      });
      blocks.push_back(std::move(listed));
    }
  }
  return blocks;
}

// --- Events --------------------------------------------------------------------------------------

bool BlockIndex::Snapshot(std::string_view tenant, uint64_t* cursor, EventBatchRoom& room,
                          std::vector<IndexEvent>* events) const {
  const absl::flat_hash_set<uint64_t> spaces = events_.SpacesOf(tenant);
  mutex_.LetWaitersPass();
  const MutexLock lock(mutex_);
  const uint64_t end =
      std::min<uint64_t>(*cursor + limits::kVisitsPerHoldMax, parts_.records.slot_count());
  for (; *cursor < end && !room.is_full(); ++*cursor) {
    const Block* block = parts_.records.LinkedAt(static_cast<uint32_t>(*cursor));
    if (block == nullptr || !spaces.contains(block->name.space_id) ||
        parts_.chains.IsExpired(*block)) {
      continue;
    }
    for (const TierId tier : kReadOrder) {
      if (parts_.records.HasCopiesIn(*block, tier)) {
        events->push_back(parts_.tiers.EventOf(*block, tier, true));
        room.Take(events->back());
      }
    }
  }
  return *cursor < parts_.records.slot_count();
}

bool BlockIndex::WalkAnnounced(uint64_t* cursor, std::vector<Announcement>* page) {
  mutex_.LetWaitersPass();
  const MutexLock lock(mutex_);
  const uint64_t end =
      std::min<uint64_t>(*cursor + limits::kVisitsPerHoldMax, parts_.records.slot_count());
  Visits visits;
  for (; *cursor < end && !visits.is_spent(); ++*cursor) {
    const Block* block = parts_.records.LinkedAt(static_cast<uint32_t>(*cursor));
    if (block == nullptr || parts_.chains.IsExpired(*block)) {
      continue;
    }
    const std::optional<uint64_t> run = parts_.records.LearnRun(*block, visits);
    if (!run.has_value()) {
      return true;  // the next hold goes on with this block
    }
    if (*run != proto::kNoRun) {
      page->push_back({.name = block->name, .run = *run, .is_stored = true});
    }
  }
  return *cursor < parts_.records.slot_count();
}

bool BlockIndex::WalkUsed(uint32_t since_unix_s, uint64_t* cursor,
                          std::vector<UsedBlock>* page) const {
  ImageRefs scratch;
  mutex_.LetWaitersPass();
  const MutexLock lock(mutex_);
  const uint64_t end =
      std::min<uint64_t>(*cursor + limits::kVisitsPerHoldMax, parts_.records.slot_count());
  for (; *cursor < end; ++*cursor) {
    const Block* block = parts_.records.LinkedAt(static_cast<uint32_t>(*cursor));
    if (block == nullptr || block->used_at_s < since_unix_s || parts_.chains.IsExpired(*block) ||
        !parts_.records.IsUsed(*block)) {
      continue;
    }
    const Block* parent = parts_.records.ParentOf(*block);
    UsedBlock& used = page->emplace_back();
    used.name = block->name;
    if (parent != nullptr) used.parent = parent->name.key;
    used.first_position = block->first_position;
    used.last_use = block->last_use;
    const absl::Span<const ImageRef> images = parts_.records.RefsOf(*block, &scratch);
    for (size_t i = 0; i < images.size(); ++i) {
      used.images.push_back({.group = images[i].group, .slice = images[i].slice});
      used.image_bytes += parts_.records.BriefOf(*block, i).image_bytes;
    }
  }
  return *cursor < parts_.records.slot_count();
}

// --- Figures -------------------------------------------------------------------------------------

IndexFigures BlockIndex::figures() const {
  const MutexLock lock(mutex_);
  return parts_.tiers.figures();
}

IndexFigures BlockIndex::figures(uint64_t space_id) const {
  const MutexLock lock(mutex_);
  return parts_.tiers.figures(space_id);
}

CopyFigures BlockIndex::figures(TierId tier) const {
  const MutexLock lock(mutex_);
  return parts_.tiers.figures(tier);
}

uint64_t BlockIndex::pinned_bytes() const {
  const MutexLock lock(mutex_);
  return parts_.tiers.figures(TierId::kHost).pinned_bytes;
}

uint64_t BlockIndex::leased_bytes() const {
  const MutexLock lock(mutex_);
  return parts_.tiers.figures(TierId::kHost).leased_bytes;
}

uint64_t BlockIndex::lease_count() const {
  const MutexLock lock(mutex_);
  return leases_.count();
}

uint64_t BlockIndex::lease_count(std::string_view tenant) const {
  const MutexLock lock(mutex_);
  return leases_.count(tenant);
}

uint64_t BlockIndex::lease_count_without(absl::Span<const uint64_t> sessions) const {
  const MutexLock lock(mutex_);
  return leases_.count_without(sessions);
}

uint64_t BlockIndex::waiter_count() const {
  const MutexLock lock(mutex_);
  return waiters_.count();
}

uint64_t BlockIndex::pending_count() const {
  const MutexLock lock(mutex_);
  return parts_.write_back.pending_count();
}

void BlockIndex::Report(MetricSink& sink) const {
  {
    const MutexLock lock(mutex_);
    ReportParts(sink);
    leases_.Report(sink);
    waiters_.Report(sink);
    parts_.hints.Report(sink);
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

void BlockIndex::ReportParts(MetricSink& sink) const {
  const auto gauge = [&sink](std::string_view name, std::string_view help, uint64_t value) {
    sink.AddGauge(name, help, {}, static_cast<double>(value));
  };
  parts_.tiers.Report(sink);
  gauge("cairn_images_pending", "Images stored raw that upkeep will encode.",
        parts_.write_back.pending_count());
  gauge("cairn_images_uncopied", "Images still to be written to the SSD tier.",
        parts_.write_back.uncopied_count());
  gauge("cairn_index_bytes",
        "Memory of the records of blocks, images, copies, removals and hints, including free ones.",
        parts_.records.bytes() + parts_.chains.bytes() + parts_.removals.bytes() +
            parts_.hints.bytes());
  gauge("cairn_index_awake_blocks",
        "Blocks with all their records: in memory or in use. Others are at rest.",
        parts_.records.awake_count());
  sink.AddCounter("cairn_expired_blocks_total", "Blocks that expired.", {}, expired_total_);
}

uint64_t BlockIndex::uncopied_count() const {
  const MutexLock lock(mutex_);
  return parts_.write_back.uncopied_count();
}

}  // namespace cairn
