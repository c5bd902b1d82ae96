// SPDX-License-Identifier: Apache-2.0
#include "service/front/freed_calls.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/text.h"

namespace cairn {
namespace {

// The longest single wait. New calls may have earlier deadlines, and the daemon may stop.
constexpr absl::Duration kStep = absl::Milliseconds(100);

absl::Status NotYetGone(absl::StatusCode code, std::string_view why) {
  return absl::Status(code,
                      absl::StrCat(ToAbsl(why), ": done, but a restart may bring back what was"));
}

}  // namespace

FreedCalls::FreedCalls(Tiers& tiers)
    : tiers_(tiers),
      has_lasting_(std::any_of(tiers.all().begin(), tiers.all().end(),
                               [](const CopyTier* tier) { return tier->traits().is_lasting; })) {
  if (has_lasting_) {
    thread_ = std::thread([this] { Run(); });
  }
}

void FreedCalls::Await(absl::Time deadline, Done done) {
  absl::Status status;
  if (has_lasting_) {
    const MutexLock lock(mutex_);
    if (!is_stopping_) {
      waiting_.push_back({deadline, std::move(done)});
      came_.NotifyOne();
      return;
    }
    status = NotYetGone(absl::StatusCode::kUnavailable, "the daemon is stopping");
  }
  std::move(done)(std::move(status));
}

void FreedCalls::AwaitSome(std::vector<Waiting>& waiting) {
  const absl::Time now = MonotonicNow();
  absl::Time until = now + kStep;
  for (const Waiting& call : waiting) {
    until = std::min(until, call.deadline);
  }
  const bool are_gone = tiers_.AwaitFreed(until);
  // If the wait ended early, a device has failed.
  const bool is_out = !are_gone && MonotonicNow() < until;
  std::vector<Waiting> left;
  for (Waiting& call : waiting) {
    if (are_gone) {
      std::move(call.done)(absl::OkStatus());
    } else if (is_out) {
      std::move(call.done)(NotYetGone(absl::StatusCode::kUnavailable, "a device is out"));
    } else if (MonotonicNow() >= call.deadline) {
      std::move(call.done)(NotYetGone(absl::StatusCode::kDeadlineExceeded, "the disk is late"));
    } else {
      left.push_back(std::move(call));
    }
  }
  waiting.swap(left);
}

void FreedCalls::Run() {
  pthread_setname_np(pthread_self(), "freed");
  std::vector<Waiting> waiting;
  for (;;) {
    {
      const MutexLock lock(mutex_);
      while (waiting.empty() && waiting_.empty() && !is_stopping_) {
        came_.WaitUntil(mutex_, absl::InfiniteFuture());
      }
      std::move(waiting_.begin(), waiting_.end(), std::back_inserter(waiting));
      waiting_.clear();
      if (is_stopping_) {
        break;
      }
    }
    AwaitSome(waiting);
  }
  for (Waiting& call : waiting) {
    std::move(call.done)(NotYetGone(absl::StatusCode::kUnavailable, "the daemon is stopping"));
  }
}

void FreedCalls::Stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  came_.NotifyAll();
  if (thread_.joinable()) {
    thread_.join();
  }
}

}  // namespace cairn
