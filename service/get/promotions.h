// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads of copies out of tiers whose bytes cannot be addressed. There is one read at a time of one
// copy: gets that want the same copy meanwhile share it.
//
// What is read becomes a copy in the host tier. Where the host tier has no room for it, or the
// reads under way take limits::kPromotedShareOfHost of it, the bytes lie in staging and are no
// copy. Where staging has no room either, the read is refused.
//
// A read goes on whoever still waits for it, and owns its memory and its place until its
// completion has run (ADR 0006).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/get/waiting_gets.h"
#include "service/index/copies.h"
#include "service/index/images.h"
#include "service/index/pin.h"
#include "service/memory/arena.h"
#include "service/path_pool.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"

namespace cairn {

// One read of one copy. Thread-safety: Immutable, once it is over.
class Promotion {
 public:
  // How it went.
  //   OK         bytes() are the image, verified
  //   DataLoss   they are damaged or another's, or the tier cannot read them: the copy is dropped
  //   else       the tier, or the path pool, did not do it
  // REQUIRES of all: it is over.
  const absl::Status& status() const { return status_; }
  std::span<const std::byte> bytes() const {
    return resident_.is_empty() ? std::as_bytes(memory_.bytes()) : resident_.bytes();
  }
  // Of the copy that was read.
  const ResidentPin& pin() const { return pin_; }

 private:
  friend class Promotions;
  ResidentPin pin_;
  SpaceRef space_;
  CopyWriter writer_;     // empty: memory_ is staging
  Extent memory_;         // empty once it is a copy
  ResidentPin resident_;  // of that copy
  uint64_t bytes_ = 0;
  bool is_prefetch_ = false;  // no get had asked for it when it began
  absl::Status status_;
  // Guarded by the lock of Promotions.
  std::vector<WaitingGets::Id> gets_;
  TransferId transfer_ = 0;
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
    // Drops a copy whose bytes are not its own or cannot be read, and returns DataLoss. Runs on the
    // path pool.
    std::function<absl::Status(const ResidentPin&, std::string_view what)> drop_damaged;
    // A read that the get joined is over. Runs on the path pool, or on a thread of the tier where
    // the pool takes no job: the read has failed then.
    std::function<void(WaitingGets::Id)> ended;
    // A read is over, and no get is left to be told: there may be room for a prefetch. Runs where
    // `ended` does.
    std::function<void()> has_room = [] {};
  };
  explicit Promotions(Parts parts);
  ~Promotions();  // REQUIRES: Stop() has returned, or nothing was read

  // Joins the read of the pinned copy, or starts it. ended(get) runs once unless this fails,
  // possibly before it returns.
  // ResourceExhausted: there is no room for the bytes. Unavailable: the daemon is stopping.
  absl::StatusOr<std::shared_ptr<const Promotion>> Join(ResidentPin pin, const SpaceRef& space,
                                                        WaitingGets::Id get);

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
  using Key = std::pair<TierId, uint64_t>;  // the copy's place, which is its own while it is pinned

  static Key KeyOf(const ResidentPin& pin) { return {pin.copy().tier, pin.extent().offset()}; }
  // Null: nobody reads it.
  std::shared_ptr<Promotion> JoinLocked(const Key& key, WaitingGets::Id get)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Memory for promotion->bytes_: a copy to be in the host tier, or staging.
  absl::Status Allocate(Promotion& promotion);
  // A copy to be in the host tier. False: there is no room for one, or one already.
  bool AllocateCopy(Promotion& promotion);
  void Begin(const std::shared_ptr<Promotion>& promotion);
  // The completion, on any thread.
  void Completed(std::shared_ptr<Promotion> promotion, absl::Status status);
  void Finish(std::shared_ptr<Promotion> promotion, absl::Status status);
  // Verifies what was read, and publishes the copy.
  absl::Status CheckAndKeep(Promotion& promotion);

  const Parts parts_;
  mutable Mutex mutex_;
  CondVar ended_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  size_t under_way_ ABSL_GUARDED_BY(mutex_) = 0;            // until Finish() is about to return
  uint64_t copying_bytes_ ABSL_GUARDED_BY(mutex_) = 0;      // of copies to be, under way
  uint64_t prefetching_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of those, that no get asked for
  absl::flat_hash_map<Key, std::shared_ptr<Promotion>> promotions_ ABSL_GUARDED_BY(mutex_);
  Counter copied_, staged_, failed_, refused_, shared_, read_bytes_;
};

}  // namespace cairn
