// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/events.h"

#include <span>
#include <string>
#include <utility>

#include "base/status.h"
#include "client/cpp/core.h"
#include "client/cpp/event_reader.h"
#include "proto/convert.h"

namespace cairn {

namespace {

std::vector<std::byte> BytesOf(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

EventWatch::EventWatch(ClientCore& core, SpaceId space_id, const EventPosition& position,
                       bool has_snapshots)
    : core_(core),
      space_id_(std::move(space_id)),
      position_(position),
      has_snapshots_(has_snapshots) {}

EventWatch::~EventWatch() = default;

absl::Status EventWatch::Open(absl::Time deadline) {
  v1::WatchEventsRequest request;
  CAIRN_ASSIGN_OR_RETURN(const uint64_t space_id, space_id_(deadline));
  request.set_space_id(space_id);
  request.set_epoch(position_.epoch);
  request.set_next_sequence(position_.next_sequence);
  request.set_snapshot(has_snapshots_);
  CAIRN_ASSIGN_OR_RETURN(reader_, core_.control->WatchEvents(std::move(request), deadline));
  spaces_.clear();
  return absl::OkStatus();
}

absl::StatusOr<EventBatch> EventWatch::Next(absl::Duration timeout) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_.Begin(timeout, kControlTimeoutDefault));
  if (reader_ == nullptr) {
    CAIRN_RETURN_IF_ERROR(Open(deadline));
  }
  absl::StatusOr<v1::EventBatch> read = reader_->Read(deadline);
  if (!read.ok()) {
    if (!absl::IsDeadlineExceeded(read.status())) {
      reader_.reset();
    }
    return read.status();
  }
  EventBatch batch;
  batch.is_reset = read->reset();
  batch.snapshot = static_cast<SnapshotPart>(read->snapshot());
  batch.first_sequence = read->first_sequence();
  for (const v1::WatchedSpace& space : read->spaces()) {
    CAIRN_ASSIGN_OR_RETURN(spaces_[space.space_id()],
                           proto::FromKeyBytes(space.fingerprint(), "fingerprint"));
  }
  for (const v1::BlockEvent& event : read->events()) {
    BlockEvent& added = batch.events.emplace_back();
    added.is_stored = event.kind() == v1::BlockEvent::KIND_STORED;
    added.tier = static_cast<Tier>(event.tier());
    added.space = spaces_[event.space_id()];
    CAIRN_ASSIGN_OR_RETURN(added.key, proto::FromKeyBytes(event.key(), "key"));
    if (!event.parent().empty()) {
      CAIRN_ASSIGN_OR_RETURN(added.parent, proto::FromKeyBytes(event.parent(), "parent"));
    }
    added.first_position = event.first_position();
    added.token_count = event.token_count();
    added.engine_hash = BytesOf(event.engine_hash());
    added.engine_parent = BytesOf(event.engine_parent());
    added.tokens.assign(event.tokens().begin(), event.tokens().end());
  }
  position_ = batch.position = {.epoch = read->epoch(), .next_sequence = read->next_sequence()};
  return batch;
}

}  // namespace cairn
