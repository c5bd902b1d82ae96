// SPDX-License-Identifier: Apache-2.0
#include "service/peer/announcer.h"

#include <grpcpp/grpcpp.h>
#include <pthread.h>

#include <algorithm>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "service/peer/announce_plan.h"
#include "service/peer/located.h"
#include "service/peer/peer_self.h"

namespace cairn {
namespace {

constexpr absl::Duration kAnnounceTimeout = absl::Seconds(2);
constexpr size_t kChangesPerRead = 256;
constexpr int kReadsPerTick = 64;  // and pages

}  // namespace

// The state of the thread.
class Announcer::Loop {
 public:
  explicit Loop(Announcer& announcer)
      : announcer_(announcer), parts_(announcer.parts_), plan_(AnnouncePlan::Options()) {
    cursor_ = parts_.blocks.next();
  }

  void Run() {
    while (!announcer_.is_stopping_.load(std::memory_order_relaxed)) {
      const absl::Time now = MonotonicNow();
      LookAtView(now);
      Feed(now);
      Send(now);
      announcer_.lag_us_.Set(absl::ToInt64Microseconds(plan_.Lag(now)));
      announcer_.resets_.Set(static_cast<int64_t>(plan_.resets()));
      Wait(now);
    }
    for (Running& running : running_) running.context.TryCancel();
    Drain(queue_);
  }

 private:
  struct Running {
    uint32_t home = 0;
    uint64_t id = 0;
    std::shared_ptr<PeerStub> stub;
    grpc::ClientContext context;
    v1::AnnounceReply reply;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::AnnounceReply>> call;
    std::list<Running>::iterator place;
  };

  void LookAtView(absl::Time now) {
    ViewPtr view = parts_.members.view();
    if (view == view_) return;
    view_ = std::move(view);
    parts_.channels.Keep(*view_);
    plan_.SetView(*view_, now);
  }

  void Feed(absl::Time now) {
    if (plan_.home_count() == 0) {
      cursor_ = parts_.blocks.next();
      return;
    }
    for (int i = 0; i < kReadsPerTick && parts_.blocks.next() != cursor_ && plan_.has_room(); ++i) {
      changes_.clear();
      if (parts_.blocks.Read(&cursor_, kChangesPerRead, &changes_)) {
        plan_.Add(changes_, now);
      } else {
        plan_.Lose(now);
      }
    }
    for (int i = 0; i < kReadsPerTick; ++i) {
      const std::optional<uint64_t> from = plan_.WalkFrom(now);
      if (!from.has_value()) return;
      changes_.clear();
      uint64_t next = *from;
      const bool has_more = parts_.blocks.Walk(&next, &changes_);
      plan_.AddPage(changes_, next, !has_more, now);
    }
  }

  void Send(absl::Time now) {
    for (const AnnounceBatch* batch : plan_.Due(now)) {
      const Member* home = view_->Find(batch->home);
      if (home->is_self) {
        own_.push_back(*batch);
      } else {
        Call(*home, *batch);
      }
    }
    for (const AnnounceBatch& batch : std::exchange(own_, {})) {
      const absl::Status taken = parts_.announced.Take(
          *view_->Find(batch.home),
          {batch.epoch, batch.first_sequence, batch.is_reset, batch.stored, batch.removed});
      using Outcome = AnnouncePlan::Outcome;
      plan_.Done(batch.home, batch.id,
                 taken.ok()                          ? Outcome::kTaken
                 : absl::IsFailedPrecondition(taken) ? Outcome::kRefused
                                                     : Outcome::kFailed,
                 now);
    }
  }

  void Call(const Member& home, const AnnounceBatch& batch) {
    v1::AnnounceRequest request;
    *request.mutable_self() = SelfOf(parts_.members, parts_.daemon_version);
    request.set_epoch(batch.epoch);
    request.set_first_sequence(batch.first_sequence);
    request.set_reset(batch.is_reset);
    request.set_stored(PackNames(batch.stored));
    request.set_removed(PackNames(batch.removed));
    Running& running = running_.emplace_front();
    running.place = running_.begin();
    running.home = batch.home;
    running.id = batch.id;
    running.stub = parts_.channels.To(home);
    running.context.set_deadline(absl::ToChronoTime(absl::Now() + kAnnounceTimeout));
    running.call = running.stub->AsyncAnnounce(&running.context, request, &queue_);
    running.call->Finish(&running.reply, &running.status, &running);
  }

  void Wait(absl::Time now) {
    const absl::Time until = now + plan_.Tick(now);
    if (!running_.empty()) return TakeAnswers(until);
    parts_.blocks.Await(plan_.IsIdle(now) ? std::optional(cursor_) : std::nullopt, until);
  }

  // Takes the answers that are there. Waits for the first one until `deadline`.
  void TakeAnswers(absl::Time deadline) {
    // Ends: there are as many answers as calls.
    while (auto* const running = static_cast<Running*>(NextOver(queue_, deadline))) {
      deadline = absl::InfinitePast();
      using Outcome = AnnouncePlan::Outcome;
      const grpc::StatusCode code = running->status.error_code();
      const Outcome outcome = code == grpc::StatusCode::OK                    ? Outcome::kTaken
                              : code == grpc::StatusCode::FAILED_PRECONDITION ? Outcome::kRefused
                                                                              : Outcome::kFailed;
      plan_.Done(running->home, running->id, outcome, MonotonicNow());
      running_.erase(running->place);
    }
  }

  Announcer& announcer_;
  const Parts& parts_;
  AnnouncePlan plan_;
  ViewPtr view_;
  uint64_t cursor_ = 0;  // in the changes of blocks
  std::vector<BlockChange> changes_;
  std::vector<AnnounceBatch> own_;
  std::list<Running> running_;
  grpc::CompletionQueue queue_;
};

void Announcer::Start() {
  thread_ = std::thread([this] { Loop(*this).Run(); });
  ::pthread_setname_np(thread_.native_handle(), "announcer");
}

void Announcer::Stop() {
  is_stopping_.store(true, std::memory_order_relaxed);
  Wake();
  if (thread_.joinable()) thread_.join();
}

void Announcer::Report(MetricSink& sink) const {
  sink.AddGauge("cairn_announce_lag_seconds",
                "The longest time for which a home lacks something that this daemon has to tell "
                "it.",
                {}, static_cast<double>(lag_us_.Value()) / 1e6);
  sink.AddCounter("cairn_announce_resets_total",
                  "Times that this daemon began to tell a home everything anew.", {},
                  static_cast<uint64_t>(resets_.Value()));
}

}  // namespace cairn
