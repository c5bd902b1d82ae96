// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the log leaves out, so that peers cannot fill a disk with it and a reader of stderr that
// stops reading cannot stop a thread:
//
// - Records of one kind beyond a rate. A kind is a component with a text. The next record of the
//   kind that is written says how many were left out (suppressed=N). Debug records are not limited.
// - Lines for which stderr has no room at that moment.
//
// Both are counted.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/time/time.h"
#include "base/metric.h"

namespace cairn {

// A token bucket per kind, in a table of fixed size: kinds that hash alike share one.
// Thread-safety: Thread-compatible.
class LogLimiter {
 public:
  static constexpr int kBurst = 100;
  static constexpr absl::Duration kRefill = absl::Milliseconds(100);  // one more record

  struct Verdict {
    bool is_admitted = false;
    uint64_t suppressed = 0;  // of the kind, since one was admitted; 0 unless this one is
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

inline constexpr size_t kLogLineBytesMax = 4095;  // a page, with the newline

// Writes `line` to `fd` unless that could block. False: all of it, or its end, is lost. A line of
// more than kLogLineBytesMax is cut to that. Blocks only if another process fills a pipe that both
// write to.
[[nodiscard]] bool WriteLogLine(int fd, std::string_view line);

// The counts of this process.
void ReportLog(MetricSink& sink);

}  // namespace cairn
