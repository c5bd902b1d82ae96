// SPDX-License-Identifier: Apache-2.0
#pragma once
// Promotions: reads of copies from tiers whose bytes are not addressable. If several gets want the
// same copy at the same time, or the same slice of it, they share one read.
//
// An image that is read completely becomes a copy in the host tier. All reads together may use a
// share of the host tier (1 / limits::kPromotedShareOfHost). If the host tier has no room, or the
// share is used up, the image is read into staging and does not become a copy. If staging has no
// room either, the read is refused.
//
// Some slices are read without the rest of their image (SliceReads). The header and the directory
// are read first, then the parts of the image that contain the slice's tiles. The result is an
// image of that slice in staging, which never becomes a copy. Its bytes also count in the share. If
// the share is used up, the read is refused.
//
// The deadline of a read is the latest deadline of its gets. If the device has not begun the read
// by then, it is dropped. Once begun, a read continues even if no get waits for it. It owns its
// memory and its place until its completion has run (ADR 0006).

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
#include "base/in_flight.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "codecs/image/encode.h"
#include "codecs/image/image.h"
#include "codecs/types/shape.h"
#include "service/index/block_index.h"
#include "service/index/pin.h"
#include "service/limits.h"
#include "service/memory/arena.h"
#include "service/path_pool.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"

namespace cairn {

// The id of a get that waits for reads.
using GetId = uint64_t;

// Decides which slices are read from a tier without the rest of their image.
// Two conditions must hold: the slice takes less than half of the image's bytes, and the image is
// so large that two small reads, one after the other, take less time than a complete read. If
// slices of a copy are read repeatedly, it is better to have the whole image in memory. So once the
// slices add up to the image's size, the next read is complete. All reads of a copy together read
// at most twice the image's bytes.
//
// Remembers the slices of limits::kSlicedCopiesMax copies. A new copy may replace another in this
// memory. Thread-safety: Thread-compatible.
class SliceReads {
 public:
  SliceReads() : seen_(limits::kSlicedCopiesMax) {}

  // Returns true if the slice of the pinned copy should be read alone, and records that read.
  // REQUIRES: the image contains the slice.
  bool ReadsAlone(codecs::GroupKind kind, const CopyPin& pin, const codecs::Slice& slice);

 private:
  struct Seen {
    uint64_t place = UINT64_MAX;
    uint64_t heads = 0;  // heads of the slices read so far, over all layers
  };
  std::vector<Seen> seen_;
};

// One read of a copy, or of one slice of it. Thread-safety: Immutable once completed.
class Promotion {
 public:
  // The outcome. REQUIRES, for this function and view(): the read has completed.
  //   OK         view() is the verified image
  //   DataLoss   the bytes are damaged or belong to another image, or the tier cannot read them;
  //              the copy has been dropped
  //   else       the tier did not read the copy, or not before the deadlines of all its gets
  const absl::Status& status() const { return status_; }
  // The view has only the slice, unless is_whole() is true.
  const codecs::ImageView& view() const { return view_; }
  bool is_whole() const { return slice_ == pin_.facts().slice; }
  // The copy that was read.
  const CopyPin& pin() const { return pin_; }
  // The copy that the bytes became in the host tier. Empty if they are in staging.
  const CopyPin& resident() const { return resident_; }
  // REQUIRES: resident() is empty.
  uint64_t staging_bytes() const { return memory_.size_bytes(); }

 private:
  friend class Promotions;
  CopyPin pin_;
  SpaceRef space_;
  codecs::Slice slice_;         // the slice to read
  Extent prefix_;               // if a slice is read alone: the image's header and directory
  codecs::ImagePrefix parsed_;  // prefix_, parsed
  CopyWriter writer_;           // empty if memory_ is staging
  Extent memory_;               // empty once published, and until parsed_ gives its size
  CopyPin resident_;            // pins the published copy
  codecs::ImageView view_;
  uint64_t share_bytes_ = 0;  // the bytes of the reads' share that this read uses
  bool is_prefetch_ = false;  // no get wanted the copy when the read began
  absl::Status status_;
  // Guarded by the lock of Promotions until the read has completed:
  std::vector<GetId> gets_;
  // The reads that are now running for it, and their memory.
  std::vector<codecs::ImagePart> parts_;
  std::span<std::byte> target_;
  size_t begun_ = 0, ended_ = 0;  // numbers of parts; each part counts once
  // Parts whose read was dropped at a deadline. They are read again if a get with a later deadline
  // joins.
  std::vector<size_t> unread_;
  bool is_beginning_ = false;                     // a thread is beginning parts
  absl::Status read_;                             // the first failure; after it no part begins
  absl::Time deadline_ = absl::InfiniteFuture();  // the latest deadline of its gets
  std::vector<TransferId> transfers_;
};

// Runs and shares reads. Thread-safety: Thread-safe. Locks: no lock is held while it calls a tier,
// the index or a get.
class Promotions {
 public:
  struct Parts {  // borrowed
    BlockIndex& index;
    Tiers& tiers;
    PathPool& pool;
    const Clock& clock;
    // Drops a copy that is damaged or cannot be read, and returns DataLoss. Runs on the path pool.
    std::function<absl::Status(const CopyPin&, std::string_view what)> drop_damaged;
    // Called for each get that has joined a read, when the read completes. Runs on the path pool,
    // except when the daemon stops: it may then run on a tier's thread, and the read has failed.
    std::function<void(GetId)> ended;
    // Called after `ended` was called for all gets of a read. There may now be room for a prefetch.
    // Runs on the same threads as `ended`.
    std::function<void()> has_room;
  };
  explicit Promotions(Parts parts);
  // REQUIRES at destruction: Stop() has returned, or no read was ever started.

  // Joins a running read of the slice of the pinned copy, or starts one. On success, ended(get) is
  // called once, possibly before this returns. `deadline` is the get's. REQUIRES: the image
  // contains the slice. Errors: ResourceExhausted (no room for the bytes), Unavailable (the daemon
  // is stopping).
  absl::StatusOr<std::shared_ptr<const Promotion>> JoinRead(CopyPin pin, const SpaceRef& space,
                                                            const codecs::Slice& slice, GetId get,
                                                            absl::Time deadline);

  enum class Prefetched : uint8_t {
    kBegun,   // the read has begun, now or before
    kLater,   // has_room() will be called: try again then
    kNoRoom,  // the host tier has no room, or the daemon is stopping
  };
  // Starts a read into the host tier that no get waits for.
  Prefetched PrefetchCopy(CopyPin pin, const SpaceRef& space);

  // Refuses new reads, cancels running ones, and waits for their completions. Idempotent.
  void Stop();

  size_t count() const { return in_flight_.count(); }
  void Report(MetricSink& sink) const;

 private:
  // Identifies a read by the place of the copy and the slice. The place is unique while the copy is
  // pinned.
  using Key = std::tuple<TierId, uint64_t, uint64_t>;

  static Key KeyOf(const CopyPin& pin, const codecs::Slice& slice) {
    return {pin.copy().tier, pin.extent().offset(), std::bit_cast<uint64_t>(slice)};
  }
  // Returns null if no such read runs.
  std::shared_ptr<Promotion> JoinLocked(const Key& key, GetId get, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes bytes from the share of the host tier that reads may use. Returns false if too few are
  // left.
  bool TakeShare(Promotion& promotion, uint64_t bytes);
  void GiveShareBack(Promotion& promotion) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Allocates memory for the first read, and sets the parts to read.
  absl::Status AllocateRead(Promotion& promotion);
  // Allocates a copy in the host tier. Returns false if there is no room, or if one exists already.
  bool AllocateCopy(Promotion& promotion);
  // Allocates staging, and takes its bytes from the reads' share.
  absl::StatusOr<Extent> AllocateForSlice(Promotion& promotion, uint64_t bytes);
  void SetParts(Promotion& promotion, std::vector<codecs::ImagePart> parts,
                std::span<std::byte> target);

  // Begins as many parts as may be read at once.
  void BeginParts(const std::shared_ptr<Promotion>& promotion);
  // Completes a part that was begun with `deadline`. Runs on any thread.
  void EndPart(std::shared_ptr<Promotion> promotion, size_t part, absl::Time deadline,
               absl::Status status);
  // Called when the current reads have completed, or one has failed.
  void FinishRead(std::shared_ptr<Promotion> promotion, absl::Status status);
  // Removes the read, so that no get can join it.
  void ForgetLocked(const std::shared_ptr<Promotion>& promotion)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Verifies header and directory, and allocates memory for the parts to read.
  absl::Status FindParts(Promotion& promotion);
  // Verifies the bytes and makes an image of the slice.
  absl::Status CheckSlice(Promotion& promotion);
  // Verifies the bytes and publishes the copy.
  absl::Status CheckAndKeep(Promotion& promotion);

  const Parts parts_;
  mutable Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t share_bytes_ ABSL_GUARDED_BY(mutex_) = 0;        // the part of the share in use
  uint64_t prefetching_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // the part that prefetches use
  absl::flat_hash_map<Key, std::shared_ptr<Promotion>> promotions_ ABSL_GUARDED_BY(mutex_);
  SliceReads slice_reads_ ABSL_GUARDED_BY(mutex_);
  Counter copied_, staged_, sliced_, late_, failed_, refused_, shared_;
  Counter whole_bytes_, slice_bytes_;
  // Counts reads until FinishRead() is about to return, and threads that begin parts.
  InFlight in_flight_;
};

}  // namespace cairn
