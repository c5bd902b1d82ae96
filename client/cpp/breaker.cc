// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/breaker.h"

#include <algorithm>
#include <utility>

namespace cairn {
namespace {

// Weight of the newest measurement: about the last five count.
constexpr double kNewest = 0.3;

void Average(double measured, double* average) {
  *average = *average == 0 ? measured : *average + kNewest * (measured - *average);
}

}  // namespace

Breaker::Breaker(const BreakerOptions& options, const Clock& clock)
    : options_(options), clock_(clock), open_for_(options.open_min), peer_rest_(options.open_min) {}

void Breaker::OpenLocked(bool is_again) {
  open_for_ = is_again ? std::min(open_for_ * 2, options_.open_max) : options_.open_min;
  state_ = State::kOpen;
  retry_at_ = clock_.Now() + open_for_;
  probe_ = Probe::kNone;
  match_failures_ = 0;
  get_failures_ = 0;
  slow_ = 0;
  ++opened_count_;
}

void Breaker::CloseLocked() {
  state_ = State::kClosed;
  needs_delivery_ = false;
  probe_ = Probe::kNone;
  match_failures_ = 0;
  get_failures_ = 0;
  slow_ = 0;
}

bool Breaker::AllowLocked() {
  if (state_ == State::kClosed) {
    return true;
  }
  const absl::Time now = clock_.Now();
  if (state_ == State::kOpen) {
    if (now < retry_at_) {
      return false;
    }
    state_ = State::kHalfOpen;
  }
  if (probe_ != Probe::kNone && now < probe_deadline_) {
    return false;
  }
  if (probe_ == Probe::kMatched) {
    // The store answered, and the caller fetched nothing: this client only matches.
    CloseLocked();
    get_failures_ = options_.failures_to_open - 1;
    return true;
  }
  probe_ = Probe::kAsked;
  probe_deadline_ = now + options_.probe_timeout;
  return true;
}

bool Breaker::Allow() {
  MutexLock lock(mutex_);
  return AllowLocked();
}

bool Breaker::IsFetchFasterLocked(uint64_t tokens, const Bytes& bytes) const {
  return recompute_seconds_per_token_ == 0 ||
         local_seconds_per_byte_ * static_cast<double>(bytes.local) +
                 peer_seconds_per_byte_ * static_cast<double>(bytes.peer) <=
             recompute_seconds_per_token_ * static_cast<double>(tokens);
}

bool Breaker::AdviseSlowPeersLocked() {
  const absl::Time now = clock_.Now();
  if (peer_rest_until_ != absl::InfinitePast()) {
    if (now < peer_rest_until_) return false;
    peer_rest_until_ = now + options_.probe_timeout;  // another probe if this one measures nothing
    are_peers_probed_ = true;
    return true;
  }
  if (++peer_slow_ < options_.slow_to_open) return false;
  peer_rest_ = were_peers_slow_ ? std::min(peer_rest_ * 2, options_.open_max) : options_.open_min;
  peer_rest_until_ = now + peer_rest_;
  were_peers_slow_ = true;
  peer_slow_ = 0;
  return false;
}

bool Breaker::Advise(uint64_t tokens, const Bytes& bytes) {
  MutexLock lock(mutex_);
  if (state_ == State::kHalfOpen && probe_ == Probe::kMatched) {
    probe_ = Probe::kAsked;
    return true;
  }
  if (state_ != State::kClosed) {
    return AllowLocked();
  }
  if (IsFetchFasterLocked(tokens, bytes)) {
    if (bytes.local > 0) {
      slow_ = 0;
      was_slow_ = false;
    }
    if (bytes.peer > 0) {
      peer_slow_ = 0;
      were_peers_slow_ = false;
      peer_rest_until_ = absl::InfinitePast();
    }
    return true;
  }
  if (IsFetchFasterLocked(tokens, {.local = bytes.local})) return AdviseSlowPeersLocked();
  // Without fetches there is no new measurement; so the breaker opens, and later lets a probe
  // through.
  if (++slow_ >= options_.slow_to_open) {
    OpenLocked(/*is_again=*/was_slow_);
    was_slow_ = true;
    needs_delivery_ = true;
  }
  return false;
}

void Breaker::OnMatched(bool will_fetch) {
  MutexLock lock(mutex_);
  match_failures_ = 0;
  if (state_ != State::kHalfOpen) {
    return;
  }
  if (!needs_delivery_) {
    CloseLocked();
  } else {
    probe_ = will_fetch ? Probe::kMatched : Probe::kNone;
  }
}

void Breaker::MeasureLocked(const Bytes& bytes, double seconds) {
  // A probe's measurement replaces an average from before the failures.
  const bool replaces = state_ == State::kHalfOpen;
  const auto measure = [](double measured, bool is_new, double* average) {
    is_new ? void(*average = measured) : Average(measured, average);
  };
  if (bytes.peer == 0) {
    return measure(seconds / static_cast<double>(bytes.local), replaces, &local_seconds_per_byte_);
  }
  const double left = seconds - local_seconds_per_byte_ * static_cast<double>(bytes.local);
  if (left <= 0) return;  // it says nothing of them
  measure(left / static_cast<double>(bytes.peer),
          replaces || std::exchange(are_peers_probed_, false), &peer_seconds_per_byte_);
  peer_rest_until_ = absl::InfinitePast();
}

void Breaker::OnFetched(const Bytes& bytes, absl::Duration elapsed) {
  MutexLock lock(mutex_);
  match_failures_ = 0;
  get_failures_ = 0;
  if (bytes.local == 0 && bytes.peer == 0) {
    // A miss does not tell the speed: the next call may probe.
    probe_ = Probe::kNone;
    return;
  }
  MeasureLocked(bytes, absl::ToDoubleSeconds(elapsed));
  if (state_ == State::kHalfOpen) CloseLocked();
}

void Breaker::OnFailed(Call call) {
  MutexLock lock(mutex_);
  if (state_ == State::kOpen) {
    return;
  }
  ++(call == Call::kGet ? get_failures_ : match_failures_);
  if (state_ == State::kHalfOpen || get_failures_ + match_failures_ >= options_.failures_to_open) {
    needs_delivery_ = needs_delivery_ || get_failures_ > 0;
    OpenLocked(/*is_again=*/state_ == State::kHalfOpen);
  }
}

void Breaker::OnRecomputed(uint64_t tokens, absl::Duration elapsed) {
  if (tokens == 0 || elapsed <= absl::ZeroDuration()) {
    return;
  }
  MutexLock lock(mutex_);
  Average(absl::ToDoubleSeconds(elapsed) / static_cast<double>(tokens),
          &recompute_seconds_per_token_);
}

Breaker::State Breaker::state() const {
  MutexLock lock(mutex_);
  return state_;
}

uint64_t Breaker::opened_count() const {
  MutexLock lock(mutex_);
  return opened_count_;
}

std::string_view BreakerStateName(Breaker::State state) {
  switch (state) {
    case Breaker::State::kClosed:
      return "closed";
    case Breaker::State::kOpen:
      return "open";
    case Breaker::State::kHalfOpen:
      return "half open";
  }
  return "closed";
}

}  // namespace cairn
