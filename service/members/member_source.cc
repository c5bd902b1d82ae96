// SPDX-License-Identifier: Apache-2.0
#include "service/members/member_source.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random_bytes.h"

namespace cairn {

void StopSignal::Set() {
  {
    const MutexLock lock(mutex_);
    is_set_ = true;
  }
  wake_.NotifyAll();
}

bool StopSignal::is_set() const {
  const MutexLock lock(mutex_);
  return is_set_;
}

bool StopSignal::Wait(absl::Duration time) {
  const absl::Time until = MonotonicNow() + time;
  const MutexLock lock(mutex_);
  while (!is_set_ && wake_.WaitUntil(mutex_, until)) {
  }
  return !is_set_;
}

absl::Duration Backoff::Next() {
  const double part = 0.5 + static_cast<double>(RandomBytes<1>()[0]) / 512;
  const absl::Duration wait = next_ * part;
  next_ = std::min(next_ * 2, max_);
  return wait;
}

void PolledSource::Start(Sink sink) {
  CAIRN_CHECK(!thread_.joinable(), "a source is started once");
  sink_ = std::move(sink);
  thread_ = std::thread([this] { Run(); });
  ::pthread_setname_np(thread_.native_handle(), "member-source");
}

void PolledSource::Stop() {
  stop_.Set();
  if (thread_.joinable()) thread_.join();
}

absl::Status PolledSource::state() const {
  const MutexLock lock(mutex_);
  return state_;
}

void PolledSource::ReadOnce() {
  absl::StatusOr<std::vector<ListedMember>> listed = Read();
  absl::Status before;
  {
    const MutexLock lock(mutex_);
    before = std::exchange(state_, listed.status());
  }
  if (listed.ok()) {
    sink_(*std::move(listed));
  } else if (before != listed.status()) {
    LogWarn("members", "the source cannot be read: the members known stay",
            {{"error", listed.status()}});
  }
}

void PolledSource::Run() {
  do {
    ReadOnce();
  } while (stop_.Wait(period_));
}

}  // namespace cairn
