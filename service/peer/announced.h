// SPDX-License-Identifier: Apache-2.0
#pragma once
// Takes what members announce, in their order, into the table of locations.
//
// A member numbers what it announces to a home. It begins an epoch with a batch that resets: what
// it announced before is forgotten. Batches follow each other without a gap. A batch that was taken
// already is ignored, because its reply may have been lost.
//
// To forget what a member has announced, the whole table is walked. A process of a member can have
// this once in `forget_period`.
//
// Thread-safety: Thread-safe. Batches of one member wait for each other.

#include <cstdint>
#include <map>
#include <span>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "proto/location.h"
#include "service/members/view.h"
#include "service/peer/location_table.h"

namespace cairn {

struct AnnouncedBatch {
  uint64_t epoch = 0;
  uint64_t first_sequence = 0;  // the number of entries of the epoch before this batch
  bool is_reset = false;        // begins the epoch
  // No name is in both.
  std::span<const proto::LocationName> stored, removed;
};

class Announced {
 public:
  // `table` must outlive the object.
  explicit Announced(LocationTable& table, absl::Duration forget_period = absl::Milliseconds(500))
      : table_(table), forget_period_(forget_period) {}

  // REQUIRES: from.number is not 0. Errors: InvalidArgument (the number is too large for the
  // table), FailedPrecondition (an epoch that has not begun here, or a gap: begin a new one),
  // ResourceExhausted (it begins epochs too fast: repeat the batch later).
  absl::Status Take(const Member& from, const AnnouncedBatch& batch);

 private:
  struct Line {  // of one member
    Mutex mutex;
    bool has_entries ABSL_GUARDED_BY(mutex) = false;
    absl::Time forgotten ABSL_GUARDED_BY(mutex) = absl::InfinitePast();  // last
    uint64_t incarnation ABSL_GUARDED_BY(mutex) = 0;
    uint64_t epoch ABSL_GUARDED_BY(mutex) = 0;
    uint64_t next ABSL_GUARDED_BY(mutex) = 0;  // sequence of the next entry
  };

  Line& LineOf(uint32_t number);

  LocationTable& table_;
  const absl::Duration forget_period_;
  Mutex mutex_;
  // By number. A line is never removed: a member may leave and come back. Numbers are bounded.
  std::map<uint32_t, Line> lines_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
