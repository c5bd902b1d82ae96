// SPDX-License-Identifier: Apache-2.0
// The C ABI: events of blocks that enter or leave tiers.
#include "client/cpp/events.h"

#include <memory>
#include <vector>

#include "base/status.h"
#include "client/c/cairn.h"
#include "client/c/convert.h"
#include "client/c/guard.h"
#include "client/c/handles.h"

struct cairn_watch {
  std::unique_ptr<cairn::EventWatch> watch;
  // Of the last batch:
  cairn::EventBatch batch;
  std::vector<cairn_event> events;
  std::vector<cairn_names> names;  // borrow from `batch`
};

namespace cairn::c {
namespace {

absl::Status ReadBatch(cairn_watch* watch, uint32_t timeout_ms, cairn_event_batch* target) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("watch", watch));
  CAIRN_RETURN_IF_ERROR(CheckStruct("batch", target));
  CAIRN_ASSIGN_OR_RETURN(watch->batch, watch->watch->Next(Timeout(timeout_ms)));
  const EventBatch& batch = watch->batch;
  watch->events.clear();
  watch->names.clear();
  for (const BlockEvent& event : batch.events) {
    cairn_event& added = watch->events.emplace_back();
    added.stored = event.is_stored ? 1 : 0;
    added.tier = static_cast<int32_t>(event.tier);
    std::memcpy(added.space, event.space.data(), sizeof(added.space));
    added.key = Bytes<cairn_key>(event.key);
    added.parent = Bytes<cairn_key>(event.parent);
    added.first_position = event.first_position;
    added.token_count = event.token_count;
    watch->names.push_back(ToNames(
        {.hash = event.engine_hash, .parent = event.engine_parent, .tokens = event.tokens}));
  }
  cairn_event_batch value{};
  value.reset = batch.is_reset ? 1 : 0;
  value.epoch = batch.position.epoch;
  value.first_sequence = batch.first_sequence;
  value.next_sequence = batch.position.next_sequence;
  value.events = watch->events.data();
  value.event_count = watch->events.size();
  value.names = watch->names.data();
  value.snapshot = static_cast<int32_t>(batch.snapshot);
  WriteStruct(value, target);
  return absl::OkStatus();
}

}  // namespace
}  // namespace cairn::c

// Outside all namespaces: C functions.
int cairn_watch_open_with(cairn_client* client, cairn_space* space,
                          const cairn_watch_options* options, cairn_watch** watch) {
  return cairn::c::Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(cairn::c::CheckPointer("client", client));
    CAIRN_RETURN_IF_ERROR(cairn::c::CheckPointer("watch", watch));
    CAIRN_RETURN_IF_ERROR(cairn::c::CheckStruct("options", options));
    const cairn_watch_options known = cairn::c::ReadStruct(options);
    const cairn::EventPosition position{.epoch = known.epoch, .next_sequence = known.next_sequence};
    const bool has_snapshots = known.snapshots != 0;
    *watch = new cairn_watch{space == nullptr ? client->client->Watch(position, has_snapshots)
                                              : space->space->Watch(position, has_snapshots),
                             {},
                             {},
                             {}};
    return absl::OkStatus();
  });
}

int cairn_watch_open(cairn_client* client, cairn_space* space, uint64_t epoch,
                     uint64_t next_sequence, cairn_watch** watch) {
  const cairn_watch_options options = {.struct_bytes = sizeof(options),
                                       .snapshots = 0,
                                       .epoch = epoch,
                                       .next_sequence = next_sequence};
  return cairn_watch_open_with(client, space, &options, watch);
}

int cairn_watch_next(cairn_watch* watch, uint32_t timeout_ms, cairn_event_batch* batch) {
  return cairn::c::Guard([&] { return cairn::c::ReadBatch(watch, timeout_ms, batch); });
}

void cairn_watch_close(cairn_watch* watch) { delete watch; }
