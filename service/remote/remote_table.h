// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks that other members have leased to this daemon, for which of its clients.
//
// A client's lease may have parts of this daemon (index/leases.h) and parts of other members. They
// have the same token and end together: when the client releases it, when its session ends, or
// kLeaseMsMax after its start.
//
// Thread-safety: Thread-safe. It calls nobody. What it returns is dropped by the caller, because a
// member's lease is given back over the network.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "proto/block_key.h"
#include "proto/frame.h"
#include "service/peer/peer_reader.h"
#include "service/spaces.h"
#include "service/tier/block_name.h"

namespace cairn {

struct RemoteFetch;

// Consecutive blocks of a chain that one member has. Immutable, except for what its lock guards.
struct RemoteRun {
  PeerReader::Found found;
  SpaceRef space;
  std::vector<proto::BlockKey> keys;  // of found.blocks(), in their order
  proto::BlockKey parent{};           // of the first; all zero: it has none, or it is unknown
  // Of each, if the keys make no chain; else empty.
  std::vector<proto::BlockKey> parents = {};
  uint64_t first_position = 0;  // of the first, if the keys make a chain
  absl::Time matched_at;        // on the clock of Clock::Now()
  uint64_t generation = 0;      // of the space, when it was matched
  bool is_offered = false;      // by the member, which stops: its copies are blocks like any other

  Mutex mutex;
  // Of each block, what may still be read, if the member has said how much there is. Empty: as much
  // as an image may have.
  std::vector<uint64_t> bytes_left ABSL_GUARDED_BY(mutex);
  std::deque<std::shared_ptr<RemoteFetch>> waiting ABSL_GUARDED_BY(mutex);  // to be read
  int readers ABSL_GUARDED_BY(mutex) = 0;                                   // jobs that read them
};

// How many bytes an image of the block may have, of `max`.
uint64_t BytesLeft(RemoteRun& run, size_t index, uint64_t max);
// Counts an image that was read. Returns false if the block's images have more than the member has
// said.
bool TakeBytes(RemoteRun& run, size_t index, uint64_t bytes);

// The parts of a client's lease that are not this daemon's first part.
struct RemoteLease {
  proto::LeaseToken token{};  // the client's
  std::string tenant;
  uint64_t session_id = 0;
  std::vector<std::shared_ptr<RemoteRun>> runs;
  // Of this daemon's own blocks that follow blocks of another member.
  std::vector<proto::LeaseToken> own;
};

class RemoteTable {
 public:
  using Leases = std::vector<RemoteLease>;
  static constexpr size_t kDeletingMax = 65'536;

  // `blocks_max` limits the blocks of all runs together.
  explicit RemoteTable(size_t blocks_max) : blocks_max_(blocks_max) {}

  // Returns false, and leaves `lease` unchanged, if there is no room.
  [[nodiscard]] bool Add(RemoteLease&& lease, absl::Time expires);
  struct Place {
    std::shared_ptr<RemoteRun> run;  // null: no member has leased the block
    size_t index = 0;                // in run->keys
  };
  Place Find(const BlockName& block) const;
  // The run does not have the block any more.
  void Forget(const BlockName& block, const RemoteRun* run);
  // Forgets all blocks of the space, because they were deleted.
  void Forget(uint64_t space_id);
  // Forgets blocks that are being deleted, and finds none of them before Expire(until). Of more
  // than kDeletingMax blocks, the rest may be found if a member leases it.
  void Forget(uint64_t space_id, absl::Span<const proto::BlockKey> keys, absl::Time until);
  bool IsDeleting(const BlockName& block) const;
  // Returns the number of keys before the first one that is being deleted.
  size_t CountBeforeDeleting(uint64_t space_id, absl::Span<const proto::BlockKey> keys) const;

  [[nodiscard]] Leases Release(std::string_view tenant, absl::Span<const proto::LeaseToken> tokens);
  [[nodiscard]] Leases EndSession(uint64_t session_id);
  [[nodiscard]] Leases Expire(absl::Time now);
  [[nodiscard]] Leases Clear();
  size_t block_count() const;

 private:
  struct Entry {
    RemoteLease lease;
    absl::Time expires;
  };
  using Places = absl::InlinedVector<Place, 1>;
  RemoteLease TakeLocked(absl::flat_hash_map<proto::LeaseToken, Entry>::iterator found)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  template <typename Predicate>
  Leases TakeIf(Predicate predicate);

  const size_t blocks_max_;
  mutable Mutex mutex_;
  absl::flat_hash_map<proto::LeaseToken, Entry> leases_ ABSL_GUARDED_BY(mutex_);
  // The last place is the newest.
  absl::flat_hash_map<BlockName, Places> blocks_ ABSL_GUARDED_BY(mutex_);
  size_t block_count_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<BlockName, absl::Time> deleting_ ABSL_GUARDED_BY(mutex_);  // until when
};

}  // namespace cairn
