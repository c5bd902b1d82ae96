// SPDX-License-Identifier: Apache-2.0
#pragma once
// An honest client that puts, matches and gets blocks without a pause while others attack the
// daemon. It keeps account of what it was given.
//
// Thread-safety: Thread-safe.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/options.h"

namespace cairn {

struct VictimRecord {
  uint64_t calls = 0;
  uint64_t hits = 0;          // gets whose bytes are those that were put
  uint64_t misses = 0;        // NotFound
  uint64_t refusals = 0;      // ResourceExhausted, and matches that the breaker kept back
  uint64_t failures = 0;      // any other status
  uint64_t wrong_blocks = 0;  // gets that succeeded with other bytes
  absl::Duration late_max;    // the most by which a call came back after its deadline
  std::vector<absl::Duration> get_times, match_times;
  absl::Status last_failure;
};

// The 99th percentile; infinite without times.
absl::Duration P99(std::vector<absl::Duration> times);

class Victim {
 public:
  // Connects to a daemon and begins.
  static absl::StatusOr<std::unique_ptr<Victim>> Start(ConnectOptions options);
  static absl::StatusOr<std::unique_ptr<Victim>> Start(const std::string& control) {
    return Start(ConnectOptions{.control = control});
  }
  ~Victim();

  // What happened since the last call.
  VictimRecord TakeRecord();
  // Whether it gets a block right within `timeout`.
  bool AwaitHit(absl::Duration timeout);

 private:
  struct Work;
  explicit Victim(std::unique_ptr<Work> work);
  std::unique_ptr<Work> work_;
};

}  // namespace cairn
