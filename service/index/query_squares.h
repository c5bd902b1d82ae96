// SPDX-License-Identifier: Apache-2.0
#pragma once
// Statistics of the queries that read K, which puts carry. For each channel of each head of a
// group, it sums the squares of the queries over all blocks whose put had these statistics. Mining
// uses the sums to make profiles.
//
// Queries are taken after RoPE. If several query heads read one K head, the mean of their squares
// is used. docs/internals/formats/frame.md describes how a put carries the statistics.
//
// Thread-safety: Thread-safe. Locks: it takes no other lock while it holds its own.

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "codecs/types/shape.h"
#include "service/index/side_objects.h"
#include "service/index/tenant_shares.h"

namespace cairn {

class QuerySquares {
 public:
  // `bytes_max` limits the sums of all groups together. TenantShares gives each tenant its share.
  explicit QuerySquares(uint64_t bytes_max) : bytes_("query_squares_bytes", bytes_max) {}

  // The statistics of one group. Slices that tensor-parallel ranks put separately are combined.
  struct Snapshot {
    // The number of tokens of the head that has the fewest. 0 if a head has none.
    uint64_t tokens = 0;
    // [layer][head][channel of K]: the mean over the tokens, or 0 where unknown. Empty if the group
    // is unknown.
    std::vector<float> means;
  };

  // Adds a slice of a block. Returns false, without adding the slice, if a limit leaves no room for
  // a new group.
  //   shape  the group's shape, equal at every call; contains the slice
  //   means  [layer][head][channel of K] of the slice, over the block's tokens; finite and not
  //          negative
  bool Add(const GroupPlace& place, const codecs::GroupShape& shape, const codecs::Slice& slice,
           std::span<const float> means, uint32_t tokens);

  [[nodiscard]] Snapshot Get(uint64_t space_id, uint32_t group) const;
  // Like Get(), but returns only Snapshot::tokens.
  [[nodiscard]] uint64_t TokensOf(uint64_t space_id, uint32_t group) const;
  // Drops all groups of a space. Call it when the space's blocks are gone.
  void Forget(uint64_t space_id);

  [[nodiscard]] uint64_t bytes() const;
  void Report(MetricSink& sink) const;

 private:
  struct Sums {
    uint64_t dim = 0;
    std::string tenant;
    std::vector<uint64_t> tokens;  // [layer][head]
    std::vector<double> sums;      // [layer][head][channel]
  };
  using Name = std::pair<uint64_t, uint32_t>;  // space, group

  // Returns null if there is no room.
  Sums* FindOrMake(const GroupPlace& place, const codecs::GroupShape& shape)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static uint64_t BytesOf(const Sums& sums);
  static uint64_t TokensOf(const Sums& sums);

  mutable Mutex mutex_;
  absl::flat_hash_map<Name, Sums> groups_ ABSL_GUARDED_BY(mutex_);
  TenantShares bytes_ ABSL_GUARDED_BY(mutex_);
  Counter added_;
};

}  // namespace cairn
