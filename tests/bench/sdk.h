// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the benchmarks of the SDK share: a space of one group of KV heads in bf16, and results that
// have to be there.

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "proto/block_key.h"

namespace cairn::bench {

// The value; CAIRN_CHECKs that there is one.
template <typename T>
T Must(absl::StatusOr<T> value) {
  CAIRN_CHECK_OK(value);
  return *std::move(value);
}

struct KvShape {
  uint32_t layers = 0, heads = 0, dim = 0, tokens = 0;
};

inline proto::SpaceIdentity Identity(const std::string& model, const KvShape& shape) {
  proto::SpaceIdentity identity;
  identity.model = model;
  identity.weights_revision = "r1";
  identity.dtype = codecs::DType::kBf16;
  identity.tokens_per_block = shape.tokens;
  proto::GroupGeometry group;
  group.layers.resize(shape.layers);
  std::iota(group.layers.begin(), group.layers.end(), 0U);
  group.kv_heads = shape.heads;
  group.k_dim = group.v_dim = shape.dim;
  identity.groups = {group};
  return identity;
}

}  // namespace cairn::bench
