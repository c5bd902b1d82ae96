// SPDX-License-Identifier: Apache-2.0
#pragma once
// Deletions that members did not confirm, to be asked for again. Bounded: the oldest are given up
// if there are too many keys, or after a while. The deletion of a whole space counts as one key.
// Who does not confirm it in time learns of it by its generation (service/members/generations.h).
//
// Thread-safety: Thread-safe.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "proto/block_key.h"

namespace cairn {

class LateDeletes {
 public:
  static constexpr size_t kKeysMax = 65'536;
  static constexpr absl::Duration kKept = absl::Minutes(10);

  struct Deletion {  // a value
    std::string member;
    proto::SpaceIdentity identity;
    std::vector<proto::BlockKey> keys;  // empty: all blocks that are older than `generation`
    absl::Time since;
    uint64_t generation = 0;
  };

  // REQUIRES: it has keys or a generation. Ignores deletions of more than kKeysMax keys.
  void Add(Deletion deletion);
  // Takes the oldest deletion of a member for which `is_wanted`, unless one of its deletions was
  // taken and is not over. Gives up those that are too old.
  std::optional<Deletion> Take(absl::Time now,
                               absl::FunctionRef<bool(std::string_view member)> is_wanted);
  // Ends a deletion that was taken. If the member has not confirmed it, it is kept.
  void Done(Deletion deletion, bool is_confirmed);

  // Keys that wait, without those that are taken.
  size_t key_count() const;
  void Report(MetricSink& sink) const;

 private:
  void MakeRoom(size_t keys) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::deque<Deletion> waiting_ ABSL_GUARDED_BY(mutex_);  // the oldest first
  size_t keys_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<std::string, std::less<>> busy_ ABSL_GUARDED_BY(mutex_);  // members
  Counter confirmed_, given_up_;                                     // keys
};

}  // namespace cairn
