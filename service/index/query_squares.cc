// SPDX-License-Identifier: Apache-2.0
#include "service/index/query_squares.h"

#include <algorithm>

#include "base/check.h"
#include "proto/statistics.h"

namespace cairn {

uint64_t QuerySquares::BytesOf(const Sums& sums) {
  return sums.sums.size() * sizeof(double) + sums.tokens.size() * sizeof(uint64_t);
}

uint64_t QuerySquares::TokensOf(const Sums& sums) {
  return *std::min_element(sums.tokens.begin(), sums.tokens.end());
}

QuerySquares::Sums* QuerySquares::FindOrMake(const GroupPlace& place,
                                             const codecs::GroupShape& shape) {
  const Name name(place.space_id, place.group);
  if (const auto found = groups_.find(name); found != groups_.end()) {
    return &found->second;
  }
  const uint64_t heads = uint64_t{shape.layers} * shape.heads;
  const uint64_t bytes = heads * (shape.tile.k_dim * sizeof(double) + sizeof(uint64_t));
  if (!bytes_.CheckRoom(place.tenant, bytes).ok()) {
    return nullptr;
  }
  Sums made{.dim = shape.tile.k_dim,
            .tenant = std::string(place.tenant),
            .tokens = std::vector<uint64_t>(heads),
            .sums = std::vector<double>(heads * shape.tile.k_dim)};
  CAIRN_CHECK(BytesOf(made) == bytes);
  bytes_.Add(made.tenant, bytes);
  return &groups_.emplace(name, std::move(made)).first->second;
}

bool QuerySquares::Add(const GroupPlace& place, const codecs::GroupShape& shape,
                       const codecs::Slice& slice, std::span<const float> means, uint32_t tokens) {
  const uint64_t dim = shape.tile.k_dim;
  CAIRN_CHECK(codecs::Fits(shape, slice) &&
              means.size() ==
                  proto::CountOf(proto::Statistic::kQuerySquares, shape.tile, slice, tokens));
  const MutexLock lock(mutex_);
  Sums* sums = FindOrMake(place, shape);
  if (sums == nullptr) {
    return false;
  }
  CAIRN_CHECK(sums->tokens.size() == uint64_t{shape.layers} * shape.heads && sums->dim == dim);
  const float* mean = means.data();
  for (uint32_t layer = slice.layer_first; layer < slice.layer_first + slice.layer_count; ++layer) {
    for (uint32_t head = slice.head_first; head < slice.head_first + slice.head_count; ++head) {
      const uint64_t at = uint64_t{layer} * shape.heads + head;
      sums->tokens[at] += tokens;
      double* sum = &sums->sums[at * dim];
      for (uint64_t c = 0; c < dim; ++c) {
        sum[c] += static_cast<double>(*mean++) * tokens;
      }
    }
  }
  added_.Add();
  return true;
}

QuerySquares::Snapshot QuerySquares::Get(uint64_t space_id, uint32_t group) const {
  Snapshot snapshot;
  const MutexLock lock(mutex_);
  const auto found = groups_.find(Name(space_id, group));
  if (found == groups_.end()) {
    return snapshot;
  }
  const Sums& sums = found->second;
  snapshot.tokens = TokensOf(sums);
  snapshot.means.resize(sums.sums.size());
  for (size_t i = 0; i < sums.sums.size(); ++i) {
    const auto tokens = static_cast<double>(std::max<uint64_t>(sums.tokens[i / sums.dim], 1));
    snapshot.means[i] = static_cast<float>(sums.sums[i] / tokens);
  }
  return snapshot;
}

uint64_t QuerySquares::TokensOf(uint64_t space_id, uint32_t group) const {
  const MutexLock lock(mutex_);
  const auto found = groups_.find(Name(space_id, group));
  return found == groups_.end() ? 0 : TokensOf(found->second);
}

void QuerySquares::Forget(uint64_t space_id) {
  const MutexLock lock(mutex_);
  absl::erase_if(groups_, [&](const auto& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (entry.first.first != space_id) {
      return false;
    }
    bytes_.Remove(entry.second.tenant, BytesOf(entry.second));
    return true;
  });
}

uint64_t QuerySquares::bytes() const {
  const MutexLock lock(mutex_);
  return bytes_.total();
}

void QuerySquares::Report(MetricSink& sink) const {
  {
    const MutexLock lock(mutex_);
    sink.AddGauge("cairn_query_squares_bytes", "Bytes of the sums of squared queries.", {},
                  static_cast<double>(bytes_.total()));
    bytes_.Report(sink);
  }
  sink.AddCounter("cairn_query_squares_added_total", "Stored slices with statistics of queries.",
                  {}, added_.Value());
}

}  // namespace cairn
