// SPDX-License-Identifier: Apache-2.0
#pragma once
// The index: the only map from (space, key) to images, with chains, pins, leases, recency and
// waiters. It is the only mutable state that puts and gets share.
//
// Callers get one of its interfaces:
//
// - Prefixes: Match, leases and waiters (block_index_match.cc).
// - Images: for puts that publish and gets that read.
// - Copies: for upkeep, which recodes, copies and verifies images.
// - IndexReport: statistics.
// - Evictor: for tiers that need room.
//
// A block exists while it has at least one image. The first publication wins: an image is a
// duplicate if the block's images of that group cover its slice already. Of two equal concurrent
// puts both run, and the second to publish is the duplicate. Overlapping slices are accepted.
//
// Eviction is leaf-first: a block with resident children is not evicted by age; of the others the
// least recently used is evicted first. Blocks without parent and children are in plain LRU order.
// Blocks of broken chains are evicted before all others, and no block is evicted for a block that
// follows it (evictor.h).
//
// Thread-safety: Thread-safe. One lock, held only for work in memory: a call that examines many
// keys or images releases it after every kVisitsPerHoldMax, so that waiting threads proceed.
// Done-callbacks run without locks held.
// Locks:         index < arena, side objects, events.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/index/asked_keys.h"
#include "service/index/block_table.h"
#include "service/index/copies.h"
#include "service/index/event_log.h"
#include "service/index/images.h"
#include "service/index/index_report.h"
#include "service/index/leases.h"
#include "service/index/match.h"
#include "service/index/new_image.h"
#include "service/index/pin.h"
#include "service/index/prefixes.h"
#include "service/index/waiters.h"
#include "service/index/wanted.h"
#include "service/tier/tiers.h"

namespace cairn {

class BlockIndex final : public Prefixes,
                         public Images,
                         public Copies,
                         public IndexReport,
                         public Evictor {
 public:
  struct Options {
    uint64_t blocks_max = 0;                // limits::BlocksMax(capacity)
    uint64_t images_max = 0;                // limits::ImagesMax(blocks_max)
    uint64_t lease_bytes_max = 0;           // for all leases at once: half of the tier
    uint64_t awake_bytes_max = UINT64_MAX;  // limits::AwakeBytesMax(host_bytes, index_bytes)
    uint64_t bytes_max = 0;                 // size limit of the whole index, for operators
  };
  // Becomes the evictor of the tiers.
  BlockIndex(const Options& options, Tiers& tiers, const Clock& clock);
  ~BlockIndex() override;  // REQUIRES: no CopyPin exists

  // Set once, before use. `is_open` tells whether a session may still take leases. `wake` is called
  // when a waiter's deadline may be the next event, or when the persistent tier lacks an image
  // again. Both are called without locks held.
  void SetSessionCheck(std::function<bool(uint64_t session_id)> is_open);
  void SetWake(std::function<void()> wake);

  // Events of blocks that enter or leave tiers, for watchers.
  EventLog& events() { return events_; }

  // Prefixes.
  absl::StatusOr<MatchAnswer> Match(const MatchQuery& query) override;
  void MatchWhenReady(MatchQuery query, absl::Time deadline, MatchDone done) override;
  absl::Time AnswerLateWaiters() override;
  void Release(std::string_view tenant, absl::Span<const proto::LeaseToken> leases) override;
  void RenewLeases(uint64_t session_id) override;
  void EndSession(uint64_t session_id) override;
  absl::Time ExpireLeases() override;

  // Images.
  std::vector<bool> Contains(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                             absl::Span<const WantedGroup> wanted) const override;
  std::vector<Where> Locate(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                            absl::Span<const WantedGroup> wanted) const override;
  CopyPins Lookup(const BlockName& name, uint16_t group, const codecs::Slice& slice) override;
  std::vector<BlockName> LeasedAfter(const BlockName& name, size_t count) const override;
  ImagePins PinImages(const BlockName& name) override;
  ImagePin PinImage(const CopyPin& pin) override;
  CopyPin PinCopy(const ImagePin& pin, TierId tier) override;
  absl::StatusOr<std::optional<uint64_t>> Check(const BlockClaim& claim) const override;
  absl::StatusOr<PutReservation> ReservePut(const BlockClaim& claim) override;
  absl::StatusOr<bool> Publish(NewImage image) override;
  void Announce(const BlockName& name) override;
  bool Drop(const CopyPin& pin) override;
  uint32_t Delete(uint64_t space_id, absl::Span<const proto::BlockKey> keys) override;
  uint64_t Invalidate(uint64_t space_id) override;
  bool CollectExpired(uint64_t* cursor) override;

  // Copies.
  bool Replace(const CopyPin& pin, NewCopy copy) override;
  CopyWriter BeginCopy(const CopyPin& source, TierId tier) override;
  bool FinishCopy(CopyWriter writer, NewCopy copy) override;
  std::optional<Uncopied> TakeUncopied() override;
  uint64_t uncopied_count() const override;
  void LetGo(CopyWriter writer) override;
  WriteDownProgress Expedite(const BlockName& name, uint16_t group,
                             const codecs::Slice& slice) override;
  uint64_t lost_count(TierId tier) const override;
  uint64_t TakeOut(TierId tier) override;
  void PutBack(TierId tier) override;
  bool ArePublished(std::span<const CopyPin> pins) const override;
  uint64_t pending_count() const override;
  CopyPins TakePending(size_t count) override;
  bool TakePending(const CopyPin& pin) override;
  std::optional<BlockName> BlockBefore(const CopyPin& pin) const override;
  void PutBackPending(const CopyPin& pin) override;
  bool Walk(uint64_t space_id, uint64_t* cursor, CopyPins* pins) override;
  bool WalkTier(TierId tier, uint64_t space_id, uint64_t* cursor, CopyPin* pin) override;

  // Evictor.
  using Evictor::EvictOldest;
  uint64_t EvictOldest(TierId tier, EvictionReason reason, const BlockName* newcomer) override;
  bool EvictWindow(uint64_t bytes, const BlockName* newcomer, uint64_t* bytes_passed) override;
  bool EvictCopy(TierId tier, const ImageFacts& image, uint64_t offset,
                 EvictionReason reason) override;
  Moved MoveCopy(TierId tier, const ImageFacts& image, uint64_t offset, TierExtent& to) override;
  void LoseCopy(TierId tier, const ImageFacts& image, uint64_t offset) override;
  void LoseCopies(TierId tier, uint64_t begin, uint64_t end) override;

  // IndexReport.
  std::vector<ListedBlock> List(uint64_t space_id, const std::optional<proto::BlockKey>& after,
                                size_t limit, absl::Span<const WantedGroup> whole,
                                bool* has_more) const override;
  IndexFigures figures() const override;
  IndexFigures figures(uint64_t space_id) const override;
  CopyFigures figures(TierId tier) const override;
  uint64_t pinned_bytes() const override;
  uint64_t leased_bytes() const override;
  uint64_t lease_count() const override;
  uint64_t lease_count(std::string_view tenant) const;
  uint64_t waiter_count() const override;
  void Report(MetricSink& sink) const override;

 private:
  friend class ImagePin;
  friend class CopyPin;
  friend class CopyWriter;
  friend class PutReservation;

  // Holds the lock; at its end, unused blocks go to rest.
  class ABSL_SCOPED_LOCKABLE Hold {
   public:
    explicit Hold(BlockIndex& index) ABSL_EXCLUSIVE_LOCK_FUNCTION(index.mutex_) : index_(index) {
      index_.mutex_.Lock();
    }
    ~Hold() ABSL_UNLOCK_FUNCTION() {
      index_.table_.Rest();
      index_.mutex_.Unlock();
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    BlockIndex& index_;
  };

  void Unpin(Image* image);
  void Unpin(Copy* copy);
  void GiveUp(Image* image, TierId tier);
  // Like TakeOut() and LoseCopies().
  uint64_t LoseIn(TierId tier, uint64_t begin, uint64_t end);
  void EndReservation(Block* block);
  void DropExpired(const BlockName& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CopyPin PinCopyLocked(Copy& copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Calls `step` with Visits, in one hold of the lock after another, until it returns true. Calls
  // `prepare` before each hold, without the lock.
  template <typename Step>
  void InHolds(
      Step step, absl::FunctionRef<void()> prepare = [] {}) ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<MatchAnswer> RunMatch(const MatchQuery& query, const proto::LeaseToken& token);
  // Runs `change`, counts its effect on the leased bytes for the tenant, and returns its result.
  bool CountLeased(std::string_view tenant, absl::FunctionRef<bool()> change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Plans and leases a prefix; a shorter one if blocks disappeared meanwhile.
  void LeaseFound(MatchScan& scan, std::string_view tenant);
  // Releases lease pins.
  void Unlease(const Leases::Dropped& dropped);
  // Releases a lease whose session has ended meanwhile.
  void CheckLease(const MatchQuery& query, absl::StatusOr<MatchAnswer>& result);

  // Files the waiter under a block that it lacks; the waiter is then null. Otherwise nothing is
  // missing, or its deadline has passed. Errors: ResourceExhausted if there are too many waiters.
  absl::Status FileIfMissing(std::unique_ptr<Waiter>& waiter);
  // Answers the waiter if it is late, its session has ended, or its blocks are present; else files
  // it again.
  void TryWaiter(std::unique_ptr<Waiter> waiter, bool is_last_try);
  void AnswerWaiter(std::unique_ptr<Waiter> waiter);

  Tiers& tiers_;
  const Clock& clock_;
  const uint64_t bytes_max_;
  std::function<bool(uint64_t)> is_session_open_;
  std::function<void()> wake_;

  EventLog events_;
  mutable Mutex mutex_;
  BlockTable table_ ABSL_GUARDED_BY(mutex_);
  Leases leases_ ABSL_GUARDED_BY(mutex_);
  Waiters waiters_ ABSL_GUARDED_BY(mutex_);
  bool is_wake_due_ ABSL_GUARDED_BY(mutex_) = false;     // for the next Announce()
  uint32_t uncopied_round_ ABSL_GUARDED_BY(mutex_) = 0;  // of TakeUncopied()
  uint64_t visits_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t visits_max_ ABSL_GUARDED_BY(mutex_) = 0;  // of one hold
  Histogram match_seconds_, hold_seconds_;
  Counter asked_blocks_, matched_blocks_, shortened_matches_, window_searches_;
  AskedKeys asked_keys_;
};

template <typename Step>
void BlockIndex::InHolds(Step step, absl::FunctionRef<void()> prepare) {
  for (bool is_over = false; !is_over;) {
    prepare();
    mutex_.LetWaitersPass();
    const Hold hold(*this);
    const absl::Time began = MonotonicNow();
    Visits visits;
    is_over = step(visits);
    table_.Rest();
    hold_seconds_.Observe(MonotonicNow() - began);
    visits_ += visits.count();
    visits_max_ = std::max(visits_max_, visits.count());
  }
}

}  // namespace cairn
