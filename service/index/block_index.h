// SPDX-License-Identifier: Apache-2.0
#pragma once
// The index: the only map from (space, key) to images. It also tracks chains, pins, leases, the
// order of use, and waiting calls. It is the only mutable state that puts and gets share. It owns
// the lock. The blocks are in its parts (index_parts.h); the leases and waiters are in members of
// this class.
//
// A block exists while it has at least one image. The first publication wins: an image is a
// duplicate if the images of the same block and group cover its slice already. If two equal puts
// run at the same time, the second one to publish is the duplicate. Overlapping slices are
// accepted.
//
// Eviction is leaf-first: a block with children in the tier is not evicted by age. Of the other
// blocks, those of the lowest rank (hints.h) are evicted first, and among these the least recently
// used. Blocks without parent and children are in plain LRU order. Blocks of broken chains are
// evicted before all others. No block is evicted to make room for a block that follows it in its
// chain (evictor.h).
//
// Thread-safety: Thread-safe. The lock is held only for work in memory. A call that examines many
//               keys or images releases it after every kVisitsPerHoldMax, so that waiting threads
//               proceed. Callbacks run without locks held.
// Locks:        index < arena, side objects, events.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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
#include "service/index/announce_ring.h"
#include "service/index/asked_keys.h"
#include "service/index/block.h"
#include "service/index/event_log.h"
#include "service/index/evictions.h"
#include "service/index/index_parts.h"
#include "service/index/leases.h"
#include "service/index/match.h"
#include "service/index/pin.h"
#include "service/index/removals.h"
#include "service/index/side_objects.h"
#include "service/index/waiters.h"
#include "service/tier/block_name.h"
#include "service/tier/image_facts.h"
#include "service/tier/tiers.h"

namespace cairn {

// An image that is being written to the persistent tier. If it is destroyed before FinishCopy(),
// the image returns to the end of the write-back queue.
struct WriteBackCandidate {
  CopyPin source;  // a copy in the host tier
  CopyWriter writer;
  proto::BlockKey parent{};   // all zero: none
  CopyPin parent_copy;        // a copy of that block in the persistent tier; empty: it has none yet
  EngineNamesRef names = {};  // names of the block; null: none
  bool is_used = false;       // the block was requested since it was stored
};

struct ListedImage {
  ImageFacts facts;
  CopyFacts copy;
  uint32_t pin_count = 0;
  std::optional<codecs::Digest> side_object;
};
struct ListedBlock {
  proto::BlockKey key{};
  proto::BlockKey parent{};
  uint64_t first_position = 0;
  bool is_complete = false;  // for List()'s argument `whole`: the block is complete
  uint32_t child_count = 0;
  absl::Duration idle;
  std::vector<ListedImage> images;
};

// Where a block is, or why it is not stored.
struct BlockFate {
  bool is_stored = false;
  std::optional<uint16_t> missing_group;  // the first wanted group that is not completely stored
  absl::InlinedVector<TierId, kTierCount> tiers;
  std::optional<Removal> removal;  // why a block is not stored; nullopt: not recorded
};
struct Explanation {
  std::vector<BlockFate> blocks;  // one per key
  uint32_t since_unix_s = 0;      // removals since this time are recorded
  bool has_all_removals = false;  // no removal since the start is missing
};

// A block that was used again after it was stored.
struct UsedBlock {
  BlockName name;
  proto::BlockKey parent{};  // all zero: none, or unknown
  uint64_t first_position = 0;
  uint64_t last_use = 0;     // larger: later
  uint64_t image_bytes = 0;  // the sizes of the best copies
  std::vector<WantedGroup> images;
};

class BlockIndex final : public Evictor {
 public:
  struct Options {
    uint64_t blocks_max = 0;       // limits::BlocksMax(capacity)
    uint64_t images_max = 0;       // limits::ImagesMax(blocks_max)
    uint64_t lease_bytes_max = 0;  // the limit for all leases together: half of the host tier
    uint64_t awake_bytes_max = UINT64_MAX;   // limits::AwakeBytesMax(host_bytes, index_bytes)
    uint32_t removals_max = 4096;            // limits::RemovalsMax(awake bytes)
    uint64_t hints_max = limits::kHintsMax;  // limits::HintsMax(awake bytes)
    uint64_t bytes_max = 0;                  // size limit of the whole index, for operators
    bool keeps_tokens = false;               // whether blocks keep token ids for events
    size_t announcements_max = 0;  // kept for the members of a cluster; 0: there is no cluster
  };
  // Makes the index, which becomes the evictor of the tiers.
  BlockIndex(const Options& options, Tiers& tiers, const Clock& clock);
  ~BlockIndex() override;  // REQUIRES: no CopyPin exists

  // Sets a function. Call each setter once, before use. `is_open` returns true if a session may
  // still take leases. `wake` is called when upkeep may have to run: a waiter has a new deadline,
  // or the persistent tier lacks another image. Both are called without locks held.
  void SetSessionCheck(std::function<bool(uint64_t session_id)> is_open);
  void SetWake(std::function<void()> wake);

  // Returns true if puts may carry the token ids of their block. Otherwise puts may carry the
  // engine's names only without tokens.
  bool keeps_tokens() const { return keeps_tokens_; }
  // Events of blocks that enter or leave tiers, for watchers.
  EventLog& events() { return events_; }

  // --- Match, leases and waiters

  // Finds the longest prefix of query.keys that is complete by each group's rule, and marks its
  // blocks as used. If no block matches, token_count is 0 and there is no lease. With a lease,
  // images are pinned as they are found. If a block is deleted before it is leased, the prefix ends
  // before it. Without a lease, the result only says that each block was present when it was
  // examined. If a lease of the whole prefix would pin more than lease_bytes_max, the prefix is
  // shorter, and the answer says so. Errors: ResourceExhausted (too many leases of the session, or
  // in total).
  absl::StatusOr<MatchAnswer> Match(const MatchQuery& query);
  // Finds the same prefix, and leaves no trace: no lease, no use, no figures. REQUIRES: the query
  // wants no lease.
  MatchAnswer Peek(const MatchQuery& query);
  using MatchDone = absl::AnyInvocable<void(absl::StatusOr<MatchAnswer>)>;
  // Like Match(), but waits until all keys (up to token_limit) are present. `done` runs exactly
  // once: in this call if nothing is missing, on the thread whose publication completed the keys,
  // or on upkeep's thread. Upkeep calls it at `deadline` or at the end of the session, with the
  // prefix that exists then. Errors, passed to `done`: ResourceExhausted (too many waiters).
  void MatchWhenReady(MatchQuery query, absl::Time deadline, MatchDone done);
  // Answers waiters past their deadline. Returns the next deadline, or InfiniteFuture.
  absl::Time AnswerLateWaiters();
  // Releases a tenant's leases. Ignores leases that are unknown or belong to other tenants.
  void Release(std::string_view tenant, absl::Span<const proto::LeaseToken> leases);
  // Renews the leases of a live session. A lease then ends kLeaseMs from now, but not later than
  // kLeaseMsMax after its start.
  void RenewLeases(uint64_t session_id);
  // Releases the leases of a session that ended, and answers its waiters.
  void EndSession(uint64_t session_id);
  // Drops expired leases. Returns the next expiry, or InfiniteFuture.
  absl::Time ExpireLeases();

  // --- Hints

  // Sets the hint of each block. A block is either retained with `priority` (1 to
  // kRetainPriorityMax) for the given time, or demoted after that time (priority 0). A demotion
  // without delay needs no hint. Returns the number of blocks that are stored. Errors:
  // ResourceExhausted (the tenant's share of the hints is used up; nothing was changed).
  absl::StatusOr<uint32_t> SetHints(uint64_t space_id, std::string_view tenant,
                                    absl::Span<const proto::BlockKey> keys, uint8_t priority,
                                    uint32_t seconds);
  // Sets a hint that was set in a previous process. Does nothing if there is no room.
  void RestoreHint(const BlockName& name, std::string_view tenant, uint8_t priority,
                   uint32_t due_unix_s);
  // Ends the hints that are due. Returns the time at which the next hint is due, or InfiniteFuture.
  absl::Time EndHints();
  struct NamedHint {
    BlockName name;
    Hint hint;
  };
  // Returns all hints if they changed since *version. Sets *version to the current version.
  std::optional<std::vector<NamedHint>> ChangedHints(uint64_t* version) const;

  // --- Images, for puts that publish and gets that read

  // Returns, for each key, whether the block has complete images for all elements of `wanted`. Does
  // not change recency.
  std::vector<bool> Contains(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                             absl::Span<const WantedGroup> wanted) const;
  // Returns, for each key and each element of `wanted`, where the images are. Does not change
  // recency.
  enum class Where : uint8_t { kNowhere, kInMemory, kCold };  // kCold: not completely in memory
  std::vector<Where> Locate(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                            absl::Span<const WantedGroup> wanted) const;
  // Returns, for each key, where the block is or why it is not stored. Does not change recency.
  Explanation Explain(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                      absl::Span<const WantedGroup> wanted) const;
  // Records for Explain() that a put of the block was refused.
  void NoteRefused(const BlockName& name);
  // Pins images that together cover the slice, each in its best copy. Returns one pin if one image
  // covers the slice, and no pin on a miss. Marks the block as used. Allocates only for more than
  // four images.
  CopyPins Lookup(const BlockName& name, uint16_t group, const codecs::Slice& slice);
  // Returns up to `count` leased blocks that follow this one in its chain, the next one first.
  std::vector<BlockName> LeasedAfter(const BlockName& name, size_t count) const;
  // Returns pins of all images of the block. Empty if the block is not present.
  ImagePins PinImages(const BlockName& name);
  ImagePin PinImage(const CopyPin& pin);
  // Pins the image's copy in a tier. Returns an empty pin if there is none.
  CopyPin PinCopy(const ImagePin& pin, TierId tier);
  // Checks whether a put must transfer its payload. Returns nullopt if it must. If the slice is
  // stored already, returns the size of the images that cover it. Errors: InvalidArgument (first
  // position or parent differ from the stored ones), ResourceExhausted (the block has its maximum
  // of images).
  absl::StatusOr<std::optional<uint64_t>> Check(const BlockClaim& claim) const;
  // Begins a put of the block. Errors: those of Check().
  absl::StatusOr<PutReservation> ReservePut(const BlockClaim& claim);
  // Gives a stored block the engine's names, unless it has names already. Ignores a block that is
  // not stored.
  void SetNames(const BlockName& name, EngineNamesRef names);
  // Makes a complete image visible to all readers. Returns true if it was published; call
  // Announce() then. Returns false, and frees the extent, if the image is a duplicate. Errors:
  // those of Check().
  absl::StatusOr<bool> Publish(NewImage image);
  // Retries the waiters for the block, and wakes write-back. Runs the waiters' callbacks, so call
  // it without locks held.
  void Announce(const BlockName& name);
  // Unlinks a copy that was found damaged. If it was the image's last copy, also unlinks the image.
  // The bytes are freed at the last unpin. Returns false if the copy was unlinked already. The
  // caller that receives true must log and count the event.
  bool Drop(const CopyPin& pin);
  // Unlinks blocks now, and frees them at their last unpin. Returns how many were present.
  uint32_t Delete(uint64_t space_id, absl::Span<const proto::BlockKey> keys);
  // Unlinks every block that the space had when the call began.
  uint64_t Invalidate(uint64_t space_id);
  // Unlinks expired blocks, which readers already do not see. Examines the next slots from *cursor
  // on (start with 0), in one short hold of the lock. Returns false at the end of the walk.
  bool CollectExpired(uint64_t* cursor);

  // --- Copies, for upkeep, which recodes them, copies them between tiers and verifies them

  // Replaces the pinned copy by a copy of the same slice in the same tier, in another recipe.
  // Readers that have pinned the old bytes keep them. Returns false, and frees `copy`, if the
  // pinned copy no longer belongs to the image.
  bool Replace(const CopyPin& pin, NewCopy copy);
  // Begins another copy of the image, in another tier. The caller writes the bytes and calls
  // FinishCopy(). Returns an empty writer if the tier has a copy or is getting one, if the tier's
  // device has failed, or if the image is gone.
  CopyWriter BeginCopy(const CopyPin& source, TierId tier);
  // Completes the copy. Returns false, and frees `copy`, if the image is gone or the tier's device
  // has failed meanwhile. REQUIRES: `copy` is in that tier.
  bool FinishCopy(CopyWriter writer, NewCopy copy);
  // Returns the next image to write to the persistent tier. Images come in the order of
  // publication, but a block comes before its followers. Skips images with a pending encoding.
  // Returns nullopt if there is none now.
  std::optional<WriteBackCandidate> TakeWriteBack();
  uint64_t uncopied_count() const;
  // Takes the image out of the write-back queue. It returns when its block, or a block after it, is
  // used.
  void StopWritingBack(CopyWriter writer);
  // Moves the images of a slice to the front of the queue of TakeWriteBack(), behind those of the
  // blocks before it in its chain. If the persistent tier has the images already, moves those of
  // the nearest ancestor that it lacks. One call examines only as many ancestors as fit into one
  // hold of the lock; ancestors before these are already being written.
  WriteBackProgress Expedite(const BlockName& name, uint16_t group, const codecs::Slice& slice);
  // Must be called when the tier's device has failed. Drops the tier's copies, and refuses new ones
  // until PutBack(). Returns the number of blocks that had copies there.
  uint64_t TakeOut(TierId tier);
  void PutBack(TierId tier);
  // Returns true if all pinned copies are still linked.
  bool ArePublished(std::span<const CopyPin> pins) const;
  // The number of images with a pending encoding.
  uint64_t pending_count() const;
  // Pins up to `count` images with a pending encoding, the oldest first. No other call returns
  // these images again. REQUIRES: count <= kVisitsPerHoldMax.
  CopyPins TakePending(size_t count);
  // Returns true if the pinned image has a pending encoding. In this case no other call returns the
  // image.
  bool TakePending(const CopyPin& pin);
  // Returns the previous block of a pinned image's block. Returns nullopt if there is none, or if
  // the copy is unlinked.
  std::optional<BlockName> BlockBefore(const CopyPin& pin) const;
  // Makes an image pending again because it could not be encoded yet.
  void PutBackPending(const CopyPin& pin);
  // Walks all images without holding the lock for long. Returns pins of copies in the host tier, of
  // one space or, if space_id is 0, of all. Examines the next slots from *cursor on (start with 0).
  // Returns false at the end of the walk.
  bool Walk(uint64_t space_id, uint64_t* cursor, CopyPins* pins);
  // Walk() for any tier, which returns one copy at a time. *pin is the next copy, or empty if the
  // examined slots have none.
  bool WalkTier(TierId tier, uint64_t space_id, uint64_t* cursor, CopyPin* pin);

  // --- Evictor, for tiers that need room

  using Evictor::EvictOldest;
  uint64_t EvictOldest(TierId tier, EvictionReason reason, const BlockName* newcomer) override;
  bool EvictWindow(uint64_t bytes, const BlockName* newcomer, uint64_t* bytes_passed) override;
  bool EvictCopy(TierId tier, const ImageFacts& image, uint64_t offset,
                 EvictionReason reason) override;
  bool IsRetained(const ImageFacts& image) const override;
  Moved MoveCopy(TierId tier, const ImageFacts& image, uint64_t offset, TierExtent& to) override;
  void LoseCopy(TierId tier, const ImageFacts& image, uint64_t offset) override;
  void LoseCopies(TierId tier, uint64_t begin, uint64_t end) override;

  // --- Events

  // Adds the tenant's stored blocks to a batch of events, one event per block and tier. Examines
  // the next slots from *cursor on (start with 0) while `room` is not full, in one short hold of
  // the lock. Returns false at the end of the walk.
  bool Snapshot(std::string_view tenant, uint64_t* cursor, EventBatchRoom& room,
                std::vector<IndexEvent>* events) const;

  // --- Announcements to other members

  // The blocks that came or went, without those whose run is unknown. Null unless
  // Options::announcements_max is set.
  const AnnounceRing* announcements() const { return announcements_.get(); }
  // Adds stored blocks whose run is known, or can be learned, to `page`. Examines the next slots
  // from *cursor on (start with 0), in one short hold of the lock. Returns false at the end of the
  // walk. REQUIRES: announcements() is not null.
  bool WalkAnnounced(uint64_t* cursor, std::vector<Announcement>* page);

  // --- Offers to other members

  // Adds the stored blocks that were used since that time, and after they were stored. Examines the
  // next slots from *cursor on (start with 0), in one short hold of the lock. Returns false at the
  // end of the walk.
  bool WalkUsed(uint32_t since_unix_s, uint64_t* cursor, std::vector<UsedBlock>* page) const;

  // --- Statistics

  // Returns blocks of a space after the key `after`, in ascending order of keys. `limit` is at most
  // kListBlocksMax. Sets *has_more.
  std::vector<ListedBlock> List(uint64_t space_id, const std::optional<proto::BlockKey>& after,
                                size_t limit, absl::Span<const WantedGroup> whole,
                                bool* has_more) const;
  IndexFigures figures() const;
  IndexFigures figures(uint64_t space_id) const;
  CopyFigures figures(TierId tier) const;
  // The bytes of pinned copies in the host tier. Includes unlinked copies.
  uint64_t pinned_bytes() const;
  uint64_t leased_bytes() const;  // leased bytes of the host tier
  uint64_t lease_count() const;
  uint64_t lease_count(std::string_view tenant) const;
  // Without the leases of these sessions, each of which is named once.
  uint64_t lease_count_without(absl::Span<const uint64_t> sessions) const;
  uint64_t waiter_count() const;
  void Report(MetricSink& sink) const;

 private:
  friend class ImagePin;
  friend class CopyPin;
  friend class CopyWriter;
  friend class PutReservation;

  // Holds the lock. Before it releases the lock, puts blocks to rest that are no longer in use.
  class ABSL_SCOPED_LOCKABLE Hold {
   public:
    explicit Hold(BlockIndex& index) ABSL_EXCLUSIVE_LOCK_FUNCTION(index.mutex_) : index_(index) {
      index_.mutex_.Lock();
    }
    ~Hold() ABSL_UNLOCK_FUNCTION() {
      index_.parts_.records.Rest();
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
  // Drops the copies in [begin, end) of a tier, for TakeOut() and LoseCopies().
  uint64_t LoseIn(TierId tier, uint64_t begin, uint64_t end);
  void EndReservation(Block* block);
  BlockFate FateOf(const BlockName& name, absl::Span<const WantedGroup> wanted) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CopyPin PinCopyLocked(Copy& copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Unlinks the block if it has expired. Returns true if it did. `block` may be null.
  bool DropIfExpired(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns true if there is a persistent tier whose device works.
  bool HasLasting() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportParts(MetricSink& sink) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Calls `step` once per hold of the lock, until it returns true. Calls `prepare` before each
  // hold, without the lock.
  template <typename Step>
  void InHolds(
      Step step, absl::FunctionRef<void()> prepare = [] {}) ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<MatchAnswer> RunMatch(const MatchQuery& query, const proto::LeaseToken& token);
  // Runs `change`, and adds the change of leased bytes to the tenant's. Returns the result of
  // `change`.
  bool CountLeased(std::string_view tenant, absl::FunctionRef<bool()> change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Plans and leases a prefix. If blocks have disappeared meanwhile, the prefix is shorter.
  void LeaseFound(MatchScan& scan, std::string_view tenant);
  // Releases lease pins.
  void Unlease(const Leases::Dropped& dropped);
  // Releases a lease whose session has ended meanwhile.
  void CheckLease(const MatchQuery& query, absl::StatusOr<MatchAnswer>& result);

  // If a block is missing and the deadline has not passed, stores the waiter under that block and
  // sets `waiter` to null. Errors: ResourceExhausted if there are too many waiters.
  absl::Status FileIfMissing(std::unique_ptr<Waiter>& waiter);
  // Answers the waiter if its deadline has passed, its session has ended, or its blocks are
  // present. Otherwise stores it again.
  void TryWaiter(std::unique_ptr<Waiter> waiter, bool is_last_try);
  void AnswerWaiter(std::unique_ptr<Waiter> waiter);

  Tiers& tiers_;
  const Clock& clock_;
  const uint64_t bytes_max_;
  const bool keeps_tokens_;
  std::function<bool(uint64_t)> is_session_open_;
  std::function<void()> wake_;

  EventLog events_;
  const std::unique_ptr<AnnounceRing> announcements_;  // null: no cluster
  mutable Mutex mutex_;
  IndexParts parts_ ABSL_GUARDED_BY(mutex_);
  Evictions evictions_ ABSL_GUARDED_BY(mutex_);
  Leases leases_ ABSL_GUARDED_BY(mutex_);
  Waiters waiters_ ABSL_GUARDED_BY(mutex_);
  bool is_wake_due_ ABSL_GUARDED_BY(mutex_) = false;  // the next Announce() must call wake_
  uint64_t expired_total_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t visits_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t visits_max_ ABSL_GUARDED_BY(mutex_) = 0;  // the largest number of visits in one hold
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
    parts_.records.Rest();
    hold_seconds_.Observe(MonotonicNow() - began);
    visits_ += visits.count();
    visits_max_ = std::max(visits_max_, visits.count());
  }
}

}  // namespace cairn
