// SPDX-License-Identifier: Apache-2.0
#include "service/peer/offers.h"

#include <grpcpp/grpcpp.h>
#include <pthread.h>

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "client/cpp/rpc.h"
#include "service/peer/peer_self.h"

namespace cairn {
namespace {

constexpr absl::Duration kGreetTime = absl::Seconds(2);
constexpr absl::Duration kLook = absl::Milliseconds(100);  // for Stop()
constexpr int kOfferAnswerBytesMax = 64 << 10;

}  // namespace

void ReportOffers(MetricSink& sink, std::string_view side, std::string_view outcome,
                  const Counter& count) {
  const MetricLabel labels[] = {{"outcome", outcome}, {"side", side}};
  sink.AddCounter("cairn_offers_total",
                  "Blocks that draining members offered, by side and by what became of them.",
                  labels, count.Value());
}

// The state of the thread.
class Offers::Loop {
 public:
  Loop(const Offers& offers, OfferPlan& plan, ViewPtr view, absl::Time deadline)
      : offers_(offers),
        parts_(offers.parts_),
        plan_(plan),
        view_(std::move(view)),
        deadline_(deadline) {}
  ~Loop() {
    for (Running& running : running_) running.context.TryCancel();
    Drain(queue_);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void Run() {
    while (!plan_.is_over() && MonotonicNow() < deadline_ &&
           !offers_.is_stopping_.load(std::memory_order_relaxed)) {
      for (const uint32_t member : plan_.ToAdmit()) {
        if (!lines_.contains(member) && HasRoom()) Greet(member);
      }
      for (const uint32_t member : plan_.Ready()) {
        if (HasRoom()) Offer(member);
      }
      TakeAnswer();
    }
  }

 private:
  // The certificate that a connection has shown. gRPC's threads set it.
  struct Shown {
    Mutex mutex;
    std::optional<PeerIdentity> identity ABSL_GUARDED_BY(mutex);
  };
  struct Line {  // to a member
    std::shared_ptr<Shown> shown;
    std::unique_ptr<PeerStub> stub;
  };
  struct Running {
    uint32_t member = 0;
    bool is_greeting = false;
    size_t count = 0;  // offered blocks
    grpc::ClientContext context;
    grpc::Status status;
    v1::HelloReply hello;
    v1::OfferReply answer;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::HelloReply>> greeting;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::OfferReply>> offer;
    std::list<Running>::iterator place;
  };

  bool HasRoom() const { return running_.size() < offers_.options_.calls_max; }

  Running& Begin(uint32_t member, absl::Duration time) {
    Running& running = running_.emplace_front();
    running.place = running_.begin();
    running.member = member;
    running.context.set_deadline(
        absl::ToChronoTime(absl::Now() + std::min(time, deadline_ - MonotonicNow())));
    return running;
  }

  void Greet(uint32_t member) {
    Line& line = lines_[member];
    line.shown = std::make_shared<Shown>();
    PeerDial dial = parts_.dial;
    // Nobody else may be at the other end afterwards.
    dial.may_be_member = [shown = line.shown,
                          check = dial.may_be_member](const PeerIdentity& identity) {
      if (const absl::Status status = check(identity); !status.ok()) return status;
      const MutexLock lock(shown->mutex);
      if (!shown->identity.has_value()) shown->identity = identity;
      return *shown->identity == identity ? absl::OkStatus()
                                          : absl::PermissionDeniedError("it is another one now");
    };
    line.stub = OpenPeer(view_->Find(member)->address, dial, kOfferAnswerBytesMax);
    Running& running = Begin(member, kGreetTime);
    running.is_greeting = true;
    v1::HelloRequest request;
    *request.mutable_self() = SelfOf(parts_.members, parts_.daemon_version);
    running.greeting = line.stub->AsyncHello(&running.context, request, &queue_);
    running.greeting->Finish(&running.hello, &running.status, &running);
  }

  void Offer(uint32_t member) {
    const BlockOffer offer = plan_.Next(member);
    v1::OfferRequest request = RequestOf(offer);
    *request.mutable_self() = SelfOf(parts_.members, parts_.daemon_version);
    Running& running = Begin(member, offers_.options_.call_time);
    running.count = offer.keys.size();
    running.offer = lines_.at(member).stub->AsyncOffer(&running.context, request, &queue_);
    running.offer->Finish(&running.answer, &running.status, &running);
  }

  void TakeAnswer() {
    auto* const running =
        static_cast<Running*>(NextOver(queue_, std::min(deadline_, MonotonicNow() + kLook)));
    if (running == nullptr) return;
    const absl::Status taken = running->is_greeting ? TakeHello(*running) : TakeOffer(*running);
    if (!taken.ok()) {
      LogInfo("peer", "a member takes no blocks of this daemon",
              {{"name", view_->Find(running->member)->name}, {"reason", taken}});
      plan_.Leave(running->member);
    }
    running_.erase(running->place);
  }

  absl::Status TakeHello(const Running& running) {
    if (!running.status.ok()) return FromGrpc(running.status);
    const Member& member = *view_->Find(running.member);
    const v1::PeerSelf& self = running.hello.self();
    if (absl::Status status = CheckSelf(self, parts_.members.cluster()); !status.ok()) {
      return status;
    }
    if (self.name() != member.name) return absl::FailedPreconditionError("it has another name");
    if (self.draining()) return absl::UnavailableError("it drains, too");
    Shown& shown = *lines_.at(running.member).shown;
    PeerIdentity identity;
    {
      const MutexLock lock(shown.mutex);
      if (shown.identity.has_value()) identity = *shown.identity;
    }
    plan_.Admit(running.member, [this, &identity](std::string_view tenant) {
      return parts_.may_see(identity, tenant);
    });
    return absl::OkStatus();
  }

  absl::Status TakeOffer(const Running& running) {
    if (!running.status.ok()) return FromGrpc(running.status);
    const auto answers = ParseAnswers(running.answer, running.count);
    if (!answers.ok()) return answers.status();
    plan_.Done(running.member, *answers);
    return absl::OkStatus();
  }

  const Offers& offers_;
  const Parts& parts_;
  OfferPlan& plan_;
  const ViewPtr view_;
  const absl::Time deadline_;
  std::map<uint32_t, Line> lines_;
  std::list<Running> running_;
  grpc::CompletionQueue queue_;
};

void Offers::Begin(absl::Time deadline) {
  const MutexLock lock(mutex_);
  if (std::exchange(has_begun_, true)) return;
  if (MonotonicNow() >= deadline) {
    parts_.over();
    is_over_.store(true, std::memory_order_relaxed);
    return;
  }
  thread_ = std::thread([this, deadline] { Run(deadline); });
  ::pthread_setname_np(thread_.native_handle(), "offers");
}

void Offers::Run(absl::Time deadline) {
  const absl::Time began = MonotonicNow();
  const ViewPtr view = parts_.members.view();
  OfferPlan plan(parts_.collect(), *view, options_.plan);
  Loop(*this, plan, view, deadline).Run();
  const size_t open = plan.block_count() - plan.taken_count() - plan.had_count();
  taken_.Add(plan.taken_count());
  had_.Add(plan.had_count());
  open_.Add(open);
  LogInfo("peer",
          absl::StrCat("offered ", plan.block_count(), " blocks, ", plan.taken_count(),
                       " taken in ", absl::ToDoubleSeconds(MonotonicNow() - began), " s"),
          {{"had", plan.had_count()}, {"not_taken", open}, {"is_late", !plan.is_over()}});
  parts_.over();
  is_over_.store(true, std::memory_order_relaxed);
}

void Offers::Stop() {
  is_stopping_.store(true, std::memory_order_relaxed);
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    has_begun_ = true;
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

void Offers::Report(MetricSink& sink) const {
  ReportOffers(sink, "given", "taken", taken_);
  ReportOffers(sink, "given", "had", had_);
  ReportOffers(sink, "given", "open", open_);
}

}  // namespace cairn
