// SPDX-License-Identifier: Apache-2.0
#include "service/front/session_stream.h"

#include <grpcpp/alarm.h>

#include <chrono>

#include "base/log.h"
#include "base/mutex.h"
#include "proto/convert.h"
#include "service/front/rpc.h"

namespace cairn {
namespace {

constexpr std::chrono::seconds kHeartbeat{5};

// Two things may be under way at a time, a write and the alarm that precedes the next one; the
// stream is finished by whoever sees the last of them end after the end was asked for. gRPC then
// calls OnDone(), once.
class SessionStream final : public grpc::ServerWriteReactor<v1::SessionEvent> {
 public:
  SessionStream(const SessionTerms& terms, Sessions& sessions, BlockIndex& index)
      : terms_(terms), sessions_(sessions), index_(index) {}

  void Start(const v1::OpenSessionRequest& request) {
    auto opened =
        proto::ValidateClientName(request.client_name()).ok()
            ? sessions_.Open(request.tenant(), request.client_name())
            : absl::StatusOr<Sessions::Opened>(proto::ValidateClientName(request.client_name()));
    if (!opened.ok()) {
      Finish(ToGrpc(opened.status()));
      return;
    }
    id_ = opened->id;
    LogDebug("session", "opened", {{"session", id_}, {"tenant", request.tenant()}});
    v1::SessionOpened& event = *event_.mutable_opened();
    event.set_session_id(id_);
    event.set_ticket(proto::ToBytes(opened->ticket));
    for (const std::string& address : terms_.data_addresses) event.add_data_addresses(address);
    event.set_daemon_version(terms_.daemon_version);
    event.set_payload_bytes_max(terms_.payload_bytes_max);
    {
      const MutexLock lock(mutex_);
      is_writing_ = true;
    }
    StartWrite(&event_);
  }

  void OnWriteDone(bool ok) override {
    {
      const MutexLock lock(mutex_);
      is_writing_ = false;
      is_ending_ = is_ending_ || !ok;
      if (!is_ending_) {
        is_armed_ = true;
        alarm_.Set(std::chrono::system_clock::now() + kHeartbeat, [this](bool) { OnAlarm(); });
        return;
      }
    }
    FinishIfOver();
  }

  void OnCancel() override {
    {
      const MutexLock lock(mutex_);
      is_ending_ = true;
      if (is_armed_) alarm_.Cancel();  // its callback runs, soon
    }
    sessions_.End(id_);
    FinishIfOver();
  }

  void OnDone() override {
    if (id_ != 0) {
      sessions_.End(id_);
      LogDebug("session", "ended", {{"session", id_}});
    }
    delete this;
  }

 private:
  void OnAlarm() {
    bool beats = false;
    {
      const MutexLock lock(mutex_);
      is_armed_ = false;
      beats = !is_ending_;
      is_writing_ = beats;
    }
    if (!beats) return FinishIfOver();
    index_.RenewLeases(id_);
    event_.mutable_heartbeat()->set_draining(terms_.is_draining());
    StartWrite(&event_);
  }

  void FinishIfOver() {
    {
      const MutexLock lock(mutex_);
      if (!is_ending_ || is_writing_ || is_armed_ || is_finished_) return;
      is_finished_ = true;
    }
    Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the session has ended"));
  }

  const SessionTerms& terms_;
  Sessions& sessions_;
  BlockIndex& index_;
  uint64_t id_ = 0;
  v1::SessionEvent event_;  // lent to gRPC while is_writing_
  grpc::Alarm alarm_;
  Mutex mutex_;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_armed_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerWriteReactor<v1::SessionEvent>* OpenSessionStream(const v1::OpenSessionRequest& request,
                                                              const SessionTerms& terms,
                                                              Sessions& sessions,
                                                              BlockIndex& index) {
  auto* stream = new SessionStream(terms, sessions, index);  // deletes itself in OnDone()
  stream->Start(request);
  return stream;
}

}  // namespace cairn
