// SPDX-License-Identifier: Apache-2.0
#pragma once
// What comes into the tiers of a daemon and goes, for whoever routes requests to where their prefix
// is.
//
//   auto watch = client->Watch();
//   for (;;) {
//     const auto batch = watch->Next(absl::Seconds(1));
//     if (!batch.ok()) continue;                  // nothing came, or the daemon is away
//     if (batch->is_reset) known.clear();         // too slow, away too long, or it is another one
//     for (const BlockEvent& event : batch->events) …
//   }
//
// The daemon waits for no reader. Nothing is told of what was there before: after a reset, Contains
// and Match say what there is.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/block_io.h"
#include "proto/block_key.h"

namespace cairn {

struct ClientCore;
class EventReader;

// A block has its first image in a tier, or its last has gone from there.
struct BlockEvent {
  bool is_stored = false;
  Tier tier = Tier::kNone;
  Fingerprint space{};
  BlockKey key{};
  // Of one that is stored:
  BlockKey parent{};  // all zero: none is known
  uint64_t first_position = 0;
  uint32_t token_count = 0;
};

// Where a watch is. The numbers of a tenant have no gaps; with an epoch others begin.
struct EventPosition {
  uint64_t epoch = 0;  // 0: now
  uint64_t next_sequence = 0;
};

struct EventBatch {
  bool is_reset = false;        // what was told before is void
  uint64_t first_sequence = 0;  // the next_sequence of the batch before, but in a reset
  EventPosition position;       // to go on after this batch
  std::vector<BlockEvent> events;
};

// Thread-safety: Thread-compatible. The Client, and the Space, must outlive it.
class EventWatch {
 public:
  ~EventWatch();

  // The next batch, the first a reset unless the daemon has all since the position. Errors leave
  // the position: DeadlineExceeded, nothing came; Unavailable, the daemon is away;
  // ResourceExhausted, too many watch. The next call goes on.
  absl::StatusOr<EventBatch> Next(absl::Duration timeout = absl::ZeroDuration());

 private:
  friend class Client;
  friend class Space;
  // The number that a space has now; 0: all.
  using SpaceId = std::function<absl::StatusOr<uint64_t>(absl::Time deadline)>;
  EventWatch(ClientCore& core, SpaceId space_id, const EventPosition& position);

  absl::Status Open(absl::Time deadline);

  ClientCore& core_;
  const SpaceId space_id_;
  EventPosition position_;
  std::unique_ptr<EventReader> reader_;  // null: no call is under way
  absl::flat_hash_map<uint64_t, Fingerprint> spaces_;
};

}  // namespace cairn
