// SPDX-License-Identifier: Apache-2.0
#include "service/front/session_stream.h"

#include <string>

#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cairn/v1/store.pb.h"
#include "proto/convert.h"
#include "service/front/paced_stream.h"

namespace cairn {
namespace {

constexpr absl::Duration kHeartbeat = absl::Seconds(5);

class SessionStream final : public PacedStream {
 public:
  SessionStream(const CallPlace& place, const SessionTerms& terms, Sessions& sessions,
                BlockIndex& index)
      : PacedStream(place, absl::UnavailableError("the session has ended")),
        terms_(terms),
        sessions_(sessions),
        index_(index),
        connections_(*place.connections),
        connection_(place.connection) {}

 private:
  absl::StatusOr<Message> Begin() override {
    v1::OpenSessionRequest request;
    CAIRN_RETURN_IF_ERROR(TakeRequest(RequestBound(), &request));
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
    connections_.BeginSession(connection_);
    const MutexLock lock(mutex_);
    id_ = opened.id;
    return &event_;
  }

  absl::StatusOr<Message> Next() override {
    index_.RenewLeases(id_);
    event_.mutable_heartbeat()->set_draining(terms_.is_draining());
    return &event_;
  }

  absl::Duration pause() const override { return kHeartbeat; }

  void OnGone() override {
    uint64_t id = 0;
    {
      const MutexLock lock(mutex_);
      id = id_;
    }
    if (id != 0) sessions_.End(id);
  }

  void OnDone() override {
    TakeOver(this);
    if (id_ != 0) {
      sessions_.End(id_);
      connections_.EndSession(connection_);
      LogDebug("session", "ended", {{"session", id_}});
    }
    PacedStream::OnDone();
  }

  const SessionTerms& terms_;
  Sessions& sessions_;
  BlockIndex& index_;
  ControlConnections& connections_;
  const uint64_t connection_;
  v1::SessionEvent event_;
  Mutex mutex_;
  uint64_t id_ = 0;  // of the session; 0: none. Changes under the lock, before the first event.
};

}  // namespace

ControlCall* OpenSessionStream(const CallPlace& place, const SessionTerms& terms,
                               Sessions& sessions, BlockIndex& index) {
  return new SessionStream(place, terms, sessions, index);
}

}  // namespace cairn
