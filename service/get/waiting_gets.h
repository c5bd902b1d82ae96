// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gets that wait for a tier. Each is returned once: when its last read completes, or after its
// deadline, whichever is first. The caller that receives it answers it.
//
// Thread-safety: Thread-safe. Makes no calls to others.

#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace cairn {

struct GetRun;

class WaitingGets {
 public:
  using Id = uint64_t;

  WaitingGets();
  ~WaitingGets();

  // Returns an id for a get that is about to wait. 0: limits::kWaitingGetsMax are waiting.
  Id Open();
  // Gives the id back without waiting.
  void Close(Id id);
  // Waits for `reads` reads, at most until `deadline`. Some may have completed already; if all
  // have, returns the get at once. Null: it waits.
  std::unique_ptr<GetRun> Wait(Id id, std::unique_ptr<GetRun> run, size_t reads,
                               absl::Time deadline);
  // One of its reads has completed. Returns the get if that was the last one; null if others are
  // missing, or if it was returned before.
  std::unique_ptr<GetRun> Arrived(Id id);
  // Returns those past their deadline.
  std::vector<std::unique_ptr<GetRun>> TakeLate(absl::Time now);
  // InfiniteFuture: none waits.
  absl::Time next_deadline() const;
  size_t count() const;

 private:
  struct Entry {
    std::unique_ptr<GetRun> run;  // null until Wait()
    size_t arrived = 0, reads = 0;
    absl::Time deadline;
  };
  std::unique_ptr<GetRun> Take(Id id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  Id last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<Id, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<absl::Time, Id>> deadlines_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
