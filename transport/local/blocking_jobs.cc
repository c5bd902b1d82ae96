// SPDX-License-Identifier: Apache-2.0
#include "transport/local/blocking_jobs.h"

#include <pthread.h>

#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace cairn::transport {

struct BlockingJobs::State {
  struct Waiting {
    uint64_t party = 0;
    Job job;
  };
  struct Party {
    int count = 0;  // jobs that wait or run
    int running = 0;
  };

  // Returns the first job whose party may use another thread.
  std::optional<Waiting> TakeOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (auto job = waiting.begin(); job != waiting.end(); ++job) {
      Party& party = parties.at(job->party);
      if (party.running < kThreadsPerParty) {
        ++party.running;
        std::optional<Waiting> taken(std::move(*job));
        waiting.erase(job);
        return taken;
      }
    }
    return std::nullopt;
  }

  void Finish(uint64_t party) {
    const MutexLock lock(mutex);
    const auto found = parties.find(party);
    --found->second.running;
    if (--found->second.count == 0) {
      parties.erase(found);
    }
    added.NotifyOne();  // the party may use another thread now
  }

  // The function of each thread.
  void RunAll() {
    while (true) {  // ends: Stop()
      std::optional<Waiting> next;
      {
        const MutexLock lock(mutex);
        while (!(next = TakeOne()).has_value()) {
          if (is_stopping) {
            --threads;
            ended.NotifyAll();
            return;
          }
          added.WaitUntil(mutex, absl::InfiniteFuture());
        }
      }
      next->job();
      next->job = nullptr;  // destroys the job's objects before the party gets the thread
      Finish(next->party);
    }
  }

  mutable Mutex mutex;
  CondVar added, ended;
  std::deque<Waiting> waiting ABSL_GUARDED_BY(mutex);
  std::map<uint64_t, Party> parties ABSL_GUARDED_BY(mutex);  // parties with jobs
  int threads ABSL_GUARDED_BY(mutex) = kThreads;
  bool is_stopping ABSL_GUARDED_BY(mutex) = false;
};

BlockingJobs::BlockingJobs() : state_(std::make_shared<State>()) {
  for (int i = 0; i < kThreads; ++i) {
    std::thread([state = state_] {
      pthread_setname_np(pthread_self(), "cairn-hello");
      state->RunAll();
    }).detach();
  }
}

void BlockingJobs::Run(uint64_t party, Job job) {
  const MutexLock lock(state_->mutex);
  ++state_->parties[party].count;
  state_->waiting.push_back({party, std::move(job)});
  state_->added.NotifyOne();
}

int BlockingJobs::count(uint64_t party) const {
  const MutexLock lock(state_->mutex);
  const auto found = state_->parties.find(party);
  return found == state_->parties.end() ? 0 : found->second.count;
}

void BlockingJobs::Stop(absl::Duration wait) {
  const absl::Time deadline = MonotonicNow() + wait;
  const MutexLock lock(state_->mutex);
  state_->is_stopping = true;
  state_->added.NotifyAll();
  while (state_->threads > 0) {  // ends: the deadline
    if (!state_->ended.WaitUntil(state_->mutex, deadline)) {
      break;
    }
  }
}

}  // namespace cairn::transport
