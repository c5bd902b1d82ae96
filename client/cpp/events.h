// SPDX-License-Identifier: Apache-2.0
#pragma once
// Events: blocks that enter or leave a daemon's tiers. A router uses them to send a request to the
// daemon that has its prefix.
//
//   auto watch = client->Watch();
//   for (;;) {
//     const auto batch = watch->Next(absl::Seconds(1));
//     if (!batch.ok()) continue;                  // nothing came, or the daemon is unavailable
//     if (batch->is_reset) known.clear();         // events were lost, or the daemon is a new one
//     for (const BlockEvent& event : batch->events) …
//   }
//
// The daemon does not wait for slow readers. After a reset it sends a snapshot of what is stored,
// in pages, if the watch asks for it and the daemon knows snapshots (EventBatch::snapshot).

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

// An event: a block got its first image in a tier, or lost its last image there.
struct BlockEvent {
  bool is_stored = false;
  Tier tier = Tier::kNone;
  Fingerprint space{};
  BlockKey key{};
  // If is_stored:
  BlockKey parent{};  // all zero: unknown
  uint64_t first_position = 0;
  uint32_t token_count = 0;
  // The engine's own hash of the block. Events of both kinds have it. Empty: unknown.
  std::vector<std::byte> engine_hash;
  // If is_stored: the engine's hash of the previous block, and the ids of the block's tokens.
  // Empty: unknown.
  std::vector<std::byte> engine_parent;
  std::vector<uint32_t> tokens;
};

// The position of a watch. The sequence numbers of a tenant have no gaps, and start again in each
// epoch of the daemon.
struct EventPosition {
  uint64_t epoch = 0;  // 0: start with the next event
  uint64_t next_sequence = 0;
};

// The role of a batch in a snapshot.
enum class SnapshotPart : uint8_t {
  kNone = 0,     // an ordinary batch, or a reset without a snapshot
  kFollows = 1,  // a reset; the snapshot's pages follow
  kPage = 2,     // stored blocks, in no order
  kLastPage = 3,
};

struct EventBatch {
  bool is_reset = false;  // discard everything known from earlier batches
  SnapshotPart snapshot = SnapshotPart::kNone;
  uint64_t first_sequence = 0;  // next_sequence of the previous batch, except after a reset
  EventPosition position;       // where the next watch continues
  std::vector<BlockEvent> events;
};

// Thread-safety: Thread-compatible. The Client, and the Space, must outlive it.
class EventWatch {
 public:
  ~EventWatch();

  // Returns the next batch. The first batch is a reset, unless the daemon still has all events
  // since the position. Errors leave the position unchanged, and the next call continues there:
  // DeadlineExceeded (no event came), Unavailable (the daemon is unreachable), ResourceExhausted
  // (too many watchers).
  absl::StatusOr<EventBatch> Next(absl::Duration timeout = absl::ZeroDuration());

 private:
  friend class Client;
  friend class Space;
  // Returns the current id of a space; 0: all spaces.
  using SpaceId = std::function<absl::StatusOr<uint64_t>(absl::Time deadline)>;
  EventWatch(ClientCore& core, SpaceId space_id, const EventPosition& position, bool has_snapshots);

  absl::Status Open(absl::Time deadline);

  ClientCore& core_;
  const SpaceId space_id_;
  EventPosition position_;
  const bool has_snapshots_;
  std::unique_ptr<EventReader> reader_;  // null: no call is running
  absl::flat_hash_map<uint64_t, Fingerprint> spaces_;
};

}  // namespace cairn
