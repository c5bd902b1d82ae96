// SPDX-License-Identifier: Apache-2.0
#pragma once
// Drops log records, so that a peer cannot fill a disk through the log and a stalled reader of
// stderr cannot block a thread. Dropped records are counted:
//
// - Records of one kind above a rate. A kind is a component and a text. The next written record of
//   that kind says how many were dropped (suppressed=N). Debug records have no limit.
// - Lines that stderr has no room for at that moment.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/time/time.h"
#include "base/metric.h"

namespace cairn {

// Limits the rate of each kind by a token bucket. The table has a fixed size: kinds with equal
// hashes share a bucket.
// Thread-safety: Thread-compatible.
class LogLimiter {
 public:
  static constexpr int kBurst = 100;
  // One more record per interval.
  static constexpr absl::Duration kRefill = absl::Milliseconds(100);

  struct Verdict {
    bool is_admitted = false;
    // Records of this kind dropped since the last admitted one; 0 if not admitted.
    uint64_t suppressed = 0;
  };
  Verdict Admit(std::string_view component, std::string_view text, absl::Time now);

 private:
  struct Bucket {
    int used = 0;  // records; at most kBurst
    absl::Time refilled = absl::InfinitePast();
    uint64_t suppressed = 0;
  };
  static constexpr size_t kBuckets = 256;

  std::array<Bucket, kBuckets> buckets_;
};

// A page, with the newline: poll() promises a pipe that much room.
inline constexpr size_t kLogLineBytesMax = 4095;

// Writes `line` to `fd` unless that could block. A line of more than kLogLineBytesMax is cut.
// Returns false if the line, or its end, was lost. Can only block if another process fills the same
// pipe.
[[nodiscard]] bool WriteLogLine(int fd, std::string_view line);

// Reports the counts of dropped records and lines of this process.
void ReportLog(MetricSink& sink);

}  // namespace cairn
