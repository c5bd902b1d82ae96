// SPDX-License-Identifier: Apache-2.0
#pragma once
// An open space: the blocks of one model, in one geometry, of one tenant.
//
// It outlives the daemon: after a restart it opens itself again at its next call.

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
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
  std::span<const BlockKey> keys{};            // of consecutive blocks from the sequence's start
  std::span<const GroupSlice> slices{};        // wanted; groups not named are wanted whole
  std::span<const uint32_t> groups_skipped{};  // not wanted at all
  uint32_t token_limit = 0;                    // at most this many tokens of prefix; 0: no limit
  // Wait this long for all of the keys (a prefill that is still at work), then take what there is.
  absl::Duration wait = absl::ZeroDuration();
  bool is_counting = false;                       // true: take no lease
  absl::Duration timeout = absl::ZeroDuration();  // zero: wait + the default
};

struct MatchedBlock {
  Tier tier = Tier::kNone;
  uint64_t image_bytes = 0;  // of the wanted slices
};

struct MatchResult {
  uint32_t block_count = 0;  // 0: a miss
  uint64_t token_count = 0;
  // Pins the blocks. Any client of the tenant may get under it. All zero when there is none.
  LeaseToken lease{};
  absl::Duration lease_time;  // until it expires, unless the session that took it stays open
  std::vector<MatchedBlock> blocks;
  bool is_shortened_by_pins = false;  // more is there, but too much of the tier is pinned
  bool is_breaker_open = false;       // the daemon was not asked (breaker.h)
};

struct PrefetchRequest {
  std::span<const BlockKey> keys{};            // of any blocks, the most urgent first
  std::span<const GroupSlice> slices{};        // wanted; groups not named are wanted whole
  std::span<const uint32_t> groups_skipped{};  // not wanted at all
  absl::Duration timeout = absl::ZeroDuration();
};

// Each key is counted once.
struct PrefetchResult {
  uint32_t in_memory_count = 0;
  uint32_t on_their_way_count = 0;  // being read, or to be read; Match() says when they are there
  uint32_t absent_count = 0;        // something that is wanted of them is nowhere
  uint32_t refused_count = 0;       // too many wait to be read: ask again later
};

// Thread-safety: Thread-safe. The Client must outlive it.
class Space {
 public:
  ~Space() = default;
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  const proto::SpaceIdentity& identity() const { return identity_; }
  const Fingerprint& fingerprint() const { return fingerprint_; }
  // In force when the space was opened last.
  std::string recipe() const;
  bool was_created() const { return was_created_; }

  // Names of blocks (proto/block_key.h): pure.
  BlockKey DeriveKey(const BlockKey& parent, std::span<const uint32_t> tokens,
                     std::span<const proto::KeyExtra> extras = {}) const;
  std::vector<BlockKey> DeriveChain(std::span<const uint32_t> tokens,
                                    std::span<const proto::KeyExtra> extras = {}) const;
  BlockKey OpaqueKey(std::span<const std::byte> engine_key) const;

  // A slice of this space, checked. InvalidArgument names the field.
  absl::StatusOr<PlacedSlice> Place(const GroupSlice& slice) const {
    return PlaceSlice(shapes_, slice);
  }
  // Sizes of a slice of one block. InvalidArgument names the field.
  absl::StatusOr<uint64_t> SourceBytes(const GroupSlice& slice) const;
  absl::StatusOr<uint64_t> ImageBytesMax(const GroupSlice& slice) const;

  // The longest prefix that is there, leased in the same call. A miss is OK with block_count 0.
  absl::StatusOr<MatchResult> Match(const MatchRequest& request);

  // Has the daemon read blocks into memory, after all that gets wait for. Returns at once.
  absl::StatusOr<PrefetchResult> Prefetch(const PrefetchRequest& request);

  absl::StatusOr<PutResult> Put(const PutRequest& request,
                                absl::Duration timeout = absl::ZeroDuration());
  // NotFound is a miss. The target's content is unspecified unless the status is OK.
  absl::StatusOr<GetResult> Get(const GetRequest& request,
                                absl::Duration timeout = absl::ZeroDuration());
  // Many at once, pipelined over one connection; results in the order of the requests.
  std::vector<absl::StatusOr<PutResult>> PutBatch(std::span<const PutRequest> requests,
                                                  absl::Duration timeout = absl::ZeroDuration());
  std::vector<absl::StatusOr<GetResult>> GetBatch(std::span<const GetRequest> requests,
                                                  absl::Duration timeout = absl::ZeroDuration());

  // Whether each key is there with every group, layer and head. Takes no lease.
  absl::StatusOr<std::vector<bool>> Contains(std::span<const BlockKey> keys,
                                             absl::Duration timeout = absl::ZeroDuration());
  // Unlink blocks, or all of them; the number that were there.
  absl::StatusOr<uint64_t> Delete(std::span<const BlockKey> keys,
                                  absl::Duration timeout = absl::ZeroDuration());
  absl::StatusOr<uint64_t> Invalidate(absl::Duration timeout = absl::ZeroDuration());

  // What comes and goes of its blocks, from a position on.
  std::unique_ptr<EventWatch> Watch(const EventPosition& position = {});

  // Side objects: what images of some recipes are coded with, docs/internals/formats/profile.md and
  // bank.md.
  //
  // Installs one as the current of its kind for a group: what the daemon codes later puts with.
  // Blocks that are there keep theirs. The same bytes have the same id and may be installed again.
  // InvalidArgument: no such group, not of the kind, of another geometry, or a profile without the
  // rate of the space's recipe. ResourceExhausted: the tenant's side objects, or all, take their
  // budget.
  absl::StatusOr<InstalledSideObject> PutSideObject(uint32_t group, SideObjectKind kind,
                                                    std::span<const std::byte> bytes,
                                                    absl::Duration timeout = absl::ZeroDuration());
  // Out of this client's cache, or fetched and checked against its id. NotFound: the space has it
  // not (any more). DataLoss: what came is not what the id names.
  absl::StatusOr<SideObjectHandle> GetSideObject(const Digest& id,
                                                 absl::Duration timeout = absl::ZeroDuration());
  // The one of a kind that puts into a group are coded with here, as it was a second ago at most;
  // null: the group has none.
  absl::StatusOr<SideObjectHandle> GetCurrentSideObject(
      uint32_t group, SideObjectKind kind, absl::Duration timeout = absl::ZeroDuration());
  absl::StatusOr<std::vector<SideObjectFigures>> ListSideObjects(
      absl::Duration timeout = absl::ZeroDuration());

 private:
  friend class Client;
  friend class DeviceMover;
  // What the daemon of one session made of the space.
  struct Opened {
    uint64_t epoch = 0;
    uint64_t space_id = 0;
    codecs::Recipe recipe;
  };
  // A session of the client and the space as opened in it.
  struct Bound {
    SessionInfo session;
    Opened opened;
  };

  Space(ClientCore& core, proto::SpaceIdentity identity, std::string recipe);
  absl::StatusOr<Bound> Bind(absl::Time deadline);
  // As PutBatch() and, of memory that is kept, Client::AllocateBuffer(), for those who move blocks
  // of the space all the time.
  std::vector<absl::StatusOr<PutResult>> PutBatch(std::span<const PutRequest> requests,
                                                  absl::Duration timeout, Meanwhile meanwhile);
  absl::StatusOr<Buffer> AllocateStaging(size_t bytes, absl::Duration timeout);
  // Places, binds and runs `requests` as exchanges of that type.
  template <typename ExchangeType, typename Result, typename Request>
  std::vector<absl::StatusOr<Result>> RunBatch(std::span<const Request> requests,
                                               absl::Duration timeout,
                                               Meanwhile meanwhile = NothingMeanwhile);
  absl::StatusOr<SideObjectHandle> FetchSideObject(const Bound& bound, const Digest& id,
                                                   absl::Time deadline);
  absl::StatusOr<std::vector<SideObjectFigures>> AskSideObjects(const Bound& bound,
                                                                absl::Time deadline);
  // The one of its kind that a put into the group is coded with here; null where it has none.
  absl::StatusOr<SideObjectHandle> CurrentSideObject(const Bound& bound,
                                                     const SideObjectCache::Slot& slot,
                                                     absl::Time deadline);
  // Counts what has ended, all in `elapsed`.
  void Account(const std::deque<PutExchange>& puts, absl::Duration elapsed);
  void Account(const std::deque<GetExchange>& gets, absl::Duration elapsed);

  ClientCore& core_;
  const proto::SpaceIdentity identity_;
  const std::vector<codecs::GroupShape> shapes_;
  const Fingerprint fingerprint_;
  const std::string recipe_wanted_;
  bool was_created_ = false;  // set before anyone else has the space
  SideObjectCache side_objects_;
  mutable Mutex mutex_;
  Opened opened_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
