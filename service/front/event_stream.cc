// SPDX-License-Identifier: Apache-2.0
#include "service/front/event_stream.h"

#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cairn/v1/events.pb.h"
#include "proto/convert.h"
#include "service/front/paced_stream.h"

namespace cairn {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(20);  // between looks at the log

class EventStream final : public PacedStream {
 public:
  EventStream(const CallPlace& place, EventLog& log, Sessions& sessions, Spaces& spaces)
      : PacedStream(place, absl::UnavailableError("the call has ended")),
        log_(log),
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
    cursor_ = {.epoch = request.epoch(), .next = request.next_sequence()};
    CAIRN_RETURN_IF_ERROR(log_.Begin(tenant_.view(), &cursor_, &goes_on_));
    is_watching_ = true;
    return goes_on_ ? Next() : Reset();
  }

  absl::StatusOr<Message> Next() override {
    CAIRN_RETURN_IF_ERROR(sessions_.Find(ticket_).status());
    events_.clear();
    const uint64_t first = cursor_.next;
    if (!log_.Read(tenant_.view(), &cursor_, limits::kEventsPerBatchMax, &events_)) return Reset();
    is_full_ = events_.size() == limits::kEventsPerBatchMax;
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

  // What the reader knows is void; it goes on from the cursor.
  Message Reset() {
    goes_on_ = is_full_ = false;
    spaces_told_.clear();
    batch_.Clear();
    batch_.set_reset(true);
    batch_.set_epoch(cursor_.epoch);
    batch_.set_first_sequence(cursor_.next);
    batch_.set_next_sequence(cursor_.next);
    return &batch_;
  }

  // Spaces come and go for as long as somebody watches.
  void ForgetGone() {
    if (spaces_told_.size() < limits::kSpacesMax) return;
    absl::erase_if(spaces_told_, [this](const auto& space) {
      return !spaces_.Find(space.first, tenant_.view()).ok();
    });
  }

  // False: it is of a space that is gone, and may be one of which the reader knows blocks.
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
    return true;
  }

  EventLog& log_;
  Sessions& sessions_;
  Spaces& spaces_;
  // All of these: of one step at a time.
  proto::Ticket ticket_{};
  TenantName tenant_;
  uint64_t space_id_ = 0;  // 0: all of the tenant
  EventCursor cursor_;
  bool is_watching_ = false;
  bool goes_on_ = false;  // from an earlier stream, and nothing was written yet
  bool is_full_ = false;  // the last batch: there is more
  absl::flat_hash_map<uint64_t, bool> spaces_told_;  // false: not asked for, or gone
  std::vector<IndexEvent> events_;
  v1::EventBatch batch_;
};

}  // namespace

ControlCall* StartEventStream(const CallPlace& place, EventLog& log, Sessions& sessions,
                              Spaces& spaces) {
  return new EventStream(place, log, sessions, spaces);
}

}  // namespace cairn
