// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the longest stored prefix of a chain that a reader can use.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/frame.h"
#include "service/index/block.h"
#include "service/index/cover.h"
#include "service/index/index_parts.h"

namespace cairn {

// The slice of one group that a reader wants, and the rule for the blocks in which the reader wants
// this slice.
struct WantedGroup {
  // The blocks that the group needs in a prefix of n blocks.
  enum class Rule : uint8_t {
    kEvery,   // full attention: all n
    kWindow,  // the last min(n, window_blocks)
    kLast,    // only the last, because its state includes all earlier tokens
  };
  uint16_t group = 0;
  codecs::Slice slice;
  Rule rule = Rule::kEvery;
  uint32_t window_blocks = 0;  // kWindow: ceil(window / tokens per block) + 1
};

struct MatchQuery {
  uint64_t space_id = 0;
  uint32_t tokens_per_block = 0;
  std::vector<proto::BlockKey> keys;  // consecutive blocks from the start; at most kKeysPerCallMax
  std::vector<WantedGroup> wanted;    // at least one
  uint32_t token_limit = 0;           // 0: no limit
  // Whether to lease the prefix. The lease belongs to this session and counts for its tenant.
  bool wants_lease = false;
  uint64_t session_id = 0;
  std::string tenant;
};

struct BlockMatch {
  TierId tier = TierId::kHost;
  uint64_t image_bytes = 0;     // bytes of wanted slices; 0 if no rule needs the block
  uint32_t expires_unix_s = 0;  // 0: never
  bool is_elsewhere = false;    // another member of the cluster has it, so `tier` means nothing
};

struct MatchAnswer {
  uint64_t token_count = 0;
  std::vector<BlockMatch> blocks;  // block_count elements
  std::optional<proto::LeaseToken> lease;
  uint32_t lease_ms = 0;
  bool is_shortened_by_pins = false;
};

// Returns the first block that the group needs in a prefix of `block_count` blocks.
size_t FirstNeeded(const WantedGroup& wanted, size_t block_count);
// Returns the largest number of blocks that the query can match: its keys, cut to token_limit.
size_t BlocksAsked(const MatchQuery& query);

// A running Match. It remembers the blocks that it has examined, and pins those that it will lease.
// So the index's lock can be released between its steps. The steps run in this order. The
// caller holds the index's lock while it calls a step that takes Visits (a limit for the work of
// one call). It calls the step again, in a new hold of the lock, until the step returns true:
//
//  Look         finds the complete blocks, from the first on
//  Plan         chooses the longest prefix that is complete for the reader
//  Lease        leases the images of that prefix; if some were deleted meanwhile, Plan() must
//               run again
//  ReleasePins  releases the pins that the lease does not need
//  Touch        marks the blocks of the prefix as used
//
// Thread-safety: Thread-compatible.
// Cost:         Look visits keys x groups x images of a block. After kMatchWorkMax visits the
//               prefix ends. It allocates nothing under the lock.
class MatchScan {
 public:
  // Borrows the query.
  explicit MatchScan(const MatchQuery& query);
  ~MatchScan();  // REQUIRES: ReleasePins() has completed, if a lease was wanted

  // Allocates the memory that Look() fills. Call it before each hold of Look().
  void Reserve();
  // If a lease is wanted, also pins the complete blocks. Stops pinning once the blocks that every
  // longer prefix needs have more than `lease_bytes_free` bytes: no such prefix can be leased.
  bool Look(IndexParts& parts, uint64_t lease_bytes_free, Visits& visits);

  // Chooses the longest prefix that is complete by each group's rule. If a lease is wanted, the
  // images of the prefix that are not leased yet may have at most `lease_bytes_free` allocated
  // bytes.
  void Plan(uint64_t lease_bytes_free);
  size_t block_count() const { return block_count_; }  // blocks of that prefix
  // The bytes that this Match has leased so far.
  uint64_t leased_bytes() const { return leased_bytes_; }

  // Leases the pinned images of the prefix. If it returns true while is_leased() is false, a block
  // was deleted since Look(), or other Matches have leased too much meanwhile. Plan a shorter
  // prefix then.
  bool Lease(IndexParts& parts, uint64_t lease_bytes_max, Visits& visits);
  bool is_leased() const { return is_leased_; }
  // Gives up the planned prefix. Then ReleasePins() releases everything that is pinned and leased.
  void Abandon();

  bool ReleasePins(IndexParts& parts, Visits& visits);
  // Marks the blocks of the prefix as used, from the last block to the first. So, if the index does
  // not know the parents, the end of the prefix is evicted before its beginning.
  bool Touch(IndexParts& parts, absl::Time now, Visits& visits);

  // The leased images. REQUIRES: ReleasePins() has completed.
  std::vector<Image*> TakeLeased() { return std::move(leased_); }
  // The answer, without its lease.
  MatchAnswer Answer() const;

 private:
  // The result of examining one group of one block.
  struct Seen {
    uint32_t run = 0;  // number of consecutive complete blocks up to and including this one
    uint64_t image_bytes = 0;
    TierId tier = TierId::kHost;    // the slowest tier of the copies to read
    uint32_t expires_unix_s = 0;    // of the block; 0: never
    uint64_t lease_bytes_upto = 0;  // bytes to lease in the host tier, up to this block
  };
  struct Held {
    Image* image = nullptr;
    uint32_t seen = 0;  // index in seen_
    bool is_leased = false;
  };

  void See(IndexParts& parts, Block* block, uint64_t lease_bytes_free);
  bool IsComplete(size_t block_count) const;
  uint64_t LeaseBytes(size_t block_count) const;
  // Returns whether the prefix needs the block and group of seen_[index].
  bool IsNeeded(size_t index) const;

  const MatchQuery& query_;
  const size_t group_count_;
  const size_t asked_;
  const bool needs_every_;      // whether every group's rule needs every block
  std::vector<Block*> blocks_;  // as they were found; a record may be reused meanwhile
  std::vector<Seen> seen_;      // block by block, group by group
  std::vector<Held> held_;      // in the same order
  std::vector<Image*> leased_;
  ImageRefs refs_;      // scratch: the images of the current block
  ImagePlaces places_;  // scratch: those images that serve the current group
  size_t work_ = 0;
  uint64_t every_bytes_ = 0;  // bytes to lease for groups that need every block
  size_t leasable_;           // the limit for the number of blocks to lease
  size_t block_count_ = 0;
  bool is_shortened_ = false;
  bool is_leased_ = false;
  uint64_t leased_bytes_ = 0;
  size_t next_held_ = 0, released_ = 0, touched_ = 0;
};

// Finds the last key that is missing for a complete match of a query. Runs under the index's lock,
// one hold at a time. Thread-safety: Thread-compatible.
class MissingScan {
 public:
  // Borrows the query.
  explicit MissingScan(const MatchQuery& query) : query_(query), left_(BlocksAsked(query)) {}
  // Returns true when complete. Use missing() in the same hold of the lock.
  bool Look(const IndexParts& parts, Visits& visits);
  // Returns nullopt if the query would match completely, or if the limit of work was reached.
  std::optional<size_t> missing() const { return missing_; }

 private:
  const MatchQuery& query_;
  size_t left_;       // number of blocks to examine, from the end
  size_t group_ = 0;  // the group of the next block at which to continue
  size_t work_ = 0;
  std::optional<size_t> missing_;
};

}  // namespace cairn
