// SPDX-License-Identifier: Apache-2.0
#pragma once
// Blocks that other members of the cluster have: found by Match, fetched by the first get.
//
// A Match that this daemon cannot answer completely asks the other members for the rest, in
// parallel and for a few milliseconds (`match_time`). The member with the most blocks leases them.
// What none of them has is asked again, so up to kPartsMax members have parts of one answer.
// RemoteTable remembers who has which block.
//
// A get of such a block is a miss in the index, and waits while the image is fetched. The image is
// checked as the payload of a put is, and stored as one (Puts::StoreCopy). Then the get is answered
// like any other. Gets of one image share one fetch. docs/internals/adr/0041-copies-of-members.md
// says why copies are fetched into the host tier.
//
// The space of a question has a generation (service/members/generations.h). What a member has of
// another one is not used: an older one was deleted, and a newer one says that this daemon's own
// blocks were. A copy is stored only while its generation is the current one.
//
// A member's request is answered from this daemon's own tiers, so no request is passed on twice.
//
// Thread-safety: Thread-safe. Start() and Stop() are Owned by one thread. Callbacks run without
// locks. The threads are named "peer-match-N", "peer-ask-N", "peer-delete-N" and "peer-read-N".
// Locks:         none is held while the index, a put or a member is called.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "proto/frame.h"
#include "service/index/block_index.h"
#include "service/index/match.h"
#include "service/members/generations.h"
#include "service/members/members.h"
#include "service/peer/locator.h"
#include "service/peer/peer_reader.h"
#include "service/put/put.h"
#include "service/remote/late_deletes.h"
#include "service/remote/remote_table.h"
#include "service/remote/workers.h"
#include "service/request.h"
#include "service/spaces.h"

namespace cairn {

// One image that is being fetched, and who waits for it.
struct RemoteFetch {
  BlockName block;
  uint16_t group = 0;
  codecs::Slice slice;
  size_t index = 0;       // of the block, in its run
  Request request;        // of the first get: its session stores the copy, by its deadline
  bool is_ahead = false;  // no get waited for it when it began: gets go before it
  std::vector<std::function<void()>> waiters = {};
};

class RemoteBlocks {
 public:
  // The members that have parts of one answer.
  static constexpr int kPartsMax = 3;
  static constexpr size_t kBlocksMax = 65'536;

  struct Parts {  // borrowed
    Spaces& spaces;
    BlockIndex& index;
    Puts& puts;
    const Members& members;
    Locator& locator;
    PeerReader& reader;
    Generations& generations;
    const Clock& clock;
    // Whether a member may tell of deletions of the tenant.
    std::function<bool(const PeerIdentity& identity, std::string_view tenant)> may_use;
  };
  struct Options {
    absl::Duration match_time;  // how long a Match waits for other members
  };
  RemoteBlocks(const Parts& parts, const Options& options);
  ~RemoteBlocks() { Stop(); }

  // Later questions and fetches are refused. Those that run end within their deadlines. Idempotent.
  void Stop();

  // --- Match

  using Extended = std::function<void(MatchAnswer)>;
  // Adds blocks of other members to this daemon's own answer. `done` runs once: in this call if
  // nobody is asked, otherwise on a thread of this object, at `deadline` (on the clock of
  // MonotonicNow()) at the latest.
  void Extend(MatchQuery query, MatchAnswer own, absl::Time deadline, Extended done);
  // Returns whether a member's answer can be used. It cannot if it is of another generation than
  // the question; if of a higher one, this daemon drops its blocks first.
  bool IsUsable(const Member& member, const PeerQuestion& question,
                const PeerReader::Found& answer);
  // The generation of a question about the space. Read it before the question.
  uint64_t GenerationOf(const SpaceEntry& space) const {
    return parts_.generations.Of(space.tenant(), space.fingerprint());
  }
  // Adds blocks that a member has leased to this daemon, for Fetch(). They end with the session of
  // the lease. Returns false if there are too many.
  [[nodiscard]] bool Add(RemoteLease&& lease);
  // Ends the parts of leases that Extend() added. Ignores other leases.
  void Release(std::string_view tenant, absl::Span<const proto::LeaseToken> leases);
  void EndSession(uint64_t session_id);
  // Call it before this daemon deletes blocks by their keys. Reads of them that are under way are
  // not stored. For some seconds, none is taken from members: one may not have heard of the
  // deletion.
  void BeginDelete(uint64_t space_id, absl::Span<const proto::BlockKey> keys);
  // Deletes blocks at all other members; if `keys` is empty, all blocks of the space that are older
  // than `generation`, and without a generation all blocks. `done` gets
  // the names of the members that did not confirm it by `deadline`. Runs as for Extend(). Look()
  // asks these members again to delete the blocks (service/remote/late_deletes.h).
  using Deleted = std::function<void(std::vector<std::string> unreached)>;
  void Delete(const SpaceEntry& space, std::vector<proto::BlockKey> keys, uint64_t generation,
              absl::Time deadline, Deleted done);
  // Forgets which members have blocks of the space, because all of them were deleted.
  void Forget(uint64_t space_id) { table_.Forget(space_id); }
  // Ends leases that are over, closes unused sessions, and asks members again for deletions that
  // they did not confirm. Call it about once a second.
  void Look();

  // --- Get

  // Fetches the block if a member has leased it to this daemon. Returns false if none has, or if
  // too many fetches wait; then `done` is dropped. Otherwise `done` runs once, when the copy is
  // stored or cannot be had.
  bool Fetch(const Request& request, const proto::Get& get, const codecs::Slice& slice,
             std::function<void()> done) {
    return Fetch(request, get, slice, std::move(done), /*is_ahead=*/false);
  }
  // Fetches the missing images of a block before gets ask for them, if a member has leased it. At
  // most kAheadMax images at a time are fetched in this way.
  static constexpr int kAheadMax = 64;
  enum class Ahead : uint8_t { kNowhere, kBegun, kFull };
  Ahead FetchAhead(const Session& session, const BlockName& block,
                   std::span<const WantedGroup> wanted);

  void Report(MetricSink& sink) const;

 private:
  struct Asking;  // of one Match
  struct Round;   // of one question to several members
  struct FetchKey {
    BlockName block;
    uint16_t group = 0;
    codecs::Slice slice;
    friend bool operator==(const FetchKey&, const FetchKey&) = default;
    template <typename H>
    friend H AbslHashValue(H state, const FetchKey& key) {
      return H::combine(std::move(state), key.block, key.group, key.slice.layer_first,
                        key.slice.layer_count, key.slice.head_first, key.slice.head_count);
    }
  };
  using FetchRef = std::shared_ptr<RemoteFetch>;
  using RunRef = std::shared_ptr<RemoteRun>;

  // The members that are asked for the blocks of a query from the index `first` on.
  std::vector<Member> Candidates(const SpaceEntry& space, const MatchQuery& query, size_t first,
                                 absl::Time deadline);
  void Ask(Asking& asking);
  // Adds what one member has from block `first` on. Returns false if none has anything.
  bool AddPart(Asking& asking, size_t first);
  // Adds blocks of this daemon that follow.
  void AddOwn(Asking& asking);
  std::optional<PeerReader::Found> AskMembers(const std::vector<Member>& members,
                                              PeerQuestion question, size_t more_than,
                                              absl::Time deadline);
  // Takes everything out of an answer whose space was deleted meanwhile.
  void Empty(Asking& asking);
  bool IsCurrent(const SpaceEntry& space, uint64_t generation) const {
    return parts_.generations.IsCurrent(space.tenant(), space.fingerprint(), generation);
  }
  // Drops leases on a thread that may wait for the network.
  void Drop(RemoteTable::Leases leases);
  // Asks each member that has joined for one of the deletions that it did not confirm.
  void DeleteLate();

  bool Fetch(const Request& request, const proto::Get& get, const codecs::Slice& slice,
             std::function<void()> done, bool is_ahead);
  // Reads the next images of a run, then those that were added meanwhile.
  void Read(const RunRef& run);
  void ReadBatch(const RunRef& run, std::span<const FetchRef> batch);
  void Store(const RunRef& run, const FetchRef& fetch, std::span<const std::byte> image,
             uint64_t first_position);
  // Returns the side object that the image names, which must be kept until the copy is stored. Gets
  // it from the member if this daemon lacks it. Empty if the image names none.
  absl::StatusOr<SideObjectRef> KeepSideObject(const RunRef& run, const FetchRef& fetch,
                                               std::span<const std::byte> image);
  // Calls those that wait. After an error the block counts as absent.
  void End(const RunRef& run, const FetchRef& fetch, const absl::Status& status);

  const Parts parts_;
  const Options options_;
  RemoteTable table_{kBlocksMax};
  LateDeletes late_deletes_;
  mutable Mutex mutex_;
  absl::flat_hash_map<FetchKey, FetchRef> fetches_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int> ahead_{0};                        // images that FetchAhead() fetches now
  Counter found_, nothing_, late_, refused_;         // questions, by outcome
  Counter stored_, absent_, rejected_, read_bytes_;  // fetches, by outcome
  Histogram match_seconds_{LatencyBounds()}, read_seconds_{LatencyBounds()};
  // Stop() ends their jobs in this order.
  Workers matchers_, askers_, deleters_, readers_;
};

}  // namespace cairn
