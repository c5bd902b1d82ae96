// SPDX-License-Identifier: Apache-2.0
#include "service/members/etcd_source.h"

#include <grpcpp/grpcpp.h>
#include <pthread.h>

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/text.h"
#include "etcd/rpc.grpc.pb.h"
#include "service/members/roll.h"

namespace cairn {
namespace {

namespace pb = etcdserverpb;

constexpr absl::Duration kCallTime = absl::Seconds(2);
constexpr absl::Duration kRenewalMin = absl::Milliseconds(200);
constexpr int kListBytesMax = 16 << 20;  // a list of kMembersMax

void SetDeadline(grpc::ClientContext& context, absl::Duration time) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + time));
}

absl::Status ToStatus(const grpc::Status& status, const std::string& endpoint) {
  if (status.ok()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("etcd at ", endpoint, ": ", status.error_message()));
}

constexpr size_t kPemBytesMax = size_t{1} << 20;
constexpr size_t kPasswordBytesMax = 4096;

absl::StatusOr<std::string> ReadPassword(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kPasswordBytesMax));
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " has no password"));
  return text;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsOf(const EtcdAccess& access) {
  if (access.ca.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  CAIRN_ASSIGN_OR_RETURN(options.pem_root_certs, ReadFile(access.ca, kPemBytesMax));
  if (!access.certificate.empty()) {
    CAIRN_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadFile(access.certificate, kPemBytesMax));
    CAIRN_ASSIGN_OR_RETURN(options.pem_private_key, ReadFile(access.key, kPemBytesMax));
  }
  return grpc::SslCredentials(options);
}

// The endpoints in turn, the token there, and what is waited after a failure. Owned by one thread.
class Turn {
 public:
  explicit Turn(const EtcdOptions& options)
      : endpoints_(options.endpoints), access_(options.access), backoff_(options.backoff_max) {}

  const std::string& endpoint() const { return endpoints_[at_]; }
  // REQUIRES: Open() has returned OK since the last Failed().
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // Makes the channel and asks for a token, unless they are there.
  absl::Status Open() {
    if (channel_ == nullptr) {
      CAIRN_ASSIGN_OR_RETURN(const auto credentials, CredentialsOf(access_));
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      arguments.SetMaxReceiveMessageSize(kListBytesMax);
      channel_ = grpc::CreateCustomChannel(endpoint(), credentials, arguments);
    }
    return access_.user.empty() || is_authenticated_ ? absl::OkStatus() : Authenticate();
  }
  void AddToken(grpc::ClientContext& context) const {
    if (!token_.empty()) context.AddMetadata("token", token_);
  }
  // A call with one answer, within kCallTime. If the token is refused, again with a new one.
  template <typename Run>
  absl::Status Call(Run run) {
    CAIRN_RETURN_IF_ERROR(Open());
    grpc::Status status = Once(run);
    if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED && !access_.user.empty()) {
      CAIRN_RETURN_IF_ERROR(Authenticate());
      status = Once(run);
    }
    return ToStatus(status, endpoint());
  }
  void Succeeded() { backoff_.Reset(); }
  // Moves to the next endpoint. Returns what to wait before.
  absl::Duration Failed() {
    at_ = (at_ + 1) % endpoints_.size();
    channel_ = nullptr;
    is_authenticated_ = false;
    return backoff_.Next();
  }

 private:
  template <typename Run>
  grpc::Status Once(Run run) {
    grpc::ClientContext context;
    SetDeadline(context, kCallTime);
    AddToken(context);
    return run(&context);
  }
  absl::Status Authenticate() {
    token_.clear();
    is_authenticated_ = false;
    pb::AuthenticateRequest request;
    request.set_name(access_.user);
    CAIRN_ASSIGN_OR_RETURN(*request.mutable_password(), ReadPassword(access_.password_file));
    pb::AuthenticateResponse reply;
    const grpc::Status status = Once([&](grpc::ClientContext* context) {
      return pb::Auth::NewStub(channel_)->Authenticate(context, request, &reply);
    });
    if (status.error_code() == grpc::StatusCode::FAILED_PRECONDITION) {
      LogWarn("members", "etcd has no authentication: it is used without the user",
              {{"endpoint", endpoint()}});
    } else {
      CAIRN_RETURN_IF_ERROR(Annotate(ToStatus(status, endpoint()), "etcd-user"));
      token_ = reply.token();
    }
    is_authenticated_ = true;
    return absl::OkStatus();
  }

  const std::vector<std::string>& endpoints_;
  const EtcdAccess& access_;
  Backoff backoff_;
  size_t at_ = 0;
  std::shared_ptr<grpc::Channel> channel_;
  std::string token_;
  bool is_authenticated_ = false;
};

class EtcdSource final : public MemberSource {
 public:
  explicit EtcdSource(EtcdOptions options)
      : options_(std::move(options)),
        first_key_(absl::StrCat(options_.prefix, "/")),
        end_key_(absl::StrCat(options_.prefix, "0")) {  // '0' follows '/'
    CAIRN_CHECK(!options_.endpoints.empty(), "etcd without an endpoint");
  }
  ~EtcdSource() override { Stop(); }

  void Start(Sink sink) override {
    sink_ = std::move(sink);
    watch_thread_ = std::thread([this] { WatchAlways(); });
    ::pthread_setname_np(watch_thread_.native_handle(), "member-watch");
    if (!options_.self.has_value()) return;
    lease_thread_ = std::thread([this] { KeepLease(); });
    ::pthread_setname_np(lease_thread_.native_handle(), "member-lease");
  }

  void Stop() override {
    stop_.Set();
    {
      const MutexLock lock(mutex_);
      if (running_ != nullptr) running_->TryCancel();
    }
    if (watch_thread_.joinable()) watch_thread_.join();
    if (lease_thread_.joinable()) lease_thread_.join();
  }

  absl::Status state() const override {
    const MutexLock lock(mutex_);
    return watch_state_.ok() ? lease_state_ : watch_state_;
  }

 private:
  using Keys = std::map<std::string, std::string>;

  void SetState(absl::Status* state, absl::Status now) {
    absl::Status before;
    {
      const MutexLock lock(mutex_);
      before = std::exchange(*state, now);
    }
    if (!now.ok() && before.ok()) {
      LogWarn("members", "etcd does not answer: the members known stay", {{"error", now}});
    }
  }

  // --- The lease

  absl::Status Announce(Turn& turn, int64_t* lease) {
    pb::LeaseGrantRequest grant;
    grant.set_ttl(absl::ToInt64Seconds(options_.lease));
    pb::LeaseGrantResponse granted;
    CAIRN_RETURN_IF_ERROR(turn.Call([&](grpc::ClientContext* context) {
      return pb::Lease::NewStub(turn.channel())->LeaseGrant(context, grant, &granted);
    }));
    if (!granted.error().empty())
      return absl::UnavailableError(absl::StrCat("etcd: ", granted.error()));
    pb::PutRequest put;
    put.set_key(absl::StrCat(first_key_, options_.self->name));
    put.set_value(options_.self->zone.empty()
                      ? options_.self->address
                      : absl::StrCat(options_.self->address, " ", options_.self->zone));
    put.set_lease(granted.id());
    pb::PutResponse done;
    CAIRN_RETURN_IF_ERROR(turn.Call([&](grpc::ClientContext* context) {
      return pb::KV::NewStub(turn.channel())->Put(context, put, &done);
    }));
    *lease = granted.id();
    return absl::OkStatus();
  }

  // Sets *lease to 0 if it is gone. A stream for each renewal, so that its deadline bounds it.
  absl::Status Renew(Turn& turn, absl::Duration time, int64_t* lease) {
    CAIRN_RETURN_IF_ERROR(turn.Open());
    grpc::ClientContext context;
    SetDeadline(context, time);
    turn.AddToken(context);
    const auto stream = pb::Lease::NewStub(turn.channel())->LeaseKeepAlive(&context);
    pb::LeaseKeepAliveRequest request;
    request.set_id(*lease);
    pb::LeaseKeepAliveResponse reply;
    const bool has_reply = stream->Write(request) && stream->Read(&reply);
    context.TryCancel();
    const grpc::Status status = stream->Finish();
    if (!has_reply) {
      return absl::UnavailableError(
          absl::StrCat("etcd at ", turn.endpoint(), ": ", status.error_message()));
    }
    if (reply.ttl() <= 0) *lease = 0;
    return absl::OkStatus();
  }

  void KeepLease() {
    Turn turn(options_);
    int64_t lease = 0;
    absl::Time valid_until = absl::InfinitePast();
    absl::Duration wait;
    while (stop_.Wait(wait)) {  // ends: Stop()
      const absl::Time before = MonotonicNow();
      if (before >= valid_until && std::exchange(lease, 0) != 0) {
        LogWarn("members", "the lease at etcd is over: announcing anew");
      }
      const bool is_new = lease == 0;
      const absl::Status status =
          is_new
              ? Announce(turn, &lease)
              : Renew(turn, std::clamp((valid_until - before) / 2, kRenewalMin, kCallTime), &lease);
      SetState(&lease_state_, status);
      if (!status.ok()) {
        wait = turn.Failed();
        continue;
      }
      turn.Succeeded();
      if (is_new) LogInfo("members", "announced at etcd", {{"endpoint", turn.endpoint()}});
      if (lease == 0) LogWarn("members", "the lease at etcd is gone: announcing anew");
      // It counts from before the request.
      valid_until = before + options_.lease;
      wait = lease == 0 ? absl::ZeroDuration() : options_.lease / 3;
    }
  }

  // --- The watch

  void WatchAlways() {
    Turn turn(options_);
    absl::Duration wait;
    while (stop_.Wait(wait)) {  // ends: Stop()
      Keys keys;
      int64_t revision = 0;
      absl::Status status = List(turn, &keys, &revision);
      if (status.ok()) {
        turn.Succeeded();
        Give(keys);
        status = Watch(turn, revision + 1, &keys);
      }
      if (stop_.is_set()) return;
      SetState(&watch_state_, status);
      wait = turn.Failed();
    }
  }

  absl::Status List(Turn& turn, Keys* keys, int64_t* revision) {
    pb::RangeRequest request;
    request.set_key(first_key_);
    request.set_range_end(end_key_);
    pb::RangeResponse reply;
    CAIRN_RETURN_IF_ERROR(turn.Call([&](grpc::ClientContext* context) {
      return pb::KV::NewStub(turn.channel())->Range(context, request, &reply);
    }));
    for (const pb::KeyValue& one : reply.kvs()) (*keys)[one.key()] = one.value();
    *revision = reply.header().revision();
    return absl::OkStatus();
  }

  // Returns why the watch ended.
  absl::Status Watch(Turn& turn, int64_t revision, Keys* keys) {
    grpc::ClientContext context;
    turn.AddToken(context);
    {
      const MutexLock lock(mutex_);
      if (stop_.is_set()) return absl::OkStatus();
      running_ = &context;
    }
    grpc::CompletionQueue queue;
    const auto stub = pb::Watch::NewStub(turn.channel());
    const auto stream = stub->AsyncWatch(&context, &queue, &kStarted);
    absl::Status status = Follow(*stream, queue, revision, keys);
    {
      const MutexLock lock(mutex_);
      running_ = nullptr;
    }
    context.TryCancel();
    grpc::Status finished;
    stream->Finish(&finished, &kFinished);
    queue.Shutdown();
    void* tag = nullptr;
    bool is_ok = false;
    while (queue.Next(&tag, &is_ok)) {  // ends: the call is cancelled
    }
    if (status.ok())
      status = absl::UnavailableError(absl::StrCat("the watch ended: ", finished.error_message()));
    return absl::UnavailableError(
        absl::StrCat("etcd at ", turn.endpoint(), ": ", status.message()));
  }

  using Stream = grpc::ClientAsyncReaderWriter<pb::WatchRequest, pb::WatchResponse>;

  // OK: the call has ended.
  absl::Status Follow(Stream& stream, grpc::CompletionQueue& queue, int64_t revision, Keys* keys) {
    bool is_writing = true;  // until the call has started
    absl::Time heard = MonotonicNow(), asked = heard;
    while (true) {  // ends: silence, or the call ends
      const absl::Time now = MonotonicNow();
      if (now - heard >= options_.silence) return absl::UnavailableError("silent");
      if (!is_writing && now - asked >= options_.progress) {
        pb::WatchRequest request;
        request.mutable_progress_request();
        stream.Write(request, &kWritten);
        is_writing = true;
        asked = now;
      }
      const absl::Time next =
          std::min(heard + options_.silence,
                   is_writing ? absl::InfiniteFuture() : asked + options_.progress);
      void* tag = nullptr;
      bool is_ok = false;
      const auto got =
          queue.AsyncNext(&tag, &is_ok, absl::ToChronoTime(absl::Now() + (next - now)));
      if (got == grpc::CompletionQueue::TIMEOUT) continue;
      if (!is_ok) return absl::OkStatus();
      if (tag == &kStarted) {
        pb::WatchRequest request;
        request.mutable_create_request()->set_key(first_key_);
        request.mutable_create_request()->set_range_end(end_key_);
        request.mutable_create_request()->set_start_revision(revision);
        stream.Write(request, &kWritten);
        stream.Read(&reply_, &kRead);
      } else if (tag == &kWritten) {
        is_writing = false;
      } else if (tag == &kRead) {
        heard = MonotonicNow();
        if (reply_.canceled())
          return absl::UnavailableError(
              absl::StrCat("the watch is cancelled: ", reply_.cancel_reason()));
        Apply(reply_, keys);
        Give(*keys);
        stream.Read(&reply_, &kRead);
      }
    }
  }

  static void Apply(const pb::WatchResponse& reply, Keys* keys) {
    for (const pb::Event& event : reply.events()) {
      if (event.type() == pb::Event::PUT) {
        (*keys)[event.kv().key()] = event.kv().value();
      } else {
        keys->erase(event.kv().key());
      }
    }
  }

  // Passes the keys on. If one is no member, the set is not passed on.
  void Give(const Keys& keys) {
    std::vector<ListedMember> listed;
    for (const auto& [key, value] : keys) {
      const std::vector<std::string> words = absl::StrSplit(value, ' ');
      ListedMember one{key.substr(std::min(first_key_.size(), key.size())), words[0],
                       words.size() == 2 ? words[1] : ""};
      const absl::Status status = words.size() > 2 || one.name.empty()
                                      ? absl::InvalidArgumentError("expected HOST:PORT [ZONE]")
                                      : CheckListed(one);
      if (!status.ok())
        return SetState(&watch_state_,
                        Annotate(status, absl::StrCat("etcd key ", absl::CHexEscape(key))));
      listed.push_back(std::move(one));
    }
    SetState(&watch_state_, absl::OkStatus());
    sink_(std::move(listed));
  }

  // Tags of the watch's queue: their addresses.
  static inline char kStarted, kWritten, kRead, kFinished;

  const EtcdOptions options_;
  const std::string first_key_, end_key_;
  Sink sink_;
  pb::WatchResponse reply_;  // of the watch thread
  StopSignal stop_;
  mutable Mutex mutex_;
  grpc::ClientContext* running_ ABSL_GUARDED_BY(mutex_) = nullptr;     // the watch, if there is one
  absl::Status watch_state_ = absl::UnavailableError("not read yet");  // both under mutex_
  absl::Status lease_state_;
  std::thread watch_thread_, lease_thread_;
};

}  // namespace

absl::Status CheckEtcdFiles(const EtcdAccess& access) {
  CAIRN_RETURN_IF_ERROR(CredentialsOf(access).status());
  return access.user.empty() ? absl::OkStatus() : ReadPassword(access.password_file).status();
}

std::unique_ptr<MemberSource> MakeEtcdSource(EtcdOptions options) {
  return std::make_unique<EtcdSource>(std::move(options));
}

}  // namespace cairn
