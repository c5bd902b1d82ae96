// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/control.h"

#include <grpcpp/grpcpp.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cairn/v1/store.grpc.pb.h"
#include "client/cpp/rpc.h"
#include "proto/convert.h"

namespace cairn {
namespace {

constexpr absl::Duration kBackoffMin = absl::Milliseconds(20);
constexpr absl::Duration kBackoffMax = absl::Seconds(1);
constexpr std::chrono::milliseconds kConnectTurn(250);
constexpr absl::Duration kReconnectGrace = absl::Milliseconds(50);
// Parts of a side object; the daemon accepts up to 2 MiB.
constexpr size_t kPartBytes = size_t{1} << 20;

absl::StatusOr<SessionInfo> FromOpened(const v1::SessionOpened& opened) {
  SessionInfo session;
  session.session_id = opened.session_id();
  CAIRN_ASSIGN_OR_RETURN(session.ticket, proto::FromTicketBytes(opened.ticket()));
  session.data_addresses.assign(opened.data_addresses().begin(), opened.data_addresses().end());
  session.daemon_version = opened.daemon_version();
  session.payload_bytes_max = opened.payload_bytes_max();
  session.takes_engine_hashes = opened.takes_engine_hashes();
  session.takes_tokens = opened.takes_tokens();
  return session;
}

class GrpcControl final : public Control {
 public:
  GrpcControl(const ConnectOptions& options, transport::TlsFiles* tls,
              std::shared_ptr<grpc::Channel> channel, std::function<void(uint64_t epoch)> ended)
      : options_(options),
        ended_(std::move(ended)),
        tls_(tls),
        tls_generation_(tls == nullptr ? 0 : tls->generation()),
        wire_(std::make_shared<const Wire>(std::move(channel))) {}

  ~GrpcControl() override {
    {
      MutexLock lock(mutex_);
      is_closing_ = true;
      if (stream_ != nullptr) {
        stream_->TryCancel();
      }
      changed_.NotifyAll();
    }
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  absl::Status Start(absl::Time deadline) {
    thread_ = std::thread([this] { Run(); });
    MutexLock lock(mutex_);
    while (session_.epoch == 0 && failure_.ok()) {
      if (!changed_.WaitUntil(mutex_, deadline) && session_.epoch == 0 && failure_.ok()) {
        return absl::DeadlineExceededError(
            absl::StrCat("no session with ", options_.control, " in time"));
      }
    }
    return session_.epoch != 0
               ? absl::OkStatus()
               : Annotate(failure_, absl::StrCat("no session with cairnd at ", options_.control));
  }

  absl::StatusOr<SessionInfo> Session(absl::Time deadline) override {
    MutexLock lock(mutex_);
    // A caller that must serve a first token should recompute instead of waiting for a daemon.
    const absl::Time until = std::min(deadline, MonotonicNow() + kReconnectGrace);
    while (!is_open_ && !is_closing_ && changed_.WaitUntil(mutex_, until)) {
    }
    if (is_open_) {
      return session_;
    }
    return absl::UnavailableError(absl::StrCat("no session with ", options_.control, ": ",
                                               failure_.ok() ? "closing" : failure_.message()));
  }

  uint64_t reconnect_count() const override {
    MutexLock lock(mutex_);
    return session_.epoch == 0 ? 0 : session_.epoch - 1;
  }

  absl::StatusOr<v1::OpenSpaceReply> OpenSpace(v1::OpenSpaceRequest request,
                                               absl::Time deadline) override {
    return Call<v1::OpenSpaceReply>(&v1::Store::Stub::OpenSpace, request, deadline);
  }
  absl::StatusOr<v1::MatchReply> Match(v1::MatchRequest request, absl::Time deadline) override {
    return Call<v1::MatchReply>(&v1::Store::Stub::Match, request, deadline);
  }
  absl::StatusOr<v1::PrefetchReply> Prefetch(v1::PrefetchRequest request,
                                             absl::Time deadline) override {
    return Call<v1::PrefetchReply>(&v1::Store::Stub::Prefetch, request, deadline);
  }
  absl::StatusOr<v1::ReleaseReply> Release(v1::ReleaseRequest request,
                                           absl::Time deadline) override {
    return Call<v1::ReleaseReply>(&v1::Store::Stub::Release, request, deadline);
  }
  absl::StatusOr<v1::ContainsReply> Contains(v1::ContainsRequest request,
                                             absl::Time deadline) override {
    return Call<v1::ContainsReply>(&v1::Store::Stub::Contains, request, deadline);
  }
  absl::StatusOr<v1::ExplainReply> Explain(v1::ExplainRequest request,
                                           absl::Time deadline) override {
    return Call<v1::ExplainReply>(&v1::Store::Stub::Explain, request, deadline);
  }
  absl::StatusOr<v1::WhereReply> Where(v1::WhereRequest request, absl::Time deadline) override {
    return Call<v1::WhereReply>(&v1::Store::Stub::Where, request, deadline);
  }
  absl::StatusOr<v1::RetainReply> Retain(v1::RetainRequest request, absl::Time deadline) override {
    return Call<v1::RetainReply>(&v1::Store::Stub::Retain, request, deadline);
  }
  absl::StatusOr<v1::DemoteReply> Demote(v1::DemoteRequest request, absl::Time deadline) override {
    return Call<v1::DemoteReply>(&v1::Store::Stub::Demote, request, deadline);
  }
  absl::StatusOr<v1::DeleteReply> Delete(v1::DeleteRequest request, absl::Time deadline) override {
    return Call<v1::DeleteReply>(&v1::Store::Stub::Delete, request, deadline);
  }
  absl::StatusOr<v1::InvalidateReply> Invalidate(v1::InvalidateRequest request,
                                                 absl::Time deadline) override {
    return Call<v1::InvalidateReply>(&v1::Store::Stub::Invalidate, request, deadline);
  }
  absl::StatusOr<v1::StatsReply> Stats(v1::StatsRequest request, absl::Time deadline) override {
    return Call<v1::StatsReply>(&v1::Store::Stub::Stats, request, deadline);
  }
  absl::StatusOr<v1::PutSideObjectReply> PutSideObject(v1::PutSideObjectRequest part,
                                                       std::span<const std::byte> content,
                                                       absl::Time deadline) override {
    CAIRN_ASSIGN_OR_RETURN(const SessionInfo session, Session(deadline));
    part.set_ticket(proto::ToBytes(session.ticket));
    part.set_total_bytes(content.size());
    grpc::ClientContext context;
    SetUp(context, deadline);
    v1::PutSideObjectReply reply;
    const std::shared_ptr<const Wire> wire = CurrentWire();
    const auto writer = wire->store->PutSideObject(&context, &reply);
    do {  // terminates: each iteration consumes content
      const auto bytes = content.first(std::min(content.size(), kPartBytes));
      part.set_content(bytes.data(), bytes.size());
      content = content.subspan(bytes.size());
      if (!writer->Write(part)) break;  // the daemon has answered, and Finish() returns the answer
      part.Clear();
    } while (!content.empty());
    writer->WritesDone();
    CAIRN_RETURN_IF_ERROR(FromGrpc(writer->Finish()));
    return reply;
  }
  absl::StatusOr<v1::GetSideObjectReply> GetSideObject(v1::GetSideObjectRequest request,
                                                       absl::Time deadline) override {
    return Call<v1::GetSideObjectReply>(&v1::Store::Stub::GetSideObject, request, deadline);
  }
  absl::StatusOr<v1::ListSideObjectsReply> ListSideObjects(v1::ListSideObjectsRequest request,
                                                           absl::Time deadline) override {
    return Call<v1::ListSideObjectsReply>(&v1::Store::Stub::ListSideObjects, request, deadline);
  }
  absl::StatusOr<std::unique_ptr<EventReader>> WatchEvents(v1::WatchEventsRequest request,
                                                           absl::Time deadline) override {
    CAIRN_ASSIGN_OR_RETURN(const SessionInfo session, Session(deadline));
    request.set_ticket(proto::ToBytes(session.ticket));
    return std::make_unique<EventReader>(*CurrentWire()->events, request);
  }

 private:
  struct Wire {
    explicit Wire(std::shared_ptr<grpc::Channel> opened)
        : channel(std::move(opened)),
          store(v1::Store::NewStub(channel)),
          events(v1::Events::NewStub(channel)) {}
    const std::shared_ptr<grpc::Channel> channel;
    const std::unique_ptr<v1::Store::Stub> store;
    const std::unique_ptr<v1::Events::Stub> events;
  };

  std::shared_ptr<const Wire> CurrentWire() const {
    const MutexLock lock(mutex_);
    return wire_;
  }

  // A channel keeps the certificates with which it was made. If the files have changed, makes a new
  // channel.
  void RenewWire() {
    if (tls_ == nullptr) return;
    tls_->Look();
    const uint64_t generation = tls_->generation();
    if (std::exchange(tls_generation_, generation) == generation) return;
    auto channel = OpenChannel(options_.control, options_.tls, tls_, options_.answer_bytes_max);
    if (!channel.ok()) return;
    auto wire = std::make_shared<const Wire>(*std::move(channel));
    const MutexLock lock(mutex_);
    wire_.swap(wire);
  }

  template <typename Reply, typename Request>
  absl::StatusOr<Reply> Call(grpc::Status (v1::Store::Stub::*method)(grpc::ClientContext*,
                                                                     const Request&, Reply*),
                             Request& request, absl::Time deadline) {
    CAIRN_ASSIGN_OR_RETURN(const SessionInfo session, Session(deadline));
    request.set_ticket(proto::ToBytes(session.ticket));
    return RunRpc(*CurrentWire()->store, method, request, deadline);
  }

  // The session thread: each iteration of the loop is one session.
  void Run() {
    pthread_setname_np(pthread_self(), "cairn-session");
    absl::Duration backoff = kBackoffMin;
    for (bool is_first = true;; is_first = false) {  // terminates with the client
      if (!is_first) RenewWire();
      // A daemon that ends each session at once is not asked for the next one without a pause.
      const absl::Time began = MonotonicNow();
      if (KeepSession(is_first) && MonotonicNow() - began >= kBackoffMax) {
        backoff = kBackoffMin;
      }
      MutexLock lock(mutex_);
      const absl::Time until = MonotonicNow() + backoff;
      while (!is_closing_ && changed_.WaitUntil(mutex_, until)) {
      }
      if (is_closing_) {
        return;
      }
      backoff = std::min(backoff * 2, kBackoffMax);
    }
  }

  // Opens a session and reads its stream to the end. Returns false if no session was opened.
  bool KeepSession(bool is_first) {
    const std::shared_ptr<const Wire> wire = CurrentWire();
    // With TLS, a channel with old certificates may never connect. The next iteration checks the
    // files.
    if (tls_ != nullptr && !is_first &&
        !wire->channel->WaitForConnected(std::chrono::system_clock::now() + kConnectTurn)) {
      return false;
    }
    grpc::ClientContext context;
    // The first attempt fails at once if nobody listens. Later ones wait, because gRPC notices a
    // new connection only while a call polls for it.
    context.set_wait_for_ready(!is_first);
    {
      MutexLock lock(mutex_);
      if (is_closing_) {
        return false;
      }
      stream_ = &context;
    }
    v1::OpenSessionRequest request;
    request.set_tenant(options_.tenant);
    request.set_client_name(options_.name);
    request.set_reads_peer_tier(true);
    auto reader = wire->store->OpenSession(&context, request);
    v1::SessionEvent event;
    bool was_open = false;
    absl::Status failure;
    while (reader->Read(&event)) {
      if (was_open || !event.has_opened()) {
        continue;
      }
      absl::StatusOr<SessionInfo> session = FromOpened(event.opened());
      if (!session.ok()) {
        failure = Annotate(session.status(), "session opened by the daemon");
        context.TryCancel();
        continue;
      }
      was_open = true;
      Opened(*std::move(session));
    }
    const absl::Status ended = FromGrpc(reader->Finish());
    if (failure.ok()) {
      failure = ended.ok() ? absl::UnavailableError("the daemon ended the session") : ended;
    }
    if (!was_open && is_first) {
      failure = ExplainFailure(failure, options_.control, options_.tls, tls_);
    }
    Ended(was_open, failure);
    return was_open;
  }

  void Opened(SessionInfo session) {
    MutexLock lock(mutex_);
    session.epoch = session_.epoch + 1;
    session_ = std::move(session);
    is_open_ = true;
    changed_.NotifyAll();
  }

  void Ended(bool was_open, const absl::Status& failure) {
    bool is_incident = false;
    uint64_t epoch = 0;
    {
      MutexLock lock(mutex_);
      epoch = session_.epoch;
      stream_ = nullptr;
      is_open_ = false;
      failure_ = failure;
      is_incident = was_open && !is_closing_;
      changed_.NotifyAll();
    }
    if (was_open) {
      ended_(epoch);
    }
    if (is_incident) {
      LogWarn("client", "session ended: reconnecting",
              {{"control", options_.control}, {"reason", failure}});
    }
  }

  const ConnectOptions options_;
  const std::function<void(uint64_t epoch)> ended_;
  transport::TlsFiles* const tls_;  // null: no TLS
  uint64_t tls_generation_ = 0;     // generation of the files of wire_; for the session thread
  mutable Mutex mutex_;
  std::shared_ptr<const Wire> wire_ ABSL_GUARDED_BY(mutex_);
  CondVar changed_;
  SessionInfo session_ ABSL_GUARDED_BY(mutex_);
  bool is_open_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // why the last session ended or did not open
  grpc::ClientContext* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;  // set while KeepSession() runs
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Control>> Control::Open(const ConnectOptions& options,
                                                       transport::TlsFiles* tls,
                                                       absl::Time deadline,
                                                       std::function<void(uint64_t)> ended) {
  CAIRN_ASSIGN_OR_RETURN(auto channel,
                         OpenChannel(options.control, options.tls, tls, options.answer_bytes_max));
  auto control = std::make_unique<GrpcControl>(options, tls, std::move(channel), std::move(ended));
  CAIRN_RETURN_IF_ERROR(control->Start(deadline));
  return std::unique_ptr<Control>(std::move(control));
}

}  // namespace cairn
