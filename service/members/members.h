// SPDX-License-Identifier: Apache-2.0
#pragma once
// The members of the cluster in a running daemon: a source, the roll, and the view that others
// read.
//
// The thread `members` looks at the clock once a second, for the grace and the guard. Sources have
// threads of their own.
//
// Thread-safety: Thread-safe. Start() and Stop() are Owned by one thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/members/member_source.h"
#include "service/members/roll.h"
#include "service/members/view.h"

namespace cairn {

class Members {
 public:
  struct Options {
    std::string cluster;
    ListedMember self;  // its name is not empty; the address: where others reach the peer port
    absl::Duration grace = absl::Seconds(120);
    uint64_t incarnation = 0;  // of this process
  };
  // `source` may be null. Then only calls of Take() bring members.
  Members(Options options, std::unique_ptr<MemberSource> source, const Clock& clock);
  ~Members() { Stop(); }

  // `changed` is called after each change of the view, without a lock, by the thread that changed
  // it. It may be empty.
  void Start(std::function<void()> changed);
  void Stop();

  // Never null. It has this daemon itself, also before the source has spoken.
  ViewPtr view() const;
  const std::string& cluster() const { return options_.cluster; }
  const std::string& self() const { return options_.self.name; }
  uint64_t incarnation() const { return options_.incarnation; }

  // Takes the complete set of members that the source sees.
  void Take(std::vector<ListedMember> listed);
  // A member answered Hello: it joins, or drains. Unknown names are ignored.
  void Meet(const Met& met) { Meet(std::span(&met, 1)); }
  // The same of several, with one new view: a view has all members, so that a thousand of them
  // would make a thousand views of a thousand members.
  void Meet(std::span<const Met> met);
  // A member cannot be one: of another cluster, of another version, or not the one that was
  // dialled.
  void Refuse(std::string_view name, std::string_view reason);
  // Ends graces that are over. The thread calls it.
  void Look();

  absl::Status source_state() const;
  // Since the source last spoke, or since the start.
  absl::Duration source_silence() const;
  // Since the member's state began.
  absl::Duration Age(const Member& member) const { return clock_.Now() - member.since; }
  // What an operator should know. Empty: nothing.
  std::string remark() const;
  void Report(MetricSink& sink) const;

 private:
  void Run();
  // Publishes the view if the roll has changed, and calls `changed_`.
  void Publish() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const std::unique_ptr<MemberSource> source_;
  const Clock& clock_;
  const absl::Time started_;
  std::function<void()> changed_;  // set before the threads start

  mutable Mutex mutex_;
  Roll roll_ ABSL_GUARDED_BY(mutex_);
  ViewPtr view_ ABSL_GUARDED_BY(mutex_);
  absl::Time spoke_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar wake_;
  Counter changes_, refused_sets_;
  std::thread thread_;
};

}  // namespace cairn
