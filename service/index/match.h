// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which prefix of a chain serves a reader.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/frame.h"
#include "service/index/block_table.h"
#include "service/index/cover.h"
#include "service/index/visits.h"
#include "service/index/wanted.h"

namespace cairn {

struct MatchQuery {
  uint64_t space_id = 0;
  uint32_t tokens_per_block = 0;
  std::vector<proto::BlockKey> keys;  // consecutive blocks from the start; at most kKeysPerCallMax
  std::vector<WantedGroup> wanted;    // at least one
  uint32_t token_limit = 0;           // 0: none
  // A lease for this session, under its tenant's name.
  bool wants_lease = false;
  uint64_t session_id = 0;
  std::string tenant;
};

struct BlockMatch {
  TierId tier = TierId::kHost;
  uint64_t image_bytes =
      0;  // of the images that serve the wanted slices; 0 where the rules need none
};

struct MatchAnswer {
  uint64_t token_count = 0;
  std::vector<BlockMatch> blocks;  // block_count of them
  std::optional<proto::LeaseToken> lease;
  uint32_t lease_ms = 0;
  bool is_shortened_by_pins = false;
};

// The first of the blocks that the group needs of a prefix of `block_count`.
size_t FirstNeeded(const WantedGroup& wanted, size_t block_count);
// Blocks that the query can match at most: its keys, cut to token_limit.
size_t BlocksAsked(const MatchQuery& query);

// One Match under way. It remembers what it saw, and pins what it is to lease, so that it may let
// go of the index between its steps. They come in this order; those that take Visits run under the
// index's lock, a hold at a time, until they return true:
//
//   Look      which blocks are complete, from the first on
//   Plan      the longest prefix that serves
//   Lease     the images of that prefix; after it has met what went meanwhile: Plan again
//   Settle    gives up the pins that the lease does not need
//   Touch     the blocks of the prefix are used
//
// Thread-safety: Thread-compatible.
// Cost:          Look visits keys x groups x images of a block, kMatchWorkMax at most: then the
//                prefix ends there. No heap memory is taken under the lock.
class MatchScan {
 public:
  // Borrows the query.
  explicit MatchScan(const MatchQuery& query);
  ~MatchScan();  // REQUIRES: Settle() is over, if a lease was wanted

  // Before each hold of Look(): takes the memory that it fills.
  void Reserve();
  // Pins, where a lease is wanted, what is complete, as far as `lease_bytes_free` may serve it.
  bool Look(BlockTable& table, uint64_t lease_bytes_free, Visits& visits);

  // The longest prefix that is complete by each group's rule, scanned from the longest; with
  // wants_lease, one whose images not leased by others are at most `lease_bytes_free`, as
  // allocated.
  void Plan(uint64_t lease_bytes_free);
  size_t block_count() const { return block_count_; }  // of that prefix
  // Of what this one has leased so far.
  uint64_t leased_bytes() const { return leased_bytes_; }

  // Makes leased ones of the prefix's pins. Over with is_leased() false: a block was deleted since
  // Look(), or others have leased too much, and a shorter prefix is to be planned.
  bool Lease(BlockTable& table, uint64_t lease_bytes_max, Visits& visits);
  bool is_leased() const { return is_leased_; }
  // No prefix, then: what is pinned and leased is given up by Settle().
  void Abandon();

  bool Settle(BlockTable& table, Visits& visits);
  // The end of the prefix first: where there are no parents to tell, it is to go before its
  // beginning.
  bool Touch(BlockTable& table, absl::Time now, Visits& visits);

  // The images that are leased, once Settle() is over.
  std::vector<Image*> TakeLeased() { return std::move(leased_); }
  // Without the lease.
  MatchAnswer Answer() const;

 private:
  // What was seen of one group of one block.
  struct Seen {
    uint32_t run = 0;  // complete blocks in a row that end here, this one included
    uint64_t image_bytes = 0;
    TierId tier = TierId::kHost;  // the slowest of the copies to be read
    uint64_t lease_bytes_upto =
        0;  // in the host tier, of images not yet leased, of all blocks so far
  };
  struct Held {
    Image* image = nullptr;
    uint32_t seen = 0;  // where in seen_
    bool is_leased = false;
  };

  void See(BlockTable& table, Block* block, uint64_t lease_bytes_free);
  bool IsComplete(size_t block_count) const;
  uint64_t LeaseBytes(size_t block_count) const;
  // Whether the prefix needs what seen_[index] is of.
  bool IsNeeded(size_t index) const;

  const MatchQuery& query_;
  const size_t group_count_;
  const size_t asked_;
  const bool needs_every_;      // block, by the rules of all groups
  std::vector<Block*> blocks_;  // as found: may be others by now
  std::vector<Seen> seen_;      // block by block, group by group
  std::vector<Held> held_;      // in the same order
  std::vector<Image*> leased_;
  ImageRefs refs_;      // of the block that is looked at
  ImagePlaces places_;  // of its images, those that serve the group
  size_t work_ = 0;
  uint64_t every_bytes_ = 0;  // not yet leased, of groups that need every block
  size_t leasable_;           // blocks that may be leased at most
  size_t block_count_ = 0;
  bool is_shortened_ = false;
  bool is_leased_ = false;
  uint64_t leased_bytes_ = 0;
  size_t next_held_ = 0, settled_ = 0, touched_ = 0;
};

// Looks for the last key without which the query cannot match whole; under the index's lock, a hold
// at a time. Thread-safety: Thread-compatible.
class MissingScan {
 public:
  // Borrows the query.
  explicit MissingScan(const MatchQuery& query) : query_(query), left_(BlocksAsked(query)) {}
  // True: over. missing() is of this hold.
  bool Look(const BlockTable& table, Visits& visits);
  // nullopt: it would match whole, or too much work was done to tell.
  std::optional<size_t> missing() const { return missing_; }

 private:
  const MatchQuery& query_;
  size_t left_;       // blocks to look at, the last of them next
  size_t group_ = 0;  // of that one, where to go on
  size_t work_ = 0;
  std::optional<size_t> missing_;
};

}  // namespace cairn
