// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which prefix of a chain serves a reader.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/frame.h"
#include "service/index/block_table.h"
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

struct MatchPlan {
  std::vector<Block*>
      blocks;  // of the prefix; null where it needs nothing of a block that is not there
  bool is_shortened_by_pins = false;
};
// The longest prefix that is complete by each group's rule, scanned from the longest; with
// wants_lease, one whose images not yet leased are at most `lease_bytes_free`, as allocated.
// Thread-safety of both: Thread-compatible (the index's lock).
// Cost: keys × groups × images of a block, kMatchWorkMax at most: then the prefix ends there.
MatchPlan PlanMatch(const BlockTable& table, const MatchQuery& query, uint64_t lease_bytes_free);

// Index of the last key without which the whole query cannot match; nullopt: it would match whole.
std::optional<size_t> LastMissing(const BlockTable& table, const MatchQuery& query);

}  // namespace cairn
