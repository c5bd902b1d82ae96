// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads of copies out of tiers whose bytes cannot be addressed. There is one read at a time of one
// copy, or of one slice of it: gets that want the same meanwhile share it.
//
// An image that is read whole becomes a copy in the host tier. Where the host tier has no room for
// it, or the reads under way take limits::kPromotedShareOfHost of it, the bytes lie in staging and
// are no copy. Where staging has no room either, the read is refused.
//
// A slice that is worth it (slice_reads.h) is read alone: header and directory first, then the
// parts of the image that have its tiles. The bytes lie in staging, as an image of that slice, and
// are no copy. They count as bytes of the host tier too: past its share, the read is refused.
//
// A read has the latest deadline of its gets: if the device has not begun it by then, it ends
// unread. Once begun it goes on whoever still waits for it. Either way it owns its memory and its
// place until its completion has run (ADR 0006).

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "codecs/image/encode.h"
#include "codecs/image/image.h"
#include "codecs/types/shape.h"
#include "service/get/slice_reads.h"
#include "service/get/waiting_gets.h"
#include "service/index/copies.h"
#include "service/index/images.h"
#include "service/index/pin.h"
#include "service/memory/arena.h"
#include "service/path_pool.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"

namespace cairn {

// One read of one copy, or of one slice of it. Thread-safety: Immutable, once it is over.
class Promotion {
 public:
  // How it went.
  //   OK         view() is the image, verified
  //   DataLoss   they are damaged or another's, or the tier cannot read them: the copy is dropped
  //   else       the tier did not do it, or not by the deadline of any get
  // REQUIRES of this and view(): it is over.
  const absl::Status& status() const { return status_; }
  // Of the slice alone, where it is not whole.
  const codecs::ImageView& view() const { return view_; }
  bool is_whole() const { return slice_ == pin_.facts().slice; }
  // Of the copy that was read.
  const ResidentPin& pin() const { return pin_; }

 private:
  friend class Promotions;
  ResidentPin pin_;
  SpaceRef space_;
  codecs::Slice slice_;         // what is read of the image
  Extent prefix_;               // of a slice alone: header and directory of the whole image
  codecs::ImagePrefix parsed_;  // that
  CopyWriter writer_;           // empty: memory_ is staging
  Extent memory_;               // empty once it is a copy, and until parsed_ says what is needed
  ResidentPin resident_;        // of that copy
  codecs::ImageView view_;
  uint64_t share_bytes_ = 0;  // of what reads may take of the host tier
  bool is_prefetch_ = false;  // no get had asked for it when it began
  absl::Status status_;
  // Guarded by the lock of Promotions, as what is not over:
  std::vector<WaitingGets::Id> gets_;
  // What is read now, and into which memory.
  std::vector<codecs::ImagePart> parts_;
  std::span<std::byte> target_;
  size_t begun_ = 0, ended_ = 0;  // of the parts, once each
  std::vector<size_t> unread_;  // of those begun: late for some gets, to be begun again for others
  bool is_beginning_ = false;   // a thread begins parts
  absl::Status read_;           // the first failure: no further part is begun
  absl::Time deadline_ = absl::InfiniteFuture();  // the latest of its gets
  std::vector<TransferId> transfers_;
};

// Thread-safety: Thread-safe.
// Locks:         none held while a tier, the index or a get is called.
class Promotions {
 public:
  struct Parts {  // borrowed
    Images& images;
    Copies& copies;
    Tiers& tiers;
    PathPool& pool;
    const Clock& clock;
    // Drops a copy whose bytes are not its own or cannot be read, and returns DataLoss. Runs on the
    // path pool.
    std::function<absl::Status(const ResidentPin&, std::string_view what)> drop_damaged;
    // A read that the get joined is over. Runs on the path pool, or on a thread of the tier where
    // the daemon stops: the read has failed then.
    std::function<void(WaitingGets::Id)> ended;
    // A read is over, and no get is left to be told: there may be room for a prefetch. Runs where
    // `ended` does.
    std::function<void()> has_room = [] {};
  };
  explicit Promotions(Parts parts);
  ~Promotions();  // REQUIRES: Stop() has returned, or nothing was read

  // Joins a read that brings the slice of the pinned copy, or starts one. ended(get) runs once
  // unless this fails, possibly before it returns. `deadline`: of the get. REQUIRES: the image has
  // the slice.
  // ResourceExhausted: there is no room for the bytes. Unavailable: the daemon is stopping.
  absl::StatusOr<std::shared_ptr<const Promotion>> Join(ResidentPin pin, const SpaceRef& space,
                                                        const codecs::Slice& slice,
                                                        WaitingGets::Id get, absl::Time deadline);

  enum class Prefetched : uint8_t {
    kBegun,   // or somebody reads it already
    kLater,   // has_room() will say when
    kNoRoom,  // the host tier has none, or the daemon is stopping
  };
  // Starts a read that no get waits for, into the host tier.
  Prefetched Prefetch(ResidentPin pin, const SpaceRef& space);

  // No new reads. Cancels those under way and waits until their completions have run. Idempotent.
  void Stop();

  size_t count() const;
  void Report(MetricSink& sink) const;

 private:
  // The copy's place, which is its own while it is pinned, and what is read of it.
  using Key = std::tuple<TierId, uint64_t, uint64_t>;

  static Key KeyOf(const ResidentPin& pin, const codecs::Slice& slice) {
    return {pin.copy().tier, pin.extent().offset(), std::bit_cast<uint64_t>(slice)};
  }
  // Null: nobody reads it.
  std::shared_ptr<Promotion> JoinLocked(const Key& key, WaitingGets::Id get, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of what reads may take of the host tier. False: it is taken.
  bool TakeShare(Promotion& promotion, uint64_t bytes);
  void GiveShareBack(Promotion& promotion) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Memory for what is read first, and says that it is.
  absl::Status Allocate(Promotion& promotion);
  // A copy to be in the host tier. False: there is no room for one, or one already.
  bool AllocateCopy(Promotion& promotion);
  // Staging, within the share.
  absl::StatusOr<Extent> AllocateForSlice(Promotion& promotion, uint64_t bytes);
  void SetParts(Promotion& promotion, std::vector<codecs::ImagePart> parts,
                std::span<std::byte> target);

  // --- promotion_reads.cc
  // Begins parts, as many as may be read at a time.
  void Begin(const std::shared_ptr<Promotion>& promotion);
  // The completion of a part that had `deadline`, on any thread.
  void Completed(std::shared_ptr<Promotion> promotion, size_t part, absl::Time deadline,
                 absl::Status status);
  // They are read, or will not be.
  void Finish(std::shared_ptr<Promotion> promotion, absl::Status status);
  // No further get joins it.
  void ForgetLocked(const std::shared_ptr<Promotion>& promotion)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave();  // of what Stop() waits for
  // Verifies header and directory, and makes room for the parts that they lead to.
  absl::Status FindParts(Promotion& promotion);
  // Verifies what was read, and makes an image of the slice of it.
  absl::Status CheckSlice(Promotion& promotion);
  // Verifies what was read, and publishes the copy.
  absl::Status CheckAndKeep(Promotion& promotion);

  const Parts parts_;
  mutable Mutex mutex_;
  CondVar ended_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  size_t under_way_ ABSL_GUARDED_BY(mutex_) = 0;            // until Finish() is about to return
  uint64_t share_bytes_ ABSL_GUARDED_BY(mutex_) = 0;        // of reads under way
  uint64_t prefetching_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of those, that no get asked for
  absl::flat_hash_map<Key, std::shared_ptr<Promotion>> promotions_ ABSL_GUARDED_BY(mutex_);
  SliceReads slice_reads_ ABSL_GUARDED_BY(mutex_);
  Counter copied_, staged_, sliced_, late_, failed_, refused_, shared_;
  Counter whole_bytes_, slice_bytes_;
};

}  // namespace cairn
