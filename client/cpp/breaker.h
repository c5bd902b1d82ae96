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
// What closes it depends on what opened it. If only matches failed, a match that is answered
// closes it: a client that never gets recovers too. If a get failed or fetching was slow, a get
// has to deliver bytes. A probe that found blocks and that no get followed within probe_timeout
// closes it as well, but then one more failure opens it again.
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
  // The kind of a call that failed. Binding a session or a space counts as kMatch.
  enum class Call : uint8_t { kMatch, kGet };

  // `clock` must outlive the breaker.
  Breaker(const BreakerOptions& options, const Clock& clock);

  // Whether to ask the store at all. True while closed; while half open, true once per probe, and
  // the answer must then be followed by one of the On… calls.
  [[nodiscard]] bool Allow();

  // Whether fetching `wire_bytes` is expected to be done before recomputing `tokens` would be.
  // Without a measured recompute rate the store is given the benefit of the doubt.
  [[nodiscard]] bool Advise(uint64_t tokens, uint64_t wire_bytes);

  // A match was answered. will_fetch: it found blocks and leased them, so gets are to follow.
  void OnMatched(bool will_fetch);
  // Gets were answered with `wire_bytes` together; 0 when all of them missed.
  void OnFetched(uint64_t wire_bytes, absl::Duration elapsed);
  // A call was late, or the store was gone.
  void OnFailed(Call call);

  // The engine computed KV of `tokens` in `elapsed`.
  void OnRecomputed(uint64_t tokens, absl::Duration elapsed);

  State state() const;
  uint64_t opened_count() const;

 private:
  enum class Probe : uint8_t {
    kNone,     // the next call may probe
    kAsked,    // a call was let through
    kMatched,  // it was a match and found blocks; Advise() lets their gets through
  };

  void OpenLocked(bool is_again) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AllowLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsFetchFasterLocked(uint64_t tokens, uint64_t wire_bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const BreakerOptions options_;
  const Clock& clock_;
  mutable Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kClosed;
  int match_failures_ ABSL_GUARDED_BY(mutex_) = 0;       // since a match or a get was answered
  int get_failures_ ABSL_GUARDED_BY(mutex_) = 0;         // since a get was answered
  int slow_ ABSL_GUARDED_BY(mutex_) = 0;                 // in a row
  bool was_slow_ ABSL_GUARDED_BY(mutex_) = false;        // when it opened last, and not fast since
  bool needs_delivery_ ABSL_GUARDED_BY(mutex_) = false;  // to close: see above
  Probe probe_ ABSL_GUARDED_BY(mutex_) = Probe::kNone;
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
