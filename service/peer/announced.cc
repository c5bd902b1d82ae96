// SPDX-License-Identifier: Apache-2.0
#include "service/peer/announced.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "service/peer/homes.h"

namespace cairn {

Announced::Line& Announced::LineOf(uint32_t number) {
  const MutexLock lock(mutex_);
  return lines_[number];
}

absl::Status Announced::Take(const Member& from, const AnnouncedBatch& batch) {
  CAIRN_CHECK(from.number != 0);
  if (from.number > kHomeNumberMax) {
    return absl::InvalidArgumentError("this daemon has known too many members");
  }
  const auto number = static_cast<uint16_t>(from.number);
  Line& line = LineOf(number);
  const MutexLock lock(line.mutex);
  const bool is_known = line.incarnation == from.incarnation && line.epoch == batch.epoch;
  if (batch.is_reset && !is_known) {
    if (line.has_entries) {
      const absl::Time now = MonotonicNow();
      if (line.incarnation == from.incarnation && now - line.forgotten < forget_period_) {
        return absl::ResourceExhaustedError("epochs begin too fast: repeat this batch later");
      }
      line.forgotten = now;
      table_.Forget(number);
    }
    line.has_entries = false;
    line.incarnation = from.incarnation;
    line.epoch = batch.epoch;
    line.next = batch.first_sequence;
  } else if (!is_known) {
    return absl::FailedPreconditionError("no such epoch: begin a new one with a reset");
  }
  const uint64_t count = batch.stored.size() + batch.removed.size();
  const uint64_t end = batch.first_sequence + count;
  if (end <= line.next && batch.first_sequence <= end) return absl::OkStatus();  // taken already
  if (batch.first_sequence != line.next) {
    return absl::FailedPreconditionError(absl::StrCat("first_sequence is ", batch.first_sequence,
                                                      ", expected ", line.next,
                                                      ": begin a new epoch with a reset"));
  }
  const LocationTable::Holder holder = {.member = number,
                                        .incarnation = static_cast<uint16_t>(from.incarnation)};
  line.has_entries = line.has_entries || !batch.stored.empty();
  for (const proto::LocationName& name : batch.removed) table_.Remove(name, number);
  for (const proto::LocationName& name : batch.stored) table_.Add(name, holder);
  line.next = end;
  return absl::OkStatus();
}

}  // namespace cairn
