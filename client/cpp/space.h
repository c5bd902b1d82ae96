// SPDX-License-Identifier: Apache-2.0
#pragma once
// An open space: the blocks of one tenant for one model and one geometry of its KV.
//
// After a restart of the daemon, the next call opens the space again.

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/cpp/block_io.h"
#include "client/cpp/buffer.h"
#include "client/cpp/client.h"
#include "client/cpp/events.h"
#include "client/cpp/side_objects.h"
#include "client/cpp/transfer.h"
#include "codecs/types/shape.h"
#include "proto/block_key.h"

namespace cairn {

struct MatchRequest {
  std::span<const BlockKey> keys{};            // keys of consecutive blocks, from the start of the
                                               // sequence on
  std::span<const GroupSlice> slices{};        // slices to find; if a group has no slice here, all
                                               // of it is needed
  std::span<const uint32_t> groups_skipped{};  // groups to leave out
  uint32_t token_limit = 0;                    // the prefix has at most so many tokens; 0: no limit
  // How long to wait until all keys are stored, because a prefill may still be running. After that
  // time, returns the blocks that were found.
  absl::Duration wait = absl::ZeroDuration();
  bool is_counting = false;                       // only count blocks, without a lease
  absl::Duration timeout = absl::ZeroDuration();  // zero: wait + the default
  uint64_t generation = 0;                        // from daemons to daemons (store.proto)
};

struct MatchedBlock {
  Tier tier = Tier::kNone;
  uint64_t image_bytes = 0;                       // size of the images of the requested slices
  absl::Duration ttl = absl::InfiniteDuration();  // until the block expires
};

struct MatchResult {
  uint32_t block_count = 0;  // 0: a miss
  uint64_t token_count = 0;
  // The lease that pins the blocks. Any client of the tenant may use it for gets. All zero: no
  // lease.
  LeaseToken lease{};
  // The duration of the lease. The lease does not expire before this time, nor while the session
  // that took it is open.
  absl::Duration lease_time;
  std::vector<MatchedBlock> blocks;
  bool is_shortened_by_pins = false;  // more blocks exist, but too much of the tier is pinned
  bool is_breaker_open = false;       // the daemon was not asked (breaker.h)
  uint64_t generation = 0;            // from daemons to daemons (store.proto)

  // The images of the blocks, for Breaker::Advise().
  Breaker::Bytes image_bytes() const;
};

struct PrefetchRequest {
  std::span<const BlockKey> keys{};            // keys of any blocks, the most urgent first
  std::span<const GroupSlice> slices{};        // slices to read; if a group has no slice here, all
                                               // of it is read
  std::span<const uint32_t> groups_skipped{};  // groups to leave out
  absl::Duration timeout = absl::ZeroDuration();
};

// The number of keys in each state.
struct PrefetchResult {
  uint32_t in_memory_count = 0;
  // Keys that are being read or are queued. After the read, Match() finds them in memory.
  uint32_t on_their_way_count = 0;
  uint32_t absent_count = 0;   // keys with a wanted slice that is not stored
  uint32_t refused_count = 0;  // not queued, because the queue is full; try again later
};

// Where a block is, or why it is not stored. The numbers are those of BlockFate in the protocol.
struct ExplainedBlock {
  enum class State : uint8_t { kUnspecified, kStored, kIncomplete, kAbsent };
  enum class Reason : uint8_t {
    kNone,      // it is stored
    kUnknown,   // removed before the recorded period, or never put
    kNeverPut,  // since the daemon started
    kEvicted,
    kExpired,
    kDeleted,
    kInvalidated,
    kDamaged,
    kDeviceOut,
    kRefused,  // its last put was refused
  };
  State state = State::kUnspecified;
  Reason reason = Reason::kNone;
  std::vector<Tier> tiers;     // that have a copy, the fastest first
  absl::Duration removed_ago;  // time since the block was removed or refused
  uint32_t missing_group = 0;  // set if the block is incomplete
};
std::string_view Name(ExplainedBlock::Reason reason);  // "evicted", "never-put", …

struct ExplainResult {
  std::vector<ExplainedBlock> blocks;  // one per key
  // How far back removals and refusals are recorded.
  absl::Duration recorded;
};

struct TierBlocks {
  Tier tier = Tier::kNone;  // the slowest that a reader of the block needs
  uint32_t block_count = 0;
};

// How much of a prefix a member of the daemon's cluster has.
struct MemberBlocks {
  std::string member;             // its name; empty: the daemon belongs to no cluster
  bool is_self = false;           // the daemon that was asked
  uint32_t block_count = 0;       // from the first block on
  std::vector<TierBlocks> tiers;  // of these blocks, the fastest tier first
  bool is_draining = false;       // it is about to stop
  std::string failure;  // why it has not answered; what it has is unknown then. Empty: it has
};

struct WhereResult {
  // The daemon that was asked is the first. Those that have more blocks come before others.
  std::vector<MemberBlocks> members;
  uint32_t unasked_count = 0;  // other members that were not asked, because the cluster is large
};

// Limits of hints (limits.h of the daemon).
inline constexpr absl::Duration kHintTimeMax = absl::Seconds(604'800);
inline constexpr uint32_t kRetainPriorityMax = 5;

// Thread-safety: Thread-safe. The Client must outlive it.
class Space {
 public:
  ~Space() = default;
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  const proto::SpaceIdentity& identity() const { return identity_; }
  const Fingerprint& fingerprint() const { return fingerprint_; }
  // Returns the recipe that the space had when it was last opened.
  std::string recipe() const;
  bool was_created() const { return was_created_; }

  // Derives keys of blocks (proto/block_key.h). Pure.
  BlockKey DeriveKey(const BlockKey& parent, std::span<const uint32_t> tokens,
                     std::span<const proto::KeyExtra> extras = {}) const;
  std::vector<BlockKey> DeriveChain(std::span<const uint32_t> tokens,
                                    std::span<const proto::KeyExtra> extras = {}) const;
  BlockKey OpaqueKey(std::span<const std::byte> engine_key) const;

  // Checks a slice against this space. Errors: InvalidArgument, naming the field.
  absl::StatusOr<PlacedSlice> Place(const GroupSlice& slice) const {
    return PlaceSlice(shapes_, slice);
  }
  // Sizes of a slice of one block. Errors: InvalidArgument, naming the field.
  absl::StatusOr<uint64_t> SourceBytes(const GroupSlice& slice) const;
  absl::StatusOr<uint64_t> ImageBytesMax(const GroupSlice& slice) const;

  // Finds the longest stored prefix and leases its blocks in the same call. A miss is OK, with
  // block_count 0.
  absl::StatusOr<MatchResult> Match(const MatchRequest& request);

  // Queues reads of blocks into the daemon's memory and returns at once. Reads that a get waits for
  // run first.
  absl::StatusOr<PrefetchResult> Prefetch(const PrefetchRequest& request);

  absl::StatusOr<PutResult> Put(const PutRequest& request,
                                absl::Duration timeout = absl::ZeroDuration());
  // Gets one block. Errors: NotFound means a miss. If the status is not OK, the target's content is
  // unspecified.
  absl::StatusOr<GetResult> Get(const GetRequest& request,
                                absl::Duration timeout = absl::ZeroDuration());
  // Runs many puts or gets, pipelined over one connection. Results are in the order of the
  // requests.
  std::vector<absl::StatusOr<PutResult>> PutBatch(std::span<const PutRequest> requests,
                                                  absl::Duration timeout = absl::ZeroDuration());
  std::vector<absl::StatusOr<GetResult>> GetBatch(std::span<const GetRequest> requests,
                                                  absl::Duration timeout = absl::ZeroDuration());

  // Returns, for each key, whether all its groups, layers and heads are stored. Takes no lease.
  absl::StatusOr<std::vector<bool>> Contains(std::span<const BlockKey> keys,
                                             absl::Duration timeout = absl::ZeroDuration());
  // Returns, for each key, the tiers that have the block, or why it is not stored. Takes no lease.
  // Errors: Unimplemented (the daemon is older than version 0.2).
  absl::StatusOr<ExplainResult> Explain(std::span<const BlockKey> keys,
                                        absl::Duration timeout = absl::ZeroDuration());

  // Returns how much of a prefix each member of the cluster has, for routers. Fetches nothing,
  // takes no lease, changes no recency, and counts as no match. Members are waited for until the
  // timeout, for two seconds at most. Errors: ResourceExhausted (too many of these calls are
  // running), Unimplemented (the daemon is older).
  absl::StatusOr<WhereResult> Where(std::span<const BlockKey> keys,
                                    absl::Duration timeout = absl::ZeroDuration());

  // Hints on how long blocks are worth keeping. They change the order of eviction and do not pin
  // blocks (docs/guides/memory.md). A hint may name blocks that are not stored yet. The last hint
  // on a block replaces earlier ones. Both functions return how many of the blocks are stored now.
  // Errors: InvalidArgument (the message names the limit), ResourceExhausted (the tenant's hints
  // are at their limit; nothing was changed), Unimplemented (an older daemon).
  //
  // For a time from 1 s to kHintTimeMax, evicts the blocks only after all blocks of a lower
  // priority. `priority` is from 1 to kRetainPriorityMax.
  absl::StatusOr<uint32_t> Retain(std::span<const BlockKey> keys, absl::Duration time,
                                  uint32_t priority = 1,
                                  absl::Duration timeout = absl::ZeroDuration());
  // Once `after` has passed, evicts the blocks before others, unless they are used after this call.
  absl::StatusOr<uint32_t> Demote(std::span<const BlockKey> keys,
                                  absl::Duration after = absl::ZeroDuration(),
                                  absl::Duration timeout = absl::ZeroDuration());

  // Deletes the blocks of `keys`, or all blocks. Both functions return the number of deleted
  // blocks. `generation` is from daemons to daemons (store.proto).
  absl::StatusOr<uint64_t> Delete(std::span<const BlockKey> keys,
                                  absl::Duration timeout = absl::ZeroDuration());
  absl::StatusOr<uint64_t> Invalidate(absl::Duration timeout = absl::ZeroDuration(),
                                      uint64_t generation = 0);

  // Watches the space's blocks enter and leave tiers, starting at a position. With
  // snapshots, the daemon reports what is stored after each reset.
  std::unique_ptr<EventWatch> Watch(const EventPosition& position = {}, bool has_snapshots = false);

  // Side objects: profiles and banks, which the encoder and the decoder of some recipes read
  // (docs/internals/formats/profile.md, bank.md).
  //
  // Installs a side object as the current one of its kind for a group: the daemon encodes later
  // puts with it. Blocks that are already stored keep theirs. Equal bytes have equal ids and may be
  // installed again. Errors: InvalidArgument (there is no such group; the bytes are not of that
  // kind or have another geometry; or a profile lacks the rate of the space's recipe),
  // ResourceExhausted (the budget for side objects of the tenant, or of all tenants, is used up).
  absl::StatusOr<InstalledSideObject> PutSideObject(uint32_t group, SideObjectKind kind,
                                                    std::span<const std::byte> bytes,
                                                    absl::Duration timeout = absl::ZeroDuration());
  // Returns a side object from the cache, or fetches it and checks it against its id. Errors:
  // NotFound (the space does not have it, or no longer has it), DataLoss (the bytes do not match
  // the id).
  absl::StatusOr<SideObjectHandle> GetSideObject(const Digest& id,
                                                 absl::Duration timeout = absl::ZeroDuration());
  // Returns the current side object of a kind for a group, or null if there is none. This client
  // uses it to encode puts into the group. The answer may be a second old.
  absl::StatusOr<SideObjectHandle> GetCurrentSideObject(
      uint32_t group, SideObjectKind kind, absl::Duration timeout = absl::ZeroDuration());
  absl::StatusOr<std::vector<SideObjectFigures>> ListSideObjects(
      absl::Duration timeout = absl::ZeroDuration());

 private:
  friend class Client;
  friend class DeviceMover;
  // The daemon's answer to opening the space in one session.
  struct Opened {
    uint64_t epoch = 0;
    uint64_t space_id = 0;
    codecs::Recipe recipe;
  };
  // A session, and the space as opened in that session.
  struct Bound {
    SessionInfo session;
    Opened opened;
  };

  Space(ClientCore& core, proto::SpaceIdentity identity, std::string recipe);
  absl::StatusOr<Bound> Bind(absl::Time deadline);
  // Used by components that move blocks of the space all the time. PutBatch() is like the public
  // function, but also calls `meanwhile` while the puts run. AllocateStaging() is like
  // Client::AllocateBuffer(), for memory that is kept.
  std::vector<absl::StatusOr<PutResult>> PutBatch(std::span<const PutRequest> requests,
                                                  absl::Duration timeout, Meanwhile meanwhile);
  absl::StatusOr<Buffer> AllocateStaging(size_t bytes, absl::Duration timeout);
  // Checks `requests` against the space, and runs them as exchanges of ExchangeType in the current
  // session.
  template <typename ExchangeType, typename Result, typename Request>
  std::vector<absl::StatusOr<Result>> RunBatch(std::span<const Request> requests,
                                               absl::Duration timeout,
                                               Meanwhile meanwhile = NothingMeanwhile);
  absl::StatusOr<SideObjectHandle> FetchSideObject(const Bound& bound, const Digest& id,
                                                   absl::Time deadline);
  absl::StatusOr<std::vector<SideObjectFigures>> AskSideObjects(const Bound& bound,
                                                                absl::Time deadline);
  // Returns the current side object for a put into the group; null if there is none.
  absl::StatusOr<SideObjectHandle> CurrentSideObject(const Bound& bound,
                                                     const SideObjectCache::Slot& slot,
                                                     absl::Time deadline);
  // Adds completed exchanges, which took `elapsed` together, to the client's counters.
  void Account(const std::deque<PutExchange>& puts, absl::Duration elapsed);
  void Account(const std::deque<GetExchange>& gets, absl::Duration elapsed);

  ClientCore& core_;
  const proto::SpaceIdentity identity_;
  const std::vector<codecs::GroupShape> shapes_;
  const Fingerprint fingerprint_;
  const std::string recipe_wanted_;
  bool was_created_ = false;  // set before any other thread sees the space
  SideObjectCache side_objects_;
  mutable Mutex mutex_;
  Opened opened_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
