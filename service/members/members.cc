// SPDX-License-Identifier: Apache-2.0
#include "service/members/members.h"

#include <pthread.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"

namespace cairn {
namespace {

constexpr absl::Duration kLookPeriod = absl::Seconds(1);

}  // namespace

Members::Members(Options options, std::unique_ptr<MemberSource> source, const Clock& clock)
    : options_(std::move(options)),
      source_(std::move(source)),
      clock_(clock),
      started_(clock.Now()),
      roll_(options_.self, options_.incarnation, options_.grace, started_),
      view_(std::make_shared<const View>(roll_.MakeView())) {
  CAIRN_CHECK(!options_.self.name.empty(), "a member has a name");
}

void Members::Start(std::function<void()> changed) {
  changed_ = std::move(changed);
  thread_ = std::thread([this] { Run(); });
  ::pthread_setname_np(thread_.native_handle(), "members");
  if (source_ != nullptr) {
    source_->Start([this](std::vector<ListedMember> listed) { Take(std::move(listed)); });
  }
}

void Members::Stop() {
  if (source_ != nullptr) source_->Stop();
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void Members::Run() {
  while (true) {  // ends: Stop()
    Look();
    const absl::Time next = MonotonicNow() + kLookPeriod;
    const MutexLock lock(mutex_);
    while (!is_stopping_ && wake_.WaitUntil(mutex_, next)) {
    }
    if (is_stopping_) return;
  }
}

ViewPtr Members::view() const {
  const MutexLock lock(mutex_);
  return view_;
}

void Members::Publish() {
  bool has_guard_begun = false;
  {
    const MutexLock lock(mutex_);
    if (roll_.generation() == view_->generation) return;
    auto view = std::make_shared<const View>(roll_.MakeView());
    has_guard_begun = view->is_guarded && !view_->is_guarded;
    view_ = std::move(view);
  }
  changes_.Add();
  if (has_guard_begun) {
    LogWarn("members",
            "the source took away more than a third of the members: they stay for ten minutes");
  }
  if (changed_) changed_();
}

void Members::Take(std::vector<ListedMember> listed) {
  absl::Status taken;
  bool is_lost = false;
  {
    const MutexLock lock(mutex_);
    const bool was_listed = spoke_ == absl::InfinitePast() || roll_.is_self_listed();
    spoke_ = clock_.Now();
    taken = roll_.Take(listed, spoke_);
    is_lost = taken.ok() && was_listed && !roll_.is_self_listed();
  }
  if (!taken.ok()) {
    refused_sets_.Add();
    LogWarn("members", "the source's list is refused: the members known stay", {{"error", taken}});
    return;
  }
  if (is_lost) {
    LogWarn("members", "the source does not list this daemon: others cannot find it",
            {{"name", self()}});
  }
  Publish();
}

void Members::Meet(std::span<const Met> met) {
  {
    const MutexLock lock(mutex_);
    for (const Met& one : met) roll_.Meet(one, clock_.Now());
  }
  Publish();
}

void Members::Refuse(std::string_view name, std::string_view reason) {
  bool is_new = false;
  {
    const MutexLock lock(mutex_);
    const uint64_t before = roll_.generation();
    roll_.Refuse(name, reason, clock_.Now());
    is_new = roll_.generation() != before;
  }
  if (is_new) LogWarn("members", "refused as a member", {{"name", name}, {"reason", reason}});
  Publish();
}

void Members::Look() {
  {
    const MutexLock lock(mutex_);
    roll_.Expire(clock_.Now());
  }
  Publish();
}

absl::Status Members::source_state() const {
  return source_ == nullptr ? absl::OkStatus() : source_->state();
}

absl::Duration Members::source_silence() const {
  const MutexLock lock(mutex_);
  return clock_.Now() - (spoke_ == absl::InfinitePast() ? started_ : spoke_);
}

std::string Members::remark() const {
  const ViewPtr now = view();
  std::string text;
  if (const absl::Status state = source_state(); !state.ok()) {
    absl::StrAppend(&text, "members: the source cannot be read: ", state.message(),
                    "; the members known stay");
  }
  if (now->is_guarded) {
    absl::StrAppend(&text, text.empty() ? "" : "\n",
                    "members: the source took away more than a third of the members; they stay for "
                    "ten minutes");
  }
  return text;
}

void Members::Report(MetricSink& sink) const {
  const ViewPtr now = view();
  std::array<uint64_t, kMemberStates> counts{};
  for (const Member& member : now->members) ++counts[static_cast<size_t>(member.state)];
  for (size_t i = 0; i < kMemberStates; ++i) {
    const MetricLabel label{"state", Name(static_cast<MemberState>(i))};
    sink.AddGauge("cairn_members", "Members of the cluster by state, this daemon included.",
                  {&label, 1}, static_cast<double>(counts[i]));
  }
  sink.AddGauge("cairn_member_source_seconds",
                "Time since the source of the member list last answered.", {},
                absl::ToDoubleSeconds(source_silence()));
  sink.AddGauge("cairn_members_guarded_state",
                "1 while the source lacks more than a third of the members, and they are kept.", {},
                now->is_guarded ? 1 : 0);
  sink.AddCounter("cairn_view_changes_total", "Changes of the view of the members.", {},
                  changes_.Value());
  sink.AddCounter("cairn_member_lists_refused_total",
                  "Lists of the source that were refused as invalid.", {}, refused_sets_.Value());
}

}  // namespace cairn
