// SPDX-License-Identifier: Apache-2.0
#pragma once
// A trace of requests in Mooncake's format, one JSON value per line:
//
//   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}
//
// timestamp is in milliseconds and never decreases. hash_ids has one id for each block of the
// prompt. The last block may be partial. If two prefixes are equal and are followed by equal ids,
// the blocks are equal. Other fields are ignored.
//
// Thread-safety: Immutable.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace cairn::replay {

inline constexpr uint32_t kTraceBlockTokens = 512;                    // of published traces
inline constexpr uint64_t kTraceBytesMax = uint64_t{1} << 30;         // of a file
inline constexpr size_t kTraceBlocksMax = size_t{1} << 27;            // of all requests together
inline constexpr uint64_t kTraceNumberMax = (uint64_t{1} << 53) - 1;  // JSON keeps these exactly

// Blocks are numbered in the order of their first use in the trace: 0, 1, …
using BlockNumber = uint32_t;
inline constexpr BlockNumber kNoBlock = UINT32_MAX;

struct TraceBlock {
  uint64_t hash_id = 0;
  BlockNumber parent = kNoBlock;
};

struct TraceRequest {
  uint64_t time_ms = 0;
  uint64_t tokens = 0;     // length of the prompt
  size_t first_block = 0;  // index in Trace::chains
  uint32_t block_count = 0;
};

struct Trace {
  uint32_t block_tokens = kTraceBlockTokens;
  std::vector<TraceRequest> requests;
  std::vector<BlockNumber> chains;  // the chains of all requests, one after another
  std::vector<TraceBlock> blocks;   // each distinct block once

  std::span<const BlockNumber> ChainOf(const TraceRequest& request) const {
    return std::span(chains).subspan(request.first_block, request.block_count);
  }
  // Returns the tokens of the first `count` blocks of the request.
  uint64_t TokensOf(const TraceRequest& request, uint64_t count) const {
    return count < request.block_count ? count * block_tokens : request.tokens;
  }
};

// Parses the first `requests_max` requests. Skips empty lines. Errors: InvalidArgument, naming the
// line (the first is 1) and the problem: invalid JSON, a field that is missing or not a whole
// number, a decreasing time, or a wrong number of ids for block_tokens.
absl::StatusOr<Trace> ParseTrace(std::string_view text, uint32_t block_tokens,
                                 uint64_t requests_max = UINT64_MAX);

// Says whether a later request continues the same session after this request. When a request of a
// real agent ends, the agent knows this.
struct TurnEnd {
  bool goes_on = false;     // a later request starts with all full blocks of this one
  uint32_t used_later = 0;  // number of first blocks that a later request has, too
};
std::vector<TurnEnd> TurnEndsOf(const Trace& trace);  // one per request

// The hits of a store that never drops a block: an upper bound for any other store. A block is a
// hit if earlier requests had the same block and all blocks before it.
struct Ceiling {
  uint64_t block_count = 0, token_count = 0;  // requested blocks and tokens
  uint64_t hit_blocks = 0, hit_tokens = 0;
  std::vector<uint32_t> request_hits;  // number of hit blocks, by request
};
Ceiling CeilingOf(const Trace& trace);

}  // namespace cairn::replay
