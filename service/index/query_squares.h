// SPDX-License-Identifier: Apache-2.0
#pragma once
// What puts say of the queries that read K: sums of their squares, for each channel of each head of
// a group of a space, over all blocks that came with them. A profile is mined with it.
//
// A square is of a query as it meets K, that is after RoPE; where several query heads read one head
// of K, the mean over them. docs/internals/formats/frame.md says how a put carries them.
//
// Thread-safety: Thread-safe.
// Locks:         none is taken under it.

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "codecs/types/shape.h"
#include "service/index/group_place.h"
#include "service/index/tenant_shares.h"

namespace cairn {

class QuerySquares {
 public:
  // `bytes_max` is of the sums of all groups; what one tenant may hold of it: TenantShares.
  explicit QuerySquares(uint64_t bytes_max) : bytes_("query_squares_bytes", bytes_max) {}

  // Of one group. Slices that ranks put apart are together here.
  struct Snapshot {
    // Of the head that the fewest tokens are known of: 0 where there is a head of which none are.
    uint64_t tokens = 0;
    // [layer][head][channel of K] over tokens; 0 where none are known. Empty: nothing is known of
    // the group.
    std::vector<float> means;
  };

  // Counts a slice of a block in.
  //   shape  the group's, the same at every call; slice lies within it
  //   means  [layer][head][channel of K] of the slice, over the block's tokens: finite, not
  //          negative
  // False, with nothing counted, where a limit leaves no room for a group that is new.
  bool Add(const GroupPlace& place, const codecs::GroupShape& shape, const codecs::Slice& slice,
           std::span<const float> means, uint32_t tokens);

  [[nodiscard]] Snapshot Get(uint64_t space_id, uint32_t group) const;
  // Snapshot::tokens alone.
  [[nodiscard]] uint64_t TokensOf(uint64_t space_id, uint32_t group) const;
  // All groups of a space: its blocks are gone.
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

  // Null where there is no room.
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
