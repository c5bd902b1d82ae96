// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is where: the only map from (space, key) to images, with chains, pins, leases, recency and
// those who wait. The only shared mutable state of the paths.
//
// A block exists while it has at least one image. First publish wins: an image whose slice the
// block's images of that group cover already is a duplicate; of two equal puts in flight both run
// and the second to publish is the duplicate. Overlapping slices are accepted.
//
// Leaf-first: a block with resident children is not evicted by age; among the others the least
// recently used goes first. A block without parent and children is in plain LRU order.
//
// Thread-safety: Thread-safe. One lock, held for memory work: a call that looks at many keys or
//                images looks at kVisitsPerHoldMax of them, lets those who wait pass, and goes on.
//                Done-callbacks run with no lock held.
// Locks:         sessions < index < arena.

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
#include "service/index/block_table.h"
#include "service/index/leases.h"
#include "service/index/match.h"
#include "service/index/new_image.h"
#include "service/index/pin.h"
#include "service/index/waiters.h"
#include "service/index/wanted.h"
#include "service/tier/host_tier.h"

namespace cairn {

struct ListedImage {
  ImageFacts facts;
  uint32_t pin_count = 0;
  std::optional<codecs::Digest> side_object;
};
struct ListedBlock {
  proto::BlockKey key{};
  proto::BlockKey parent{};
  uint64_t first_position = 0;
  bool is_complete = false;  // by the `whole` given to List()
  uint32_t child_count = 0;
  absl::Duration idle;
  std::vector<ListedImage> images;
};

class BlockIndex final : public Evictor {
 public:
  struct Options {
    uint64_t blocks_max = 0;       // limits::BlocksMax(capacity)
    uint64_t lease_bytes_max = 0;  // pinned by leases at once: half of the tier
  };
  // Becomes the tier's evictor.
  BlockIndex(const Options& options, HostTier& host, const Clock& clock);
  ~BlockIndex() override;  // REQUIRES: no Pin is left

  // Set once, before use. `is_open` tells whether a session may still take leases; `wake` is called
  // when a waiter's deadline may be the next thing to happen. Both are called with no lock held.
  void SetSessionCheck(std::function<bool(uint64_t session_id)> is_open);
  void SetWake(std::function<void()> wake);

  // --- Match, leases, waiting
  // ---------------------------------------------------------------------

  // The longest prefix of query.keys that is complete by each group's rule; blocks touched. No
  // block: token_count 0, no lease. What a lease is to hold is pinned when it is found, and what is
  // deleted before it is leased ends the prefix; without a lease each block was there when it was
  // looked at. Where a lease of all of it would pin more than lease_bytes_max, a shorter prefix,
  // flagged. ResourceExhausted: leases, of the session or in all.
  absl::StatusOr<MatchAnswer> Match(const MatchQuery& query);

  using MatchDone = absl::AnyInvocable<void(absl::StatusOr<MatchAnswer>)>;
  // As Match(), but waits for all of the keys (cut to token_limit) to be there. `done` runs exactly
  // once: in this call if nothing is to be waited for, else from the thread whose publish completed
  // the set, or from upkeep at `deadline` or at the session's end, with what there is then.
  // ResourceExhausted through `done`: too many waiters.
  void MatchWhenReady(MatchQuery query, absl::Time deadline, MatchDone done);
  // Answers waiters whose deadline has passed. Returns the next deadline, or InfiniteFuture.
  absl::Time AnswerLateWaiters();

  // Gives a tenant's leases back; unknown ones, and other tenants', are ignored.
  void Release(std::string_view tenant, absl::Span<const proto::LeaseToken> leases);
  // The owner's stream lives: its leases run kLeaseMs from now, kLeaseMsMax from their start at
  // most.
  void RenewLeases(uint64_t session_id);
  // The session is over: its leases are released and its waiters answered.
  void EndSession(uint64_t session_id);
  // Drops leases that have run out. Returns the next expiry, or InfiniteFuture.
  absl::Time ExpireLeases();

  // --- Lookup
  // ---------------------------------------------------------------------------------------

  // Complete for all of `wanted`, key by key. Touches nothing.
  std::vector<bool> Contains(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                             absl::Span<const WantedGroup> wanted) const;

  using Pins = absl::InlinedVector<Pin, 4>;
  // Pins of images that together cover the slice, the block touched; one pin if one image does.
  // Empty: a miss. Allocates only for more than four images.
  Pins Lookup(const BlockName& name, uint16_t group, const codecs::Slice& slice);

  // A pin of one of the block's images, so that it is not evicted; empty where it is not there.
  Pin PinBlock(const BlockName& name);

  // --- Publish
  // --------------------------------------------------------------------------------------

  // Whether a put is worth its transfer: nullopt if it is, else the image bytes that cover the
  // slice (duplicate). InvalidArgument: first position or parent disagree with what is resident.
  // ResourceExhausted: the block has its maximum of images.
  absl::StatusOr<std::optional<uint64_t>> Check(const BlockClaim& claim) const;

  // Makes an image visible, whole, to everyone. True: published, and Announce() is due. False:
  // duplicate, the extent is freed. Errors as Check(). May be called under the sessions' lock.
  absl::StatusOr<bool> Publish(NewImage image);
  // Tries those who wait for the block again. With no lock held: their callbacks run here.
  void Announce(const BlockName& name);

  // Swaps the bytes of a pinned image for the same slice in another recipe, with what that is
  // coded with; readers of the old bytes keep them. False, `extent` freed, if the image is no
  // longer the published one.
  bool Replace(const Pin& pin, const codecs::Recipe& recipe, Extent extent,
               SideObjectRef side_object);

  // Unlinks one image that turned out to be damaged; its bytes are freed at the last unpin. False
  // if it was unlinked already: who gets true counts and logs it.
  bool Drop(const Pin& pin);

  // None has been unlinked since it was pinned.
  bool ArePublished(std::span<const Pin> pins) const;

  // --- Delete, evict
  // --------------------------------------------------------------------------------

  // Unlinks now, frees at the last unpin. Returns how many were there.
  uint32_t Delete(uint64_t space_id, absl::Span<const proto::BlockKey> keys);
  // Unlinks every block that the space had when the call began.
  uint64_t Invalidate(uint64_t space_id);
  uint64_t EvictOldest(EvictionReason reason) override;
  bool EvictWindow(uint64_t bytes, uint64_t* bytes_passed) override;

  // --- Upkeep and the operator
  // ----------------------------------------------------------------------

  uint64_t pending_count() const;
  // Pins of up to `count` images kept raw whose encoding is pending; each is handed out once.
  Pins TakePending(size_t count);
  // Whether the encoding of a pinned image is pending; if so, it is handed out by this.
  bool TakePending(const Pin& pin);
  // The block before that of a pinned image. Empty: there is none, or the image is unlinked.
  std::optional<BlockName> BlockBefore(const Pin& pin) const;
  // It could not be encoded yet: it is pending again.
  void PutBackPending(const Pin& pin);
  // Walks all images without holding the lock for long: pins of the images in the next slots from
  // *cursor on (start with 0), of one space or of all (0). False: the walk is over.
  bool Walk(uint64_t space_id, uint64_t* cursor, Pins* pins);
  // Blocks of a space by key, ascending, after `after`; `limit` at most kListBlocksMax. *has_more
  // is set.
  std::vector<ListedBlock> List(uint64_t space_id, const std::optional<proto::BlockKey>& after,
                                size_t limit, absl::Span<const WantedGroup> whole,
                                bool* has_more) const;
  IndexFigures figures() const;
  IndexFigures figures(uint64_t space_id) const;
  uint64_t pinned_bytes() const;  // by anyone, unlinked ones included
  uint64_t leased_bytes() const;
  uint64_t lease_count() const;
  uint64_t waiter_count() const;

  void Report(MetricSink& sink) const;

 private:
  friend class Pin;

  void Unpin(Image* image);

  // Runs `step`, which takes Visits, in one hold of the lock after another until it returns true,
  // and `prepare` before each, without the lock.
  template <typename Step>
  void InHolds(
      Step step, absl::FunctionRef<void()> prepare = [] {}) ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<MatchAnswer> RunMatch(const MatchQuery& query, const proto::LeaseToken& token);
  uint64_t LeaseBytesFree() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Plans and leases, shorter where something went meanwhile.
  void LeaseFound(MatchScan& scan);
  // Gives lease pins back.
  void Unlease(const Leases::Dropped& dropped);
  // Gives a lease back that was taken for a session which has ended meanwhile.
  void CheckLease(const MatchQuery& query, absl::StatusOr<MatchAnswer>& result);

  // Files the waiter under a block that it misses, while it is missing; it is null then. Else
  // nothing is missing, or its time is over. ResourceExhausted: too many wait.
  absl::Status FileIfMissing(std::unique_ptr<Waiter>& waiter);
  // Answers the waiter if it is late, its session over, or its blocks there; files it again if not.
  void TryWaiter(std::unique_ptr<Waiter> waiter, bool is_last_try);
  void AnswerWaiter(std::unique_ptr<Waiter> waiter);

  const Options options_;
  HostTier& host_;
  const Clock& clock_;
  std::function<bool(uint64_t)> is_session_open_;
  std::function<void()> wake_;

  mutable Mutex mutex_;
  BlockTable table_ ABSL_GUARDED_BY(mutex_);
  Leases leases_ ABSL_GUARDED_BY(mutex_);
  Waiters waiters_ ABSL_GUARDED_BY(mutex_);
  uint32_t pending_slot_ ABSL_GUARDED_BY(mutex_) = 0;  // where TakePending() goes on
  uint64_t visits_ ABSL_GUARDED_BY(mutex_) = 0;        // by InHolds()
  size_t visits_max_ ABSL_GUARDED_BY(mutex_) = 0;      // of one hold
  Histogram match_seconds_, hold_seconds_;
  Counter asked_blocks_, matched_blocks_, shortened_matches_, window_searches_;
};

template <typename Step>
void BlockIndex::InHolds(Step step, absl::FunctionRef<void()> prepare) {
  for (bool is_over = false; !is_over;) {
    prepare();
    mutex_.LetWaitersPass();
    const MutexLock lock(mutex_);
    const absl::Time began = MonotonicNow();
    Visits visits;
    is_over = step(visits);
    hold_seconds_.Observe(MonotonicNow() - began);
    visits_ += visits.count();
    visits_max_ = std::max(visits_max_, visits.count());
  }
}

}  // namespace cairn
