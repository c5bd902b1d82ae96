// SPDX-License-Identifier: Apache-2.0
#pragma once
// Fetch or recompute? A cache that is slower than the engine's own prefill, or that fails, must not
// delay first tokens. The breaker measures what gets really cost, is told what prefill costs, and
// says which of the two to do.
//
//            failures_to_open failures in a row,
//            or slow_to_open predictions in a row that fetching loses
//   Closed ────────────────────────────────────────────▶ Open ──(open time)──▶ HalfOpen
//     ▲                                                   ▲                        │ one probe
//     │                                                   └────── it failed ───────┤
//     └────────────────────────── it delivered ────────────────────────────────────┘
//
// The open time doubles when a probe fails, and when the store is found slow again at once.
//
// Thread-safety: Thread-safe.

#include <cstdint>
#include <string_view>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/cpp/options.h"

namespace cairn {

class Breaker {
 public:
  enum class State : uint8_t { kClosed = 0, kOpen = 1, kHalfOpen = 2 };

  // `clock` must outlive the breaker.
  Breaker(const BreakerOptions& options, const Clock& clock);

  // Whether to ask the store at all. True while closed; while half open, true once per probe, and
  // the answer must then be followed by one of the On… calls.
  [[nodiscard]] bool Allow();

  // Whether fetching `wire_bytes` is expected to be done before recomputing `tokens` would be.
  // Without a measured recompute rate the store is given the benefit of the doubt.
  [[nodiscard]] bool Advise(uint64_t tokens, uint64_t wire_bytes);

  // What happened. A miss is OnAnswered: the store did its part.
  void OnFetched(uint64_t wire_bytes, absl::Duration elapsed);
  void OnAnswered();
  void OnFailed();  // late, or the store was gone

  // The engine computed KV of `tokens` in `elapsed`.
  void OnRecomputed(uint64_t tokens, absl::Duration elapsed);

  State state() const;
  uint64_t opened_count() const;

 private:
  void OpenLocked(bool is_again) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AllowLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsFetchFasterLocked(uint64_t tokens, uint64_t wire_bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const BreakerOptions options_;
  const Clock& clock_;
  mutable Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kClosed;
  int failures_ ABSL_GUARDED_BY(mutex_) = 0;       // in a row
  int slow_ ABSL_GUARDED_BY(mutex_) = 0;           // in a row
  bool was_slow_ ABSL_GUARDED_BY(mutex_) = false;  // when it opened last, and not fast since
  bool is_probing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time probe_deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time retry_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration open_for_ ABSL_GUARDED_BY(mutex_);
  uint64_t opened_count_ ABSL_GUARDED_BY(mutex_) = 0;
  // Moving averages; 0 until measured.
  double fetch_seconds_per_byte_ ABSL_GUARDED_BY(mutex_) = 0;
  double recompute_seconds_per_token_ ABSL_GUARDED_BY(mutex_) = 0;
};

std::string_view BreakerStateName(Breaker::State state);  // "closed", "open", "half open"

}  // namespace cairn
