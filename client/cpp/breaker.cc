// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/breaker.h"

#include <algorithm>

namespace cairn {
namespace {

// Weight of the newest measurement: about the last five count.
constexpr double kNewest = 0.3;

void Average(double measured, double* average) {
  *average = *average == 0 ? measured : *average + kNewest * (measured - *average);
}

}  // namespace

Breaker::Breaker(const BreakerOptions& options, const Clock& clock)
    : options_(options), clock_(clock), open_for_(options.open_min) {}

void Breaker::OpenLocked(bool is_again) {
  open_for_ = is_again ? std::min(open_for_ * 2, options_.open_max) : options_.open_min;
  state_ = State::kOpen;
  retry_at_ = clock_.Now() + open_for_;
  is_probing_ = false;
  failures_ = 0;
  slow_ = 0;
  ++opened_count_;
}

void Breaker::CloseLocked() {
  state_ = State::kClosed;
  is_probing_ = false;
  failures_ = 0;
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
  if (is_probing_ && now < probe_deadline_) {
    return false;
  }
  is_probing_ = true;
  probe_deadline_ = now + options_.probe_timeout;
  return true;
}

bool Breaker::Allow() {
  MutexLock lock(mutex_);
  return AllowLocked();
}

bool Breaker::IsFetchFasterLocked(uint64_t tokens, uint64_t wire_bytes) const {
  if (fetch_seconds_per_byte_ == 0 || recompute_seconds_per_token_ == 0) {
    return true;
  }
  return fetch_seconds_per_byte_ * static_cast<double>(wire_bytes) <=
         recompute_seconds_per_token_ * static_cast<double>(tokens);
}

bool Breaker::Advise(uint64_t tokens, uint64_t wire_bytes) {
  MutexLock lock(mutex_);
  if (state_ != State::kClosed) {
    return AllowLocked();
  }
  if (IsFetchFasterLocked(tokens, wire_bytes)) {
    slow_ = 0;
    was_slow_ = false;
    return true;
  }
  // Without fetches there is no measurement: after a while Open lets a probe through.
  if (++slow_ >= options_.slow_to_open) {
    OpenLocked(/*is_again=*/was_slow_);
    was_slow_ = true;
  }
  return false;
}

void Breaker::OnFetched(uint64_t wire_bytes, absl::Duration elapsed) {
  if (wire_bytes == 0) {
    return OnAnswered();
  }
  MutexLock lock(mutex_);
  const double measured = absl::ToDoubleSeconds(elapsed) / static_cast<double>(wire_bytes);
  failures_ = 0;
  if (state_ != State::kHalfOpen) {
    Average(measured, &fetch_seconds_per_byte_);
    return;
  }
  // The probe's own figure replaces an average from before the trouble.
  fetch_seconds_per_byte_ = measured;
  CloseLocked();
}

void Breaker::OnAnswered() {
  MutexLock lock(mutex_);
  failures_ = 0;
  if (state_ == State::kHalfOpen) {
    is_probing_ = false;  // an answer without bytes proves no speed: the next call may probe
  }
}

void Breaker::OnFailed() {
  MutexLock lock(mutex_);
  if (state_ == State::kHalfOpen) {
    OpenLocked(/*is_again=*/true);
  } else if (state_ == State::kClosed && ++failures_ >= options_.failures_to_open) {
    OpenLocked(/*is_again=*/false);
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
