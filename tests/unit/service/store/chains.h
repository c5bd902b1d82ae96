// SPDX-License-Identifier: Apache-2.0
#pragma once
// Chains of blocks in a space of three groups, and what the index says of them,
// for the tests of matching and of eviction.

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "tests/support/metric_capture.h"
#include "tests/support/store_fixture.h"

namespace cairn {

using Key = proto::BlockKey;

// A full group, a window of 32 tokens (3 blocks of 16) and a state.
inline proto::SpaceIdentity HybridIdentity() {
  proto::SpaceIdentity identity = StoreFixture::Identity();
  identity.model = "hybrid";
  proto::GroupGeometry window = identity.groups[0];
  window.layers = {2};
  window.window_tokens = 32;
  proto::GroupGeometry state;
  state.kind = proto::GroupGeometry::Kind::kState;
  state.layers = {3};
  state.state_bytes = 512;
  identity.groups.push_back(window);
  identity.groups.push_back(state);
  return identity;
}

// Puts block `number` of a chain that begins with 1.
inline void PutGroup(StoreFixture& store, const SpaceEntry& space, uint64_t number,
                     uint16_t group) {
  const Key key = StoreFixture::Key(number);
  const auto reply = store.PutSource(space, key, StoreFixture::Whole(space, group),
                                     number == 1 ? Key{} : StoreFixture::Key(number - 1),
                                     (number - 1) * space.tokens_per_block(), group);
  CAIRN_CHECK_OK(reply);
}

inline std::vector<Key> Keys(uint64_t count) {
  std::vector<Key> keys;
  for (uint64_t i = 1; i <= count; ++i) {
    keys.push_back(StoreFixture::Key(i));
  }
  return keys;
}

// How many blocks from the first a match finds.
inline uint64_t MatchedBlocks(StoreFixture& store, const MatchQuery& query) {
  const auto result = store.index->Match(query);
  CAIRN_CHECK_OK(result);
  CAIRN_CHECK(result->token_count == result->blocks.size() * query.tokens_per_block);
  return result->blocks.size();
}

inline double IndexMetric(const StoreFixture& store, const char* name) {
  MetricCapture metrics;
  store.index->Report(metrics);
  return metrics.Value(name);
}

}  // namespace cairn
