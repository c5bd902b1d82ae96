// SPDX-License-Identifier: Apache-2.0
#include "service/peer/hellos.h"

#include <grpcpp/grpcpp.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random_bytes.h"
#include "service/limits.h"
#include "service/peer/peer_channels.h"
#include "service/peer/peer_self.h"

namespace cairn {
namespace {

constexpr size_t kAtOnceMax = 64;
constexpr int kAnswerBytesMax =
    (64 << 10) +
    static_cast<int>(std::max(limits::kGenerationListBytesMax, limits::kPolicyListBytesMax));
// Views differ for a moment after each change.
constexpr absl::Duration kDiffersTime = absl::Minutes(1);

// Between three quarters and all of `time`, so that members do not call in step.
absl::Duration Spread(absl::Duration time) {
  return time * (0.75 + static_cast<double>(RandomBytes<1>()[0]) / 1024);
}

bool IsRefusal(grpc::StatusCode code) {
  return code == grpc::StatusCode::PERMISSION_DENIED ||
         code == grpc::StatusCode::FAILED_PRECONDITION ||
         code == grpc::StatusCode::ALREADY_EXISTS || code == grpc::StatusCode::UNIMPLEMENTED;
}

}  // namespace

// The identity in a server's certificate. The verifier of a channel sets it, on threads of gRPC.
struct Hellos::ServerName {
  Mutex mutex;
  std::string name ABSL_GUARDED_BY(mutex);
  PeerIdentity identity ABSL_GUARDED_BY(mutex);

  PeerIdentity Identity() {
    const MutexLock lock(mutex);
    return identity;
  }
};

struct Hellos::Line {
  std::string name;  // in the view
  std::string address;
  bool has_name = true;  // the source gave the name
  std::unique_ptr<PeerStub> stub;
  std::shared_ptr<ServerName> server = std::make_shared<ServerName>();
  uint64_t tls_generation = 0;
  absl::Time next = absl::InfinitePast();
  absl::Time greeted = absl::InfinitePast();
  absl::Duration retry;
  std::string failure;                                // logged last; empty: it answered
  absl::Time differs_since = absl::InfiniteFuture();  // its view
  // Of generations: the hash of the list that was taken from it, and whether the next greeting has
  // this daemon's list. It is told once while the hashes of both sides stay the same.
  uint64_t known = 0;
  bool tells = false;
  std::pair<uint64_t, uint64_t> told = {};
  // Of policies, likewise.
  bool tells_policies = false;
  std::pair<uint64_t, uint64_t> told_policies = {};
};

struct Hellos::Running {
  grpc::ClientContext context;
  bool is_hello = true;  // otherwise TellPolicies
  v1::HelloReply reply;
  v1::TellPoliciesReply policies;
  grpc::Status status;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::HelloReply>> call;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::TellPoliciesReply>> policies_call;
};

Hellos::Hellos(Members& members, Options options)
    : members_(members), options_(std::move(options)) {}
Hellos::~Hellos() { Stop(); }

void Hellos::Start() {
  thread_ = std::thread([this] { Run(); });
  ::pthread_setname_np(thread_.native_handle(), "member-hello");
}

void Hellos::Stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    for (grpc::ClientContext* context : running_) context->TryCancel();
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void Hellos::Add(std::string_view name, bool is_all) {
  {
    const MutexLock lock(mutex_);
    if (!name.empty()) {
      // One that waits already wakes nobody: a flood costs no more than this.
      if (news_.names.size() >= kMembersMax || !news_.names.emplace(name).second) return;
    }
    news_.is_woken = true;
    news_.is_all = news_.is_all || is_all;
  }
  wake_.NotifyAll();
}

void Hellos::Run() {
  News news;
  do {  // until Stop()
    Call(Due(*members_.view(), news));
  } while (Wait(&news));
}

bool Hellos::Wait(News* news) {
  absl::Time next = MonotonicNow() + options_.retry_min;  // the view may have changed
  uint64_t differing = 0;
  for (const auto& [name, line] : lines_) {
    next = std::min(next, line->next);
    differing += MonotonicNow() - line->differs_since >= kDiffersTime ? 1 : 0;
  }
  const MutexLock lock(mutex_);
  differing_ = differing;
  while (!is_stopping_ && !news_.is_woken && wake_.WaitUntil(mutex_, next)) {
  }
  *news = news_;
  news_.is_woken = news_.is_all = false;
  return !is_stopping_;
}

std::vector<Hellos::Line*> Hellos::Due(const View& view, const News& news) {
  std::erase_if(lines_, [&view](const auto& line) { return view.Find(line.first) == nullptr; });
  std::vector<Line*> due;
  const absl::Time now = MonotonicNow();
  for (const Member& member : view.members) {
    if (member.is_self) continue;
    std::unique_ptr<Line>& line = lines_[member.name];
    if (line == nullptr || line->address != member.address) {
      line = std::make_unique<Line>();
      line->name = member.name;
      line->address = member.address;
      line->has_name = member.has_name();
      line->retry = options_.retry_min;
    }
    if (news.names.contains(member.name)) {
      line->next = std::min(line->next, line->greeted + options_.retry_min);
    }
    if (news.is_all || line->next <= now) due.push_back(line.get());
  }
  return due;
}

void Hellos::Connect(Line& line) {
  const uint64_t generation = options_.dial.tls_generation();
  if (line.stub != nullptr && line.tls_generation == generation) return;
  PeerDial dial = options_.dial;
  dial.may_be_member = [check = options_.dial.may_be_member,
                        server = line.server](const PeerIdentity& identity) {
    if (const CertificatePeer* certificate = identity.certificate(); certificate != nullptr) {
      const MutexLock lock(server->mutex);
      server->identity = identity;
      server->name = certificate->uri.empty() ? certificate->dns.front() : certificate->uri;
    }
    return check(identity);
  };
  line.stub = OpenPeer(line.address, dial, kAnswerBytesMax);
  line.tls_generation = generation;
}

void Hellos::Call(const std::vector<Line*>& lines) {
  v1::HelloRequest request;
  *request.mutable_self() = SelfOf(members_, options_.daemon_version);
  for (size_t first = 0; first < lines.size(); first += kAtOnceMax) {
    const size_t count = std::min(kAtOnceMax, lines.size() - first);
    std::vector<std::unique_ptr<Running>> all(count);
    grpc::CompletionQueue queue;
    {
      const MutexLock lock(mutex_);
      if (is_stopping_) return;
      for (size_t i = 0; i < count; ++i) {
        news_.names.erase(lines[first + i]->name);
        std::unique_ptr<Running>& running = all[i];
        running = std::make_unique<Running>();
        running->context.set_deadline(absl::ToChronoTime(absl::Now() + options_.timeout));
        running_.push_back(&running->context);
      }
    }
    for (size_t i = 0; i < count; ++i) {
      lines[first + i]->greeted = MonotonicNow();
      Begin(*lines[first + i], request, *all[i], queue);
    }
    void* tag = nullptr;
    bool ok = false;
    for (size_t i = 0; i < count; ++i) queue.Next(&tag, &ok);  // each ends by its deadline
    Drain(queue);
    {
      const MutexLock lock(mutex_);
      running_.clear();
      if (is_stopping_) return;
    }
    std::vector<Met> met;
    for (size_t i = 0; i < count; ++i) Take(*lines[first + i], *all[i], &met);
    if (!met.empty()) members_.Meet(met);
  }
}

void Hellos::Begin(Line& line, v1::HelloRequest& hello, Running& running,
                   grpc::CompletionQueue& queue) {
  Connect(line);
  if (std::exchange(line.tells_policies, false)) {
    const auto may_use = MayUse(line);
    v1::TellPoliciesRequest request;
    *request.mutable_self() = hello.self();
    request.set_policies(options_.policies->ListOf(may_use));
    request.set_policies_hash(options_.policies->HashOf(may_use));
    running.is_hello = false;
    running.policies_call = line.stub->AsyncTellPolicies(&running.context, request, &queue);
    running.policies_call->Finish(&running.policies, &running.status, &running);
    return;
  }
  FillGenerations(line, &hello);
  if (options_.policies != nullptr) {
    hello.set_policies_hash(options_.policies->HashOf(MayUse(line)));
  }
  running.call = line.stub->AsyncHello(&running.context, hello, &queue);
  running.call->Finish(&running.reply, &running.status, &running);
}

std::function<bool(std::string_view)> Hellos::MayUse(const Line& line) const {
  return [this, identity = line.server->Identity()](std::string_view tenant) {
    return options_.may_use(identity, tenant);
  };
}

void Hellos::FillGenerations(const Line& line, v1::HelloRequest* request) const {
  if (options_.generations == nullptr) return;
  const auto may_use = MayUse(line);
  request->set_generations_hash(options_.generations->HashOf(may_use));
  request->set_generations_known(line.known);
  request->clear_generations();
  if (line.tells) request->set_generations(options_.generations->ListOf(may_use));
}

void Hellos::Exchange(Line& line, const v1::HelloReply& reply) {
  line.tells = false;
  const uint64_t theirs = reply.generations_hash();
  if (options_.generations == nullptr || theirs == 0) return;  // it knows of no generations
  const auto may_use = MayUse(line);
  if (!reply.generations().empty()) {
    const auto list = ParseGenerations(reply.generations());
    line.known = list.ok() && options_.generations->Merge(*list, may_use) ? theirs : 0;
  }
  const std::pair<uint64_t, uint64_t> both = {options_.generations->HashOf(may_use), theirs};
  if (both.first == both.second || std::exchange(line.told, both) == both) return;
  line.tells = true;
  line.next = MonotonicNow();
}

void Hellos::ComparePolicies(Line& line, const v1::HelloReply& reply) {
  const uint64_t theirs = reply.policies_hash();
  if (options_.policies == nullptr || theirs == 0) return;  // it knows of none that spread
  const std::pair<uint64_t, uint64_t> both = {options_.policies->HashOf(MayUse(line)), theirs};
  if (both.first == both.second || std::exchange(line.told_policies, both) == both) return;
  line.tells_policies = true;
  line.next = MonotonicNow();
}

void Hellos::TakePolicies(Line& line, const Running& running) {
  if (!running.status.ok()) {  // the next greeting tries again
    line.next = MonotonicNow() + Spread(options_.period);
    line.told_policies = {};
    return LogDebug("members", "a member does not take policies",
                    {{"name", line.name}, {"error", running.status.error_message()}});
  }
  line.next = MonotonicNow() + options_.retry_min;  // this call was instead of a greeting
  if (running.policies.policies().empty()) return;
  if (const auto list = ParsePolicies(running.policies.policies()); list.ok()) {
    options_.policies->Merge(*list, MayUse(line));
  }
}

void Hellos::Failed(Line& line, const absl::Status& status) {
  line.tells = false;  // it may be of an earlier version now
  line.told = {};
  line.told_policies = {};
  line.next = MonotonicNow() + Spread(line.retry);
  line.retry = std::min(line.retry * 2, options_.retry_max);
  const std::string failure(status.message());
  if (std::exchange(line.failure, failure) == failure) return;
  LogWarn("members", "a member does not answer",
          {{"name", line.name}, {"address", line.address}, {"error", status}});
}

void Hellos::Take(Line& line, const Running& running, std::vector<Met>* met) {
  if (!running.is_hello) return TakePolicies(line, running);
  const grpc::Status& status = running.status;
  if (!status.ok() && !IsRefusal(status.error_code())) {
    failed_.Add();
    return Failed(line, absl::UnavailableError(status.error_message()));
  }
  const v1::PeerSelf& says = running.reply.self();
  absl::Status checked = status.ok() ? CheckSelf(says, members_.cluster())
                                     : absl::FailedPreconditionError(absl::StrCat(
                                           "it refuses this daemon: ", status.error_message()));
  if (checked.ok() && line.has_name && says.name() != line.name) {
    checked =
        absl::FailedPreconditionError(absl::StrCat("at ", line.address, " answers ", says.name()));
  }
  if (!checked.ok()) {
    refused_.Add();
    members_.Refuse(line.name, ToStd(checked.message()));
    return Failed(line, checked);
  }
  answered_.Add();
  if (!line.failure.empty()) LogInfo("members", "a member answers", {{"name", line.name}});
  line.failure.clear();
  line.retry = options_.retry_min;
  line.next = MonotonicNow() + Spread(options_.period);
  Exchange(line, running.reply);
  ComparePolicies(line, running.reply);
  if (says.view_hash() == members_.view()->hash) {
    line.differs_since = absl::InfiniteFuture();
  } else {
    line.differs_since = std::min(line.differs_since, MonotonicNow());
  }
  std::string server;
  PeerIdentity identity;
  {
    const MutexLock lock(line.server->mutex);
    server = line.server->name;
    identity = line.server->identity;
  }
  met->push_back({.name = says.name(),
                  .address = line.address,
                  .zone = says.zone(),
                  .tls_server = std::move(server),
                  .identity = std::move(identity),
                  .incarnation = says.incarnation(),
                  .is_draining = says.draining()});
}

void Hellos::Report(MetricSink& sink) const {
  const auto add = [&sink](std::string_view outcome, const Counter& counter) {
    const MetricLabel label{"outcome", outcome};
    sink.AddCounter("cairn_member_hellos_total", "Calls to greet other members.", {&label, 1},
                    counter.Value());
  };
  add("answered", answered_);
  add("failed", failed_);
  add("refused", refused_);
  const MutexLock lock(mutex_);
  sink.AddGauge("cairn_members_differing",
                "Members that for a minute or more know other members than this daemon.", {},
                static_cast<double>(differing_));
}

}  // namespace cairn
