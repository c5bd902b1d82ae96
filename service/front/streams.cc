// SPDX-License-Identifier: Apache-2.0
#include "service/front/streams.h"

#include <google/protobuf/message.h>
#include <grpcpp/alarm.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cairn/v1/events.pb.h"
#include "cairn/v1/store.pb.h"
#include "proto/convert.h"
#include "service/config_value.h"

namespace cairn {

// --- Paced streams -------------------------------------------------------------------------------

namespace {

// A call that sends messages with pauses between them, until one side ends it.
//
// One operation runs at a time: reading the request, writing a message, or waiting for the alarm
// before the next message. If the stream is ended during an operation, the completion of that
// operation finishes the call. If no operation runs, the function that ends the stream finishes it.
// At most one message is in memory for a reader that has stalled.
class PacedStream : public ControlCall {
 protected:
  // Borrowed until the next call of Begin() or Next(); null: nothing to write now.
  using Message = const google::protobuf::Message*;

  // Begins to read the request. `end` is the status of a stream that ends without an error.
  PacedStream(const CallPlace& place, absl::Status end);

  // Called when the request has arrived; TakeRequest() returns it. Returns the first message.
  virtual absl::StatusOr<Message> Begin() = 0;
  // Returns the next message, after a pause.
  virtual absl::StatusOr<Message> Next() = 0;
  // The pause before the next message. Zero: it is ready.
  virtual absl::Duration pause() const = 0;
  // Called when the reader has left. May run during Begin() or Next().
  virtual void OnGone() {}

 private:
  enum class Step : uint8_t { kNone, kRead, kWrite, kAlarm };

  void OnReadDone(bool ok) final;
  void OnWriteDone(bool ok) final;
  void OnCancel() final;
  void OnAlarm();
  // Writes, pauses or ends. REQUIRES: no operation runs.
  void GoOn(const absl::StatusOr<Message>& message);
  // Pauses. `ok` is true if the last message was sent. REQUIRES: no operation runs.
  void Pause(bool ok);
  // Ends the stream. REQUIRES: no operation runs, and none will start.
  void EndAs(const absl::Status& status);
  void FinishIfOver();

  grpc::Alarm alarm_;
  Mutex mutex_;
  Step under_way_ ABSL_GUARDED_BY(mutex_) = Step::kRead;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

PacedStream::PacedStream(const CallPlace& place, absl::Status end)
    : ControlCall(place.ForStream()), end_(std::move(end)) {
  if (!ReadHeld()) EndAs(absl::ResourceExhaustedError("too many calls at once"));
}

void PacedStream::OnReadDone(bool ok) {
  TakeOver(this);
  if (!ok) {
    HoldNothing();
    return EndAs(absl::InvalidArgumentError("the call has no request"));
  }
  const absl::StatusOr<Message> first = Begin();
  HoldNothing();
  GoOn(first);
}

void PacedStream::OnWriteDone(bool ok) {
  TakeOver(this);
  const bool is_due = ok && pause() == absl::ZeroDuration();
  if (is_due) return GoOn(Next());
  Pause(ok);
}

void PacedStream::Pause(bool ok) {
  {
    const MutexLock lock(mutex_);
    is_ending_ = is_ending_ || !ok;
    under_way_ = is_ending_ ? Step::kNone : Step::kAlarm;
    if (!is_ending_) {
      HandOver(this);
      alarm_.Set(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(pause()),
                 [this](bool) { OnAlarm(); });
    }
  }
  FinishIfOver();
}

void PacedStream::OnCancel() {
  TakeOver(this);
  {
    const MutexLock lock(mutex_);
    is_ending_ = true;
    if (under_way_ == Step::kAlarm) alarm_.Cancel();  // its callback runs soon
  }
  OnGone();
  FinishIfOver();
  HandOver(this);  // released in OnDone(), which gRPC calls after the stream has finished
}

void PacedStream::OnAlarm() {
  TakeOver(this);
  GoOn(Next());
}

void PacedStream::GoOn(const absl::StatusOr<Message>& message) {
  if (!message.ok()) return EndAs(message.status());
  if (*message == nullptr) return Pause(true);
  bool is_written = false;
  {
    const MutexLock lock(mutex_);
    is_written = !is_ending_;
    under_way_ = is_written ? Step::kWrite : Step::kNone;
  }
  if (!is_written) return FinishIfOver();
  const grpc::ByteBuffer* bytes = Serialize(**message);
  HandOver(this);
  StartWrite(bytes);
}

void PacedStream::EndAs(const absl::Status& status) {
  {
    const MutexLock lock(mutex_);
    under_way_ = Step::kNone;
    is_ending_ = true;
    end_ = status;
  }
  FinishIfOver();
}

void PacedStream::FinishIfOver() {
  absl::Status end;
  {
    const MutexLock lock(mutex_);
    if (!is_ending_ || under_way_ != Step::kNone || is_finished_) return;
    is_finished_ = true;
    end = end_;
  }
  FinishAs(end);
}

}  // namespace

// --- Sessions ------------------------------------------------------------------------------------

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
    const absl::StatusOr<Sessions::Opened> made =
        sessions_.Open(request.tenant(), request.client_name(), identity(), terms_.is_for_members,
                       request.reads_peer_tier());
    if (absl::IsPermissionDenied(made.status()) && terms_.audit != nullptr) {
      terms_.audit->Refused(identity(), request.tenant(), made.status());
    }
    CAIRN_ASSIGN_OR_RETURN(const Sessions::Opened opened, made);
    LogDebug("session", "opened", {{"session", opened.id}, {"tenant", request.tenant()}});
    v1::SessionOpened& event = *event_.mutable_opened();
    event.set_session_id(opened.id);
    event.set_ticket(proto::ToBytes(opened.ticket));
    const UnixPeer* user = identity().unix_peer();
    const bool has_door = user != nullptr && !user->door.empty();
    for (const std::string& address : terms_.data_addresses) {
      event.add_data_addresses(has_door && address == terms_.local_address
                                   ? absl::StrCat("unix:", DoorDataPath(user->door))
                                   : address);
    }
    event.set_daemon_version(terms_.daemon_version);
    event.set_payload_bytes_max(terms_.payload_bytes_max);
    event.set_takes_engine_hashes(true);
    event.set_takes_tokens(index_.keeps_tokens());
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
  uint64_t id_ = 0;  // id of the session; 0: none. Changes under the lock, before the first event.
};

}  // namespace

ControlCall* OpenSessionStream(const CallPlace& place, const SessionTerms& terms,
                               Sessions& sessions, BlockIndex& index) {
  return new SessionStream(place, terms, sessions, index);
}

// --- Events --------------------------------------------------------------------------------------

namespace {

constexpr absl::Duration kPause = absl::Milliseconds(20);  // between reads of the log

class EventStream final : public PacedStream {
 public:
  EventStream(const CallPlace& place, BlockIndex& index, Sessions& sessions, Spaces& spaces)
      : PacedStream(place, absl::UnavailableError("the call has ended")),
        index_(index),
        log_(index.events()),
        sessions_(sessions),
        spaces_(spaces) {}

 private:
  absl::StatusOr<Message> Begin() override {
    v1::WatchEventsRequest request;
    CAIRN_RETURN_IF_ERROR(TakeRequest(RequestBound(), &request));
    CAIRN_ASSIGN_OR_RETURN(ticket_, proto::FromTicketBytes(request.ticket()));
    CAIRN_ASSIGN_OR_RETURN(const Session session, sessions_.Find(ticket_));
    tenant_ = session.tenant;
    space_id_ = request.space_id();
    if (space_id_ != 0) {
      CAIRN_RETURN_IF_ERROR(spaces_.Find(space_id_, tenant_.view()).status());
    }
    wants_snapshot_ = request.snapshot();
    cursor_ = {.epoch = request.epoch(), .next = request.next_sequence()};
    CAIRN_RETURN_IF_ERROR(log_.Begin(tenant_.view(), &cursor_, &goes_on_));
    is_watching_ = true;
    return goes_on_ ? Next() : Reset();
  }

  absl::StatusOr<Message> Next() override {
    CAIRN_RETURN_IF_ERROR(sessions_.Find(ticket_).status());
    events_.clear();
    if (is_in_snapshot_) return Page();
    const uint64_t first = cursor_.next;
    EventBatchRoom room;
    if (!log_.Read(tenant_.view(), &cursor_, room, &events_)) return Reset();
    for (const IndexEvent& event : events_) room.Take(event);
    is_full_ = room.is_full();
    if (events_.empty() && !goes_on_) return nullptr;
    batch_.Clear();
    ForgetGone();
    for (const IndexEvent& event : events_) {
      if (!Add(event)) return Reset();
    }
    goes_on_ = false;
    batch_.set_epoch(cursor_.epoch);
    batch_.set_first_sequence(first);
    batch_.set_next_sequence(cursor_.next);
    return &batch_;
  }

  absl::Duration pause() const override { return is_full_ ? absl::ZeroDuration() : kPause; }

  void OnDone() override {
    TakeOver(this);
    if (is_watching_) log_.End(tenant_.view());
    PacedStream::OnDone();
  }

  // Tells the reader to discard its state. The stream continues at the cursor.
  Message Reset() {
    goes_on_ = false;
    is_full_ = is_in_snapshot_ = wants_snapshot_;
    slot_ = 0;
    spaces_told_.clear();
    batch_.Clear();
    batch_.set_reset(true);
    if (wants_snapshot_) batch_.set_snapshot(v1::EventBatch::SNAPSHOT_FOLLOWS);
    SetNumbers();
    return &batch_;
  }

  // Returns the next page of the snapshot, which may be empty. The following events begin at the
  // cursor.
  Message Page() {
    EventBatchRoom room;
    for (int i = 0; i < limits::kSnapshotHoldsMax && is_in_snapshot_ && !room.is_full(); ++i) {
      is_in_snapshot_ = index_.Snapshot(tenant_.view(), &slot_, room, &events_);
    }
    is_full_ = true;
    batch_.Clear();
    ForgetGone();
    for (const IndexEvent& event : events_) {
      if (!Add(event)) return Reset();
    }
    batch_.set_snapshot(is_in_snapshot_ ? v1::EventBatch::SNAPSHOT_PAGE
                                        : v1::EventBatch::SNAPSHOT_LAST_PAGE);
    SetNumbers();
    return &batch_;
  }

  // Sets the numbers of a batch that does not move the cursor. A reader cannot resume at a batch
  // without an epoch.
  void SetNumbers() {
    batch_.set_epoch(is_in_snapshot_ ? 0 : cursor_.epoch);
    batch_.set_first_sequence(cursor_.next);
    batch_.set_next_sequence(cursor_.next);
  }

  // Drops retired spaces, because a stream may outlive many spaces.
  void ForgetGone() {
    if (spaces_told_.size() < limits::kSpacesMax) return;
    absl::erase_if(spaces_told_, [this](const auto& space) {
      return !spaces_.Find(space.first, tenant_.view()).ok();
    });
  }

  // Adds the event. Returns false if its space is retired and the reader may know blocks of it.
  bool Add(const IndexEvent& event) {
    const auto [told, is_new] = spaces_told_.try_emplace(event.name.space_id, false);
    if (is_new) {
      const absl::StatusOr<SpaceRef> space = spaces_.Find(event.name.space_id, tenant_.view());
      if (absl::IsNotFound(space.status()) && goes_on_) return false;
      told->second = space.ok() && (space_id_ == 0 || space_id_ == event.name.space_id);
      if (told->second) {
        v1::WatchedSpace& described = *batch_.add_spaces();
        described.set_space_id((*space)->id());
        described.set_fingerprint(proto::ToBytes((*space)->fingerprint()));
        *described.mutable_spec() = proto::ToSpec((*space)->identity());
      }
    }
    if (!told->second) return true;
    v1::BlockEvent& added = *batch_.add_events();
    added.set_kind(event.is_stored ? v1::BlockEvent::KIND_STORED : v1::BlockEvent::KIND_REMOVED);
    added.set_space_id(event.name.space_id);
    added.set_key(proto::ToBytes(event.name.key));
    added.set_tier(static_cast<v1::Tier>(event.tier));
    if (event.is_stored) {
      if (event.parent != proto::BlockKey{}) added.set_parent(proto::ToBytes(event.parent));
      added.set_first_position(event.first_position);
      added.set_token_count(event.tokens);
    }
    if (event.names != nullptr) AddNames(*event.names, event.is_stored, &added);
    return true;
  }

  static void AddNames(const proto::EngineNames& names, bool is_stored, v1::BlockEvent* added) {
    added->set_engine_hash(proto::ToBytes(names.hash.bytes()));
    if (!is_stored) return;
    added->set_engine_parent(proto::ToBytes(names.parent.bytes()));
    added->mutable_tokens()->Add(names.tokens.begin(), names.tokens.end());
  }

  BlockIndex& index_;
  EventLog& log_;
  Sessions& sessions_;
  Spaces& spaces_;
  // Only one operation at a time uses these:
  proto::Ticket ticket_{};
  TenantName tenant_;
  uint64_t space_id_ = 0;  // 0: all spaces of the tenant
  EventCursor cursor_;
  bool is_watching_ = false;
  bool wants_snapshot_ = false;
  bool is_in_snapshot_ = false;  // pages of it are left
  uint64_t slot_ = 0;            // the slot of the index where the next page begins
  bool goes_on_ = false;         // resumes an earlier stream, and has not written anything yet
  bool is_full_ = false;         // the last batch was full, so there is more
  absl::flat_hash_map<uint64_t, bool> spaces_told_;  // false: not requested, or retired
  std::vector<IndexEvent> events_;
  v1::EventBatch batch_;
};

}  // namespace

ControlCall* StartEventStream(const CallPlace& place, BlockIndex& index, Sessions& sessions,
                              Spaces& spaces) {
  return new EventStream(place, index, sessions, spaces);
}

}  // namespace cairn
