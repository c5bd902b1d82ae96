// SPDX-License-Identifier: Apache-2.0
#pragma once
// The counts of a replay, in total and by window of the trace's time.
//
// Thread-safety: values. Each thread of a replay has a tally of its own. They are summed at the
// end.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cpp/block_io.h"

namespace cairn::replay {

enum class Call : uint8_t { kMatch = 0, kGet = 1, kPut = 2 };
inline constexpr size_t kCallCount = 3;
inline constexpr std::array<const char*, kCallCount> kCallNames = {"match", "get", "put"};
inline constexpr size_t kTierCount = 5;  // by the values of Tier
inline constexpr size_t kWindowsMax = 120;

struct BlockCount {
  uint64_t blocks = 0, tokens = 0;

  BlockCount& operator+=(const BlockCount& other) {
    blocks += other.blocks;
    tokens += other.tokens;
    return *this;
  }
};

// A window: one part of the trace's time.
struct TallyWindow {
  BlockCount asked, ceiling;
  std::array<BlockCount, kTierCount> hits;  // received without a wrong byte
  std::array<std::vector<uint32_t>, kCallCount> call_us;

  BlockCount AllHits() const;
};

struct Tally {
  explicit Tally(size_t window_count) : windows(window_count) {}

  std::vector<TallyWindow> windows;
  uint64_t requests = 0;
  uint64_t lost_blocks = 0;  // matched and leased, but then not found
  uint64_t wrong_blocks = 0, wrong_bytes = 0;
  uint64_t verified_bytes = 0;             // in source form
  uint64_t puts = 0, duplicate_puts = 0;   // successful; includes duplicates
  uint64_t skipped_puts = 0;               // after a failed put of the same request
  uint64_t hints = 0, refused_hints = 0;   // with --hints
  uint64_t stored_bytes = 0;               // images of puts that were not duplicates
  uint64_t late_calls = 0;                 // ended after their deadline
  absl::Duration late_max, behind_max;     // longest delays: of calls, of requests
  std::map<std::string, uint64_t> errors;  // "put RESOURCE_EXHAUSTED"

  // Adds a call that took `elapsed`.
  void AddCall(Call call, size_t window, absl::Duration elapsed, absl::Duration deadline);
  void AddError(Call call, const absl::Status& status);
  Tally& operator+=(const Tally& other);

  // Returns the sum of all windows.
  TallyWindow Sum() const;
};

// Returns a percentile: the smallest of the times that at least the fraction `share` of all times
// do not exceed. Returns 0 if there are no times. REQUIRES: 0 < share <= 1.
uint32_t Percentile(std::vector<uint32_t> times, double share);

}  // namespace cairn::replay
