// SPDX-License-Identifier: Apache-2.0
#pragma once
// A circuit breaker that decides whether to fetch KV or to recompute it. A cache that fails, or
// that is slower than the engine's prefill, must not increase the time to first token. The breaker
// measures how long gets take, and the engine reports how long prefill takes. The breaker
// recommends the faster of the two.
//
//            failures_to_open failures in a row,
//            or slow_to_open predictions in a row that fetching is slower
//   Closed ────────────────────────────────────────────▶ Open ──(open time)──▶ HalfOpen
//     ▲                                                   ▲                        │ one probe
//     │                                                   └────── it failed ───────┤
//     └────────────────────────── it delivered ────────────────────────────────────┘
//
// The open time doubles when a probe fails. It also doubles when the first measurement after
// closing shows that the store is still slow.
// The condition for closing depends on why the breaker opened. If only matches had failed, an
// answered match closes the breaker, so that a client that makes no gets also recovers. If a get
// had failed, or fetching was slow, only a get that delivers bytes closes it. The breaker also
// closes if a probe finds blocks but no get follows within probe_timeout. In this case a single
// further failure opens it again.
//
// Blocks of other members come over the network, at another rate than those of the daemon's own
// tiers. Each of the two classes has a rate of its own. Slow members do not open the breaker: after
// slow_to_open predictions in a row that they make a fetch slower, blocks of other members are
// advised against for an open time, and then one fetch of them is a probe.
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
  // The kind of call that failed. Opening a session or a space counts as kMatch.
  enum class Call : uint8_t { kMatch, kGet };

  // `clock` must outlive the breaker.
  Breaker(const BreakerOptions& options, const Clock& clock);

  // Returns whether to ask the store. Returns true while the breaker is closed. While it is half
  // open, returns true once per probe. The caller must then report the outcome with one of the On…
  // calls.
  [[nodiscard]] bool Allow();

  // Bytes on the wire by where the daemon has or had them.
  struct Bytes {
    uint64_t local = 0;  // in its own tiers
    uint64_t peer = 0;   // at another member
  };
  // Returns whether fetching `bytes` is expected to be faster than recomputing `tokens`. A class
  // counts only once its rate has been measured. Returns true until a recompute rate has been
  // measured.
  [[nodiscard]] bool Advise(uint64_t tokens, const Bytes& bytes);
  [[nodiscard]] bool Advise(uint64_t tokens, uint64_t local_bytes) {
    return Advise(tokens, Bytes{.local = local_bytes});
  }

  // Reports an answered match. `will_fetch`: the match has leased blocks, so that gets follow.
  void OnMatched(bool will_fetch);
  // Reports answered gets that received `bytes` in total. None means that all of them missed. If
  // they are of both classes, other members are charged with the time that the local ones do not
  // explain.
  void OnFetched(const Bytes& bytes, absl::Duration elapsed);
  void OnFetched(uint64_t local_bytes, absl::Duration elapsed) {
    OnFetched(Bytes{.local = local_bytes}, elapsed);
  }
  // Reports a call that timed out, or a store that was unreachable.
  void OnFailed(Call call);

  // Reports that the engine computed the KV of `tokens` in `elapsed`.
  void OnRecomputed(uint64_t tokens, absl::Duration elapsed);

  State state() const;
  uint64_t opened_count() const;

 private:
  enum class Probe : uint8_t {
    kNone,     // the next call may probe
    kAsked,    // a caller was told to ask the store
    kMatched,  // the match found blocks; Advise() allows its gets
  };

  void OpenLocked(bool is_again) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AllowLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsFetchFasterLocked(uint64_t tokens, const Bytes& bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Advises on a fetch that other members make slower than recomputing.
  bool AdviseSlowPeersLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MeasureLocked(const Bytes& bytes, double seconds) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const BreakerOptions options_;
  const Clock& clock_;
  mutable Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kClosed;
  int match_failures_ ABSL_GUARDED_BY(mutex_) = 0;  // since the last answered match or get
  int get_failures_ ABSL_GUARDED_BY(mutex_) = 0;    // since the last answered get
  int slow_ ABSL_GUARDED_BY(mutex_) = 0;            // slow predictions in a row
  // True if the store was slow when the breaker last opened, and no measurement has been fast
  // since.
  bool was_slow_ ABSL_GUARDED_BY(mutex_) = false;
  bool needs_delivery_ ABSL_GUARDED_BY(mutex_) = false;  // only delivered bytes close the breaker
  Probe probe_ ABSL_GUARDED_BY(mutex_) = Probe::kNone;
  absl::Time probe_deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time retry_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration open_for_ ABSL_GUARDED_BY(mutex_);
  uint64_t opened_count_ ABSL_GUARDED_BY(mutex_) = 0;
  // Other members: predictions in a row that they are slow, until when fetches from them are
  // advised against, and whether the fetch that is under way since then is a probe.
  int peer_slow_ ABSL_GUARDED_BY(mutex_) = 0;
  bool were_peers_slow_ ABSL_GUARDED_BY(mutex_) = false;
  bool are_peers_probed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time peer_rest_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // none
  absl::Duration peer_rest_ ABSL_GUARDED_BY(mutex_);
  // Moving averages; 0 until measured.
  double local_seconds_per_byte_ ABSL_GUARDED_BY(mutex_) = 0;
  double peer_seconds_per_byte_ ABSL_GUARDED_BY(mutex_) = 0;
  double recompute_seconds_per_token_ ABSL_GUARDED_BY(mutex_) = 0;
};

std::string_view BreakerStateName(Breaker::State state);  // "closed", "open", "half open"

}  // namespace cairn
