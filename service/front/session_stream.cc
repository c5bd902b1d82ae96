// SPDX-License-Identifier: Apache-2.0
#include "service/front/session_stream.h"

#include <grpcpp/alarm.h>

#include <chrono>
#include <optional>

#include "base/hand_over.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cairn/v1/store.pb.h"
#include "proto/convert.h"

namespace cairn {
namespace {

constexpr std::chrono::seconds kHeartbeat{5};

// One thing is under way at a time: the request being read, an event being written, or the alarm
// that precedes the next event. Whoever sees it end after the stream was to end finishes the
// stream; where nothing is under way, that is who ends it.
class SessionStream final : public ControlCall {
 public:
  SessionStream(const CallPlace& place, const SessionTerms& terms, Sessions& sessions,
                Prefixes& index)
      : ControlCall(place), terms_(terms), sessions_(sessions), index_(index) {
    if (!ReadHeld()) EndAs(absl::ResourceExhaustedError("too many calls at a time"));
  }

  void OnReadDone(bool ok) override {
    TakeOver(this);
    v1::OpenSessionRequest request;
    absl::Status status = ok ? TakeRequest(RequestBound(), &request)
                             : absl::InvalidArgumentError("the call has no request");
    HoldNothing();
    if (status.ok()) status = Open(request);
    if (!status.ok()) return EndAs(status);
    WriteEvent();
  }

  void OnWriteDone(bool ok) override {
    TakeOver(this);
    {
      const MutexLock lock(mutex_);
      is_ending_ = is_ending_ || !ok;
      under_way_ = is_ending_ ? Step::kNone : Step::kAlarm;
      if (!is_ending_) {
        HandOver(this);
        alarm_.Set(std::chrono::system_clock::now() + kHeartbeat, [this](bool) { OnAlarm(); });
      }
    }
    FinishIfOver();
  }

  void OnCancel() override {
    TakeOver(this);
    uint64_t id = 0;
    {
      const MutexLock lock(mutex_);
      is_ending_ = true;
      id = id_;
      if (under_way_ == Step::kAlarm) alarm_.Cancel();  // its callback runs, soon
    }
    if (id != 0) sessions_.End(id);
    FinishIfOver();
  }

 private:
  enum class Step : uint8_t { kNone, kRead, kWrite, kAlarm };

  void OnDone() override {
    TakeOver(this);
    if (id_ != 0) {
      sessions_.End(id_);
      LogDebug("session", "ended", {{"session", id_}});
    }
    ControlCall::OnDone();
  }

  // Fills in the first event.
  absl::Status Open(const v1::OpenSessionRequest& request) {
    CAIRN_RETURN_IF_ERROR(proto::ValidateClientName(request.client_name()));
    CAIRN_ASSIGN_OR_RETURN(const Sessions::Opened opened,
                           sessions_.Open(request.tenant(), request.client_name(), identity()));
    LogDebug("session", "opened", {{"session", opened.id}, {"tenant", request.tenant()}});
    v1::SessionOpened& event = *event_.mutable_opened();
    event.set_session_id(opened.id);
    event.set_ticket(proto::ToBytes(opened.ticket));
    for (const std::string& address : terms_.data_addresses) event.add_data_addresses(address);
    event.set_daemon_version(terms_.daemon_version);
    event.set_payload_bytes_max(terms_.payload_bytes_max);
    const MutexLock lock(mutex_);
    id_ = opened.id;
    return absl::OkStatus();
  }

  void OnAlarm() {
    TakeOver(this);
    index_.RenewLeases(id_);
    event_.mutable_heartbeat()->set_draining(terms_.is_draining());
    WriteEvent();
  }

  void WriteEvent() {
    bool is_written = false;
    {
      const MutexLock lock(mutex_);
      is_written = !is_ending_;
      under_way_ = is_written ? Step::kWrite : Step::kNone;
    }
    if (!is_written) return FinishIfOver();
    const grpc::ByteBuffer* bytes = Serialize(event_);
    HandOver(this);
    StartWrite(bytes);
  }

  // Nothing is under way any more, and nothing shall be.
  void EndAs(const absl::Status& status) {
    {
      const MutexLock lock(mutex_);
      under_way_ = Step::kNone;
      is_ending_ = true;
      end_ = status;
    }
    FinishIfOver();
  }

  void FinishIfOver() {
    absl::Status end;
    {
      const MutexLock lock(mutex_);
      if (!is_ending_ || under_way_ != Step::kNone || is_finished_) return;
      is_finished_ = true;
      end = end_;
    }
    FinishAs(end);
  }

  const SessionTerms& terms_;
  Sessions& sessions_;
  Prefixes& index_;
  v1::SessionEvent event_;
  grpc::Alarm alarm_;
  Mutex mutex_;
  uint64_t id_ = 0;  // of the session; 0: none. Changes under the lock, before the first event.
  Step under_way_ ABSL_GUARDED_BY(mutex_) = Step::kRead;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_) = absl::UnavailableError("the session has ended");
};

}  // namespace

ControlCall* OpenSessionStream(const CallPlace& place, const SessionTerms& terms,
                               Sessions& sessions, Prefixes& index) {
  return new SessionStream(place, terms, sessions, index);
}

}  // namespace cairn
