// SPDX-License-Identifier: Apache-2.0
#pragma once
// Promotions: reads of copies from tiers that are not addressable. Concurrent gets of the same
// copy, or of the same slice of it, share one read.
//
// An image that is read completely becomes a copy in the host tier. If the host tier has no room
// for it, or running reads use limits::kPromotedShareOfHost of it, the bytes go to staging and
// become no copy. If staging has no room either, the read is refused.
//
// Some slices are read alone (SliceReads): header and directory first, then the parts of the image
// that contain its tiles. The bytes go to staging, as an image of that slice, and become no
// copy. They also count towards the reads' share of the host tier; above it the read is refused.
//
// A read has the latest deadline of its gets: if the device has not begun it by then, it is
// dropped. Once begun it continues, whether or not a get still waits. In both cases it owns its
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

// Names a get that waits for reads.
using GetId = uint64_t;

// Decides which slices are read from a tier without the rest of their image.
//
// A slice is read alone if it is less than half of the bytes to read, and if the image is so large
// that two small reads, one after the other, take less time than a complete one. Repeated readers
// are better served from memory: once the slices read from a copy add up to the image's size, the
// next read is complete. All readers together then read at most twice as much as one complete read.
//
// Remembers the slices read from limits::kSlicedCopiesMax copies; a copy may replace another one.
// Thread-safety: Thread-compatible.
class SliceReads {
 public:
  SliceReads() : seen_(limits::kSlicedCopiesMax) {}

  // Returns true, and records the read, if the slice of the pinned copy should be read alone.
  // REQUIRES: the image contains it.
  bool ReadsAlone(codecs::GroupKind kind, const CopyPin& pin, const codecs::Slice& slice);

 private:
  struct Seen {
    uint64_t place = UINT64_MAX;
    uint64_t heads = 0;  // of all layers
  };
  std::vector<Seen> seen_;
};

// One read of a copy, or of one slice of it. Thread-safety: Immutable once completed.
class Promotion {
 public:
  // The outcome.
  //   OK         view() is the image, verified
  //   DataLoss   the bytes are damaged or another image's, or the tier cannot read them: the
  //              copy is dropped
  //   else       the tier did not read it, or not by the deadline of any get
  // REQUIRES, for this and view(): it has completed.
  const absl::Status& status() const { return status_; }
  // The view has only the slice, unless is_whole().
  const codecs::ImageView& view() const { return view_; }
  bool is_whole() const { return slice_ == pin_.facts().slice; }
  // The copy that was read.
  const CopyPin& pin() const { return pin_; }

 private:
  friend class Promotions;
  CopyPin pin_;
  SpaceRef space_;
  codecs::Slice slice_;         // the slice to read
  Extent prefix_;               // for a slice alone: header and directory of the whole image
  codecs::ImagePrefix parsed_;  // parsed from it
  CopyWriter writer_;           // empty: memory_ is staging
  Extent memory_;               // empty once published, and until parsed_ determines its size
  CopyPin resident_;            // of the published copy
  codecs::ImageView view_;
  uint64_t share_bytes_ = 0;  // its part of the reads' share of the host tier
  bool is_prefetch_ = false;  // no get asked for it when it began
  absl::Status status_;
  // Guarded by the lock of Promotions, until completed:
  std::vector<GetId> gets_;
  // The current reads and their memory.
  std::vector<codecs::ImagePart> parts_;
  std::span<std::byte> target_;
  size_t begun_ = 0, ended_ = 0;  // counts of parts, each once
  // Begun but dropped: late for some gets, to be begun again for others.
  std::vector<size_t> unread_;
  bool is_beginning_ = false;                     // a thread is beginning parts
  absl::Status read_;                             // the first failure: no further part is begun
  absl::Time deadline_ = absl::InfiniteFuture();  // the latest of its gets
  std::vector<TransferId> transfers_;
};

// Runs and shares reads. Thread-safety: Thread-safe. Locks: none is held while it calls a tier, the
// index or a get.
class Promotions {
 public:
  struct Parts {  // borrowed
    BlockIndex& index;
    Tiers& tiers;
    PathPool& pool;
    const Clock& clock;
    // Drops a copy whose bytes are wrong or cannot be read; returns DataLoss. Runs on the path
    // pool.
    std::function<absl::Status(const CopyPin&, std::string_view what)> drop_damaged;
    // A read that the get joined has completed. Runs on the path pool, or on a tier's thread when
    // the daemon stops; the read has then failed.
    std::function<void(GetId)> ended;
    // A read has completed and all its gets were told: there may be room for a prefetch. Runs where
    // `ended` does.
    std::function<void()> has_room;
  };
  explicit Promotions(Parts parts);
  // REQUIRES at destruction: Stop() has returned, or nothing was read.

  // Joins a read of the slice of the pinned copy, or starts one. Unless this fails, ended(get) runs
  // once, possibly before it returns. `deadline` is the get's. REQUIRES: the image has the slice.
  // Errors: ResourceExhausted (no room for the bytes), Unavailable (the daemon is stopping).
  absl::StatusOr<std::shared_ptr<const Promotion>> JoinRead(CopyPin pin, const SpaceRef& space,
                                                            const codecs::Slice& slice, GetId get,
                                                            absl::Time deadline);

  enum class Prefetched : uint8_t {
    kBegun,   // or it is being read already
    kLater,   // has_room() will be called
    kNoRoom,  // no room in the host tier, or the daemon is stopping
  };
  // Starts a read into the host tier that no get waits for.
  Prefetched PrefetchCopy(CopyPin pin, const SpaceRef& space);

  // Refuses new reads. Cancels running ones and waits for their completions. Idempotent.
  void Stop();

  size_t count() const { return in_flight_.count(); }
  void Report(MetricSink& sink) const;

 private:
  // The place of the copy, unique while it is pinned, and the slice that is read.
  using Key = std::tuple<TierId, uint64_t, uint64_t>;

  static Key KeyOf(const CopyPin& pin, const codecs::Slice& slice) {
    return {pin.copy().tier, pin.extent().offset(), std::bit_cast<uint64_t>(slice)};
  }
  // Returns null if no read of it runs.
  std::shared_ptr<Promotion> JoinLocked(const Key& key, GetId get, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes bytes of the reads' share of the host tier. Returns false if there is not enough left.
  bool TakeShare(Promotion& promotion, uint64_t bytes);
  void GiveShareBack(Promotion& promotion) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Allocates memory for the first part to read, and sets it as the current read.
  absl::Status AllocateRead(Promotion& promotion);
  // Allocates a copy in the host tier. Returns false if there is no room or a copy exists already.
  bool AllocateCopy(Promotion& promotion);
  // Allocates staging, within the share.
  absl::StatusOr<Extent> AllocateForSlice(Promotion& promotion, uint64_t bytes);
  void SetParts(Promotion& promotion, std::vector<codecs::ImagePart> parts,
                std::span<std::byte> target);

  // Begins parts, as many as may be read at once.
  void BeginParts(const std::shared_ptr<Promotion>& promotion);
  // The completion of a part with `deadline`; on any thread.
  void EndPart(std::shared_ptr<Promotion> promotion, size_t part, absl::Time deadline,
               absl::Status status);
  // The current reads have completed or failed.
  void FinishRead(std::shared_ptr<Promotion> promotion, absl::Status status);
  // No further get may join it.
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
  uint64_t share_bytes_ ABSL_GUARDED_BY(mutex_) = 0;        // used by running reads
  uint64_t prefetching_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of those, reads that no get asked for
  absl::flat_hash_map<Key, std::shared_ptr<Promotion>> promotions_ ABSL_GUARDED_BY(mutex_);
  SliceReads slice_reads_ ABSL_GUARDED_BY(mutex_);
  Counter copied_, staged_, sliced_, late_, failed_, refused_, shared_;
  Counter whole_bytes_, slice_bytes_;
  // Reads, until FinishRead() is about to return, and threads that begin parts.
  InFlight in_flight_;
};

}  // namespace cairn
