// SPDX-License-Identifier: Apache-2.0
#include "service/index/match.h"

#include <algorithm>

#include "service/index/cover.h"
#include "service/limits.h"

namespace cairn {
namespace {

// What the scan learns of one wanted group, one element a block.
struct GroupScan {
  std::vector<uint32_t> run;         // complete blocks in a row that end here, this one included
  std::vector<uint64_t> bytes_upto;  // sum of bytes not yet leased, of this block and those before
};

uint64_t BytesNotLeased(const ImageList& images) {
  uint64_t bytes = 0;
  for (const Image* image : images) {
    bytes += image->lease_pins == 0 ? image->extent.rounded_bytes() : 0;
  }
  return bytes;
}

// What looking at a block for one group costs.
size_t WorkOf(const Block* block) { return 1 + (block == nullptr ? 0 : block->images.size()); }

bool Serves(const WantedGroup& wanted, const GroupScan& scan, size_t block_count) {
  return scan.run[block_count - 1] >= block_count - FirstNeeded(wanted, block_count);
}

uint64_t BytesOf(const WantedGroup& wanted, const GroupScan& scan, size_t block_count) {
  const size_t first = FirstNeeded(wanted, block_count);
  return scan.bytes_upto[block_count - 1] - (first == 0 ? 0 : scan.bytes_upto[first - 1]);
}

}  // namespace

size_t FirstNeeded(const WantedGroup& wanted, size_t block_count) {
  size_t needed = block_count;
  if (wanted.rule == WantedGroup::Rule::kWindow) {
    needed = std::min<size_t>(block_count, wanted.window_blocks);
  } else if (wanted.rule == WantedGroup::Rule::kLast) {
    needed = std::min<size_t>(block_count, 1);
  }
  return block_count - needed;
}

size_t BlocksAsked(const MatchQuery& query) {
  return query.token_limit == 0
             ? query.keys.size()
             : std::min<size_t>(query.keys.size(), query.token_limit / query.tokens_per_block);
}

MatchPlan PlanMatch(const BlockTable& table, const MatchQuery& query, uint64_t lease_bytes_free) {
  const size_t asked = BlocksAsked(query);
  MatchPlan plan;
  plan.blocks.reserve(asked);
  std::vector<GroupScan> scans(query.wanted.size());
  for (GroupScan& scan : scans) {
    scan.run.reserve(asked);
    scan.bytes_upto.reserve(asked);
  }
  ImageList images;
  size_t work = 0;
  for (size_t i = 0; i < asked && work < limits::kMatchWorkMax; ++i) {
    Block* block = table.Find({query.space_id, query.keys[i]});
    bool is_end = false;
    for (size_t g = 0; g < scans.size(); ++g) {
      const WantedGroup& wanted = query.wanted[g];
      work += WorkOf(block);
      const bool is_complete =
          block != nullptr && FindCover(*block, wanted.group, wanted.slice, &images);
      is_end |= !is_complete && wanted.rule == WantedGroup::Rule::kEvery;
      scans[g].run.push_back(is_complete ? (i == 0 ? 0 : scans[g].run.back()) + 1 : 0);
      scans[g].bytes_upto.push_back((i == 0 ? 0 : scans[g].bytes_upto.back()) +
                                    (is_complete ? BytesNotLeased(images) : 0));
    }
    if (is_end) {
      break;
    }
    plan.blocks.push_back(block);
  }
  for (; !plan.blocks.empty(); plan.blocks.pop_back()) {
    const size_t count = plan.blocks.size();
    bool is_complete = true;
    uint64_t bytes = 0;
    for (size_t g = 0; g < scans.size(); ++g) {
      is_complete = is_complete && Serves(query.wanted[g], scans[g], count);
      bytes += BytesOf(query.wanted[g], scans[g], count);
    }
    if (is_complete && query.wants_lease && bytes > lease_bytes_free) {
      plan.is_shortened_by_pins = true;
    } else if (is_complete) {
      break;
    }
  }
  return plan;
}

std::optional<size_t> LastMissing(const BlockTable& table, const MatchQuery& query) {
  const size_t asked = BlocksAsked(query);
  size_t work = 0;
  for (size_t i = asked; i-- > 0 && work < limits::kMatchWorkMax;) {
    const Block* block = nullptr;
    bool is_looked_up = false;
    for (const WantedGroup& wanted : query.wanted) {
      if (i < FirstNeeded(wanted, asked)) {
        continue;
      }
      if (!is_looked_up) {
        block = table.Find({query.space_id, query.keys[i]});
        is_looked_up = true;
      }
      work += WorkOf(block);
      if (block == nullptr || !FindCover(*block, wanted.group, wanted.slice, nullptr)) {
        return i;
      }
    }
  }
  return std::nullopt;
}

}  // namespace cairn
