// SPDX-License-Identifier: Apache-2.0
#include "service/members/member_source.h"

#include <pthread.h>

#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

namespace cairn {

void PolledSource::Start(Sink sink) {
  CAIRN_CHECK(!thread_.joinable(), "a source is started once");
  sink_ = std::move(sink);
  thread_ = std::thread([this] { Run(); });
  ::pthread_setname_np(thread_.native_handle(), "member-source");
}

void PolledSource::Stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  wake_.NotifyAll();
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
  while (true) {  // ends: Stop()
    ReadOnce();
    const absl::Time next = MonotonicNow() + period_;
    const MutexLock lock(mutex_);
    while (!is_stopping_ && wake_.WaitUntil(mutex_, next)) {
    }
    if (is_stopping_) return;
  }
}

}  // namespace cairn
