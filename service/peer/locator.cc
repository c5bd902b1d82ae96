// SPDX-License-Identifier: Apache-2.0
#include "service/peer/locator.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "service/peer/homes.h"
#include "service/peer/peer_self.h"

namespace cairn {

Locator::Locator(Parts parts, Options options) : parts_(std::move(parts)), options_(options) {
  LookAtView(*parts_.members.view());
}

void Locator::LookAtView(const View& view) {
  const MutexLock lock(mutex_);
  if (std::exchange(generation_, view.generation) == view.generation) return;
  std::erase_if(processes_, [&view](const auto& one) { return view.Find(one.first) == nullptr; });
  for (const Member& member : view.members) {
    Process& process = processes_[member.number];
    if (process.incarnation == member.incarnation) continue;
    process = {member.incarnation, MonotonicNow()};
  }
}

bool Locator::IsYoung(uint32_t number) const {
  const MutexLock lock(mutex_);
  const auto found = processes_.find(number);
  return found == processes_.end() || MonotonicNow() - found->second.since < options_.young;
}

// --- One question --------------------------------------------------------------------------------

class Locator::Question {
 public:
  Question(const Locator& locator, ViewPtr view, const proto::Fingerprint& space,
           std::span<const proto::BlockKey> keys, size_t first)
      : locator_(locator), parts_(locator.parts_), view_(std::move(view)) {
    const Homes homes(*view_);
    for (size_t i = first; i < keys.size(); ++i) {
      const size_t run_first = proto::RunFirst(i);
      if (runs_.empty() || run_first == i) {
        const Homes::Two two = homes.Of(proto::RunOf(keys[run_first]));
        runs_.push_back({.first = i - first, .homes = two});
      }
      ++runs_.back().count;
      names_.push_back(proto::NameLocation(space, keys[i]));
    }
    located_.holders.resize(names_.size());
  }
  ~Question() {
    for (Asked& asked : asked_) asked.context.TryCancel();
    Drain(queue_);
  }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;

  Located Run(absl::Time deadline) {
    deadline_ = deadline;
    Wanted wanted;
    for (Part& run : runs_) {
      Want(wanted, run, run.homes.first);
      if (locator_.IsYoung(run.homes.first)) WantSecond(wanted, run);
    }
    Ask(wanted);
    const absl::Duration patience = locator_.options_.patience;
    const absl::Time late = MonotonicNow() + patience, later = late + 3 * patience;
    for (absl::Time now = MonotonicNow(); now < deadline && !IsOver(now >= later);
         now = MonotonicNow()) {
      if (now >= late) AskSecond();
      Await(std::min(deadline, now < late ? late : now < later ? later : deadline));
    }
    Sort();
    return std::move(located_);
  }

 private:
  struct Part {                   // a run, or its end
    size_t first = 0, count = 0;  // in names_
    Homes::Two homes;
    int pending = 0;  // calls
    bool has_answer = false;
    bool is_answered = false;  // by a home that is not young
    bool has_second = false;   // it was asked
  };
  // Runs by home.
  using Wanted = absl::flat_hash_map<uint32_t, std::vector<Part*>>;
  struct Asked {  // of a home
    uint32_t home = 0;
    std::vector<Part*> runs;
    std::shared_ptr<PeerStub> stub;
    grpc::ClientContext context;
    v1::LocateReply reply;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::LocateReply>> call;
  };

  static void Want(Wanted& wanted, Part& run, uint32_t home) {
    if (home != 0) wanted[home].push_back(&run);
  }
  static void WantSecond(Wanted& wanted, Part& run) {
    if (!std::exchange(run.has_second, true)) Want(wanted, run, run.homes.second);
  }
  // `is_late`: what a young home has said must do.
  bool IsOver(bool is_late) const {
    return std::ranges::all_of(runs_, [is_late](const Part& run) {
      return run.is_answered || run.pending == 0 || (is_late && run.has_answer);
    });
  }
  void AskSecond() {
    Wanted wanted;
    for (Part& run : runs_) {
      if (!run.is_answered) WantSecond(wanted, run);
    }
    Ask(wanted);
  }

  void Ask(const Wanted& wanted) {
    for (const auto& [number, runs] : wanted) {
      const Member& home = *view_->Find(number);
      std::vector<proto::LocationName> names;
      for (Part* run : runs) {
        const auto begin = names_.begin() + static_cast<ptrdiff_t>(run->first);
        names.insert(names.end(), begin, begin + static_cast<ptrdiff_t>(run->count));
      }
      if (home.is_self) {
        Merge(FindIn(parts_.table, *view_, names), runs, number);
        continue;
      }
      v1::LocateRequest request;
      *request.mutable_self() = SelfOf(parts_.members, parts_.daemon_version);
      request.set_names(PackNames(names));
      Asked& asked = asked_.emplace_back();
      asked.home = number;
      asked.runs = runs;
      for (Part* run : runs) ++run->pending;
      asked.stub = parts_.channels.To(home);
      asked.context.set_deadline(absl::ToChronoTime(absl::Now() + (deadline_ - MonotonicNow())));
      asked.call = asked.stub->AsyncLocate(&asked.context, request, &queue_);
      asked.call->Finish(&asked.reply, &asked.status, &asked);
    }
  }

  // Waits for one answer.
  void Await(absl::Time until) {
    const auto* const over = static_cast<Asked*>(NextOver(queue_, until));
    if (over == nullptr) return;
    const Asked& asked = *over;
    size_t count = 0;
    for (Part* run : asked.runs) {
      --run->pending;
      count += run->count;
    }
    absl::StatusOr<Located> answer =
        asked.status.ok() ? ParseLocated(asked.reply, count) : absl::UnavailableError("no answer");
    if (answer.ok()) return Merge(*answer, asked.runs, asked.home);
    Wanted instead;
    for (Part* run : asked.runs) {
      if (!run->is_answered) WantSecond(instead, *run);
    }
    Ask(instead);
  }

  void Merge(const Located& answer, const std::vector<Part*>& runs, uint32_t home) {
    std::vector<uint16_t> indices;  // of the answer's members here
    for (const Located::OneMember& member : answer.members) indices.push_back(IndexOf(member));
    const bool is_young = locator_.IsYoung(home);
    size_t next = 0;
    for (Part* run : runs) {
      run->has_answer = true;
      run->is_answered = run->is_answered || !is_young;
      for (size_t i = run->first; i < run->first + run->count; ++i, ++next) {
        HolderList& list = located_.holders[i];
        for (const uint16_t holder : answer.holders[next]) {
          const uint16_t index = indices[holder];
          const bool is_known = std::ranges::find(list, index) != list.end();
          if (index != kLeftOut && !is_known && list.size() < kHoldersMax) list.push_back(index);
        }
      }
    }
  }

  uint16_t IndexOf(const Located::OneMember& holder) {
    const Member* member = view_->Find(holder.name);
    if (member == nullptr || member->is_self || !member->counts()) return kLeftOut;
    const auto found = std::ranges::find(located_.members, holder);
    const auto index = static_cast<uint16_t>(found - located_.members.begin());
    if (index == located_.members.size()) located_.members.push_back(holder);
    return index;
  }

  void Sort() {
    std::vector<bool> has_joined;
    for (const Located::OneMember& member : located_.members) {
      has_joined.push_back(view_->Find(member.name)->state == MemberState::kJoined);
    }
    for (HolderList& list : located_.holders) {
      std::ranges::stable_partition(list, [&](uint16_t index) { return has_joined[index]; });
    }
  }

  static constexpr uint16_t kLeftOut = UINT16_MAX;
  const Locator& locator_;
  const Parts& parts_;
  const ViewPtr view_;
  absl::Time deadline_;
  std::vector<proto::LocationName> names_;
  std::vector<Part> runs_;
  Located located_;
  std::list<Asked> asked_;
  grpc::CompletionQueue queue_;
};

Located Locator::Locate(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys,
                        size_t first, absl::Time deadline) {
  CAIRN_CHECK(keys.size() <= kNamesPerLocateMax && first <= keys.size());
  ViewPtr view = parts_.members.view();
  LookAtView(*view);
  return Question(*this, std::move(view), space, keys, first).Run(deadline);
}

}  // namespace cairn
